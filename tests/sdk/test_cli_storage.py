"""The commands backup, restore and prune, on data directories of real runs."""

import json
import os
import signal
from pathlib import Path

import pytest

from .cli_stage import Command, fresh, project, up

__all__ = ["fresh", "project"]  # pytest finds fixtures by their names

RUN = ["run", "flows.py:flow", "--input", '{"n": 2}', "--quiet", "--run-id"]


def test_backup_restore_and_prune_of_a_run(fresh: Command, tmp_path: Path) -> None:
    fresh.succeed(*RUN, "kept")
    code, made = fresh.json("backup", str(tmp_path / "b"))
    assert (0, 1, []) == (code, made["runs"], made["skipped"])
    assert (4, "ConflictError") == fresh.error("backup", str(tmp_path / "b"))[:2]

    assert (4, "ConflictError") == fresh.error("restore", str(tmp_path / "b"))[:2]
    code, told = fresh.json("prune", "--older-than", "0s", "--dry-run")
    assert (0, ["kept"], True) == (code, [run["runId"] for run in told["runs"]], told["isDryRun"])
    assert "1 runs" in fresh.succeed("prune", "--older-than", "0s")
    assert [] == fresh.json("runs")[1]
    assert fresh.json("verify")[1]["isSound"]
    assert (3, "RunNotFoundError") == fresh.error("show", "kept")[:2]

    code, restored = fresh.json("restore", "--replace", str(tmp_path / "b"))
    assert (0, True, made["lastPosition"]) == (
        code,
        restored["hasReplaced"],
        restored["lastPosition"],
    )
    assert fresh.json("verify")[1]["isSound"]
    assert (0, "2\n", "") == fresh("result", "kept")
    fresh.succeed(*RUN, "another")
    assert "0 runs" in fresh.succeed("prune", "--older-than", "30d")


def test_refusals(fresh: Command, tmp_path: Path) -> None:
    target = str(tmp_path / "b")
    assert (3, "NotFoundError") == fresh.error("backup", target)[:2]
    assert (3, "NotFoundError") == fresh.error("prune", "--older-than", "30d")[:2]
    assert (3, "NotFoundError") == fresh.error("restore", target)[:2]
    assert (2, "UsageError") == fresh.error("prune", "--older-than", "a month")[:2]
    assert 2 == fresh("prune")[0]
    (tmp_path / "b").mkdir()
    assert (6, "DataDirectoryError") == fresh.error("restore", target)[:2]
    assert not fresh.data.exists()


@pytest.mark.slow
def test_open_run_goes_on_from_a_backup_made_beside_its_supervisor(
    fresh: Command, tmp_path: Path
) -> None:
    gate, target = tmp_path / "gate", str(tmp_path / "b")
    given = ["--input", json.dumps(str(gate)), "--run-id", "long", "--detach"]
    with up(fresh.data) as facts:
        fresh.succeed("run", "flows.py:gated", *given)
        fresh.succeed(*RUN, "beside")
        made = fresh.json("backup", target)[1]
        assert 2 == made["runs"]
        assert (6, "DataDirLockedError") == fresh.error("restore", "--replace", target)[:2]
        assert (6, "DataDirLockedError") == fresh.error("prune", "--older-than", "30d")[:2]
        assert [] == fresh.json("prune", "--older-than", "30d", "--dry-run")[1]["runs"]
        os.kill(facts["pid"], signal.SIGKILL)

    other = Command(tmp_path / "other", fresh.capture)
    assert 2 == other.json("restore", target)[1]["runs"]
    assert other.json("verify")[1]["isSound"]
    gate.touch()
    code, document = other.json("resume", "long")
    assert (0, "passed") == (code, document["output"])
    assert (0, "2\n", "") == other("result", "beside")
    assert other.json("verify")[1]["isSound"]
