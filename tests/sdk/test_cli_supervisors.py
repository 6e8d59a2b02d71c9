"""Commands about supervisors and data directories: started, stopped, killed, missing."""

import json
import os
import signal
from pathlib import Path
from typing import IO, Any

import pytest

from .cli_stage import PATIENCE_SECONDS, Command, fresh, project, start, up

__all__ = ["fresh", "project"]  # pytest finds fixtures by their names


# -- the data directory --------------------------------------------------------------------


def test_foreign_data_directory_has_code_6_and_stays_as_it_is(fresh: Command) -> None:
    fresh.data.mkdir()
    (fresh.data / "thesis.txt").write_text("mine")
    run = ["run", "flows.py:flow", "--input", '{"n": 1}']

    assert (6, "DataDirectoryError") == fresh.error(*run)[:2]
    assert (6, "DataDirectoryError") == fresh.error("runs")[:2]
    assert 6 == fresh("doctor")[0]
    assert ["thesis.txt"] == os.listdir(fresh.data)


def test_look_after_the_supervisor_has_ended(fresh: Command) -> None:
    given = ["--input", '{"n": 2}', "--run-id", "over"]
    fresh.succeed("run", "flows.py:flow", *given, "--quiet")

    assert "completed" == fresh.json("show", "over")[1]["status"]
    assert (0, "2\n", "") == fresh("result", "over")
    assert ["over"] == [run["runId"] for run in fresh.json("runs")[1]]
    assert "RunCompleted" in fresh("events", "over", "--follow")[1]
    assert 2 == len(fresh.json("logs", "over")[1]["sessions"])
    assert {"supervisor": None, "processes": []} == fresh.json("ps")[1]
    assert {"completed": 1} == fresh.json("status")[1]["runs"]
    assert not fresh.json("down")[1]["stopped"]
    assert {"runs": []} == fresh.json("resume")[1]


def test_verify_finds_a_changed_blob(fresh: Command) -> None:
    given = ["--input", '{"n": 2}', "--run-id", "over"]
    fresh.succeed("run", "flows.py:flow", *given, "--quiet")
    code, document = fresh.json("verify")
    assert (0, True, [], []) == (
        code,
        document["isSound"],
        document["violations"],
        document["findings"],
    )

    blob = next(path for path in (fresh.data / "artifacts/blobs").rglob("*") if path.is_file())
    blob.chmod(0o600)
    blob.write_bytes(b"changed" + blob.read_bytes())
    code, document = fresh.json("verify")
    assert (6, False) == (code, document["isSound"])
    assert 6 == fresh("verify")[0]


# -- supervisors that end ------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_leaves_the_run_open_and_resume_carries_it_on(
    fresh: Command, project: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    words = ["run", "flows.py:gated", "--input", json.dumps(str(gate)), "--run-id", "left"]
    with start(*words, "--data-dir", str(fresh.data)) as process:
        assert process.stderr is not None
        _read_until(process.stderr, "in process")
        process.send_signal(signal.SIGINT)
        gate.touch()  # the call in flight may finish
        out, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert (130, "") == (process.returncode, out)
    assert "left open" in err and "planaria resume left" in err
    assert (0, "passed") == _output(fresh.json("resume", "left"))


@pytest.mark.slow
def test_up_carries_open_runs_on_after_take_over_and_down_ends_it(
    fresh: Command, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    given = ["--input", json.dumps(str(gate)), "--run-id", "long"]
    with up(fresh.data) as first:
        fresh.succeed("run", "flows.py:gated", *given, "--detach")
        os.kill(first["pid"], signal.SIGSTOP)
        code, second = fresh.json("up", "--detach", "--take-over")
        assert 0 == code
        assert first["pid"] != second["pid"]

        gate.touch()
        assert (0, "passed") == _output(fresh.json("wait", "long"))
        code, document = fresh.json("down")
        assert (0, second["pid"]) == (code, document["pid"])
        fresh.succeed("verify")


@pytest.mark.slow
def test_resume_carries_every_open_run_on_after_a_kill(fresh: Command, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with up(fresh.data) as facts:
        for run_id in ("a", "b"):
            given = ["--input", json.dumps(str(gate)), "--run-id", run_id, "--detach"]
            fresh.succeed("run", "flows.py:gated", *given)
        os.kill(facts["pid"], signal.SIGKILL)
    gate.touch()
    code, document = fresh.json("resume")

    assert 0 == code
    assert {"a": "completed", "b": "completed"} == {
        run["runId"]: run["status"] for run in document["runs"]
    }


def _output(answer: tuple[int, Any]) -> tuple[int, Any]:
    return answer[0], answer[1].get("output")


def _read_until(stream: IO[str], text: str) -> None:
    for line in stream:
        if text in line:
            return
    raise AssertionError(f"the command has ended without saying {text!r}")
