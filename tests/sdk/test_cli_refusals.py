"""What the command says when something is in the way: whose it is, and what to do."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from planaria.cli import main
from planaria.client import Client
from planaria.protocol.errors import RunFailedError

from .cli_stage import DOCUMENT, WORKFLOWS, Command, command, fresh, project, served, up

__all__ = ["command", "fresh", "project", "served"]  # pytest finds fixtures by their names

LOOKING = ["status", "ps", "down", "runs", "verify", "resume"]
EACH = [["show", "x"], ["events", "x"], ["logs", "x"], ["wait", "x"], ["result", "x"]] + [
    [name] for name in LOOKING
]


# -- supervisors that don't answer -----------------------------------------------------------


@pytest.mark.slow
def test_stopped_supervisor_is_named_and_not_said_to_be_none(
    fresh: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--input", json.dumps(str(tmp_path / "gate")), "--run-id", "r", "--detach"]
    with up(fresh.data) as facts:
        fresh.succeed("run", "flows.py:gated", *given)
        assert fresh.json("status")[1]["supervisor"]["isAnswering"]
        os.kill(facts["pid"], signal.SIGSTOP)
        monkeypatch.setattr("planaria.discovery.PING_SECONDS", 0.1)
        try:
            for name in ("status", "ps"):
                found = fresh.json(name)[1]["supervisor"]
                assert (facts["pid"], False) == (found["pid"], found["isAnswering"])
                out = fresh.succeed(name)
                assert f"pid {facts['pid']} has the directory and doesn't answer" in out
                assert "planaria up --take-over" in out
            (reason,) = fresh.json("show", "r")[1]["waitsFor"]
            assert f"pid {facts['pid']}" in reason
            assert f"pid {facts['pid']}" in fresh("events", "r", "--follow")[2]
            for words in (["down"], ["wait", "r"], ["up", "--detach"]):
                code, name, message = fresh.error(*words)
                assert (6, "SupervisorUnavailableError") == (code, name)
                assert "planaria up --take-over" in message
        finally:
            os.kill(facts["pid"], signal.SIGCONT)


# -- patience ------------------------------------------------------------------------------


@pytest.mark.parametrize("patience", ["0", "1ms"])
def test_no_patience_still_gives_the_result_of_a_run_that_has_ended(
    command: Command, patience: str
) -> None:
    for _ in range(5):
        assert (0, "3\n") == command("wait", "done", "--timeout", patience)[:2]
        assert 3 == command.json("wait", "done", "--timeout", patience)[1]["output"]
        assert 1 == command("wait", "bad", "--timeout", patience)[0]
    again = ["run", "flows.py:flow", "--input", '{"n": 3}', "--run-id", "done"]
    assert (0, "3\n") == command(*again, "--wait-timeout", patience)[:2]
    with Client(command.data) as client:
        assert 3 == client.wait("done", timeout=0).output


# -- sources that changed --------------------------------------------------------------------


def test_open_run_whose_source_changed_can_be_resumed_and_that_is_said(
    command: Command, project: Path, tmp_path: Path
) -> None:
    source = project / "edited.py"
    source.write_text(WORKFLOWS)
    given = ["--input", json.dumps(str(tmp_path / "never")), "--run-id", "edited"]
    command.succeed("run", "edited.py:gated", *given, "--detach")

    source.write_text(WORKFLOWS.replace('call("gate", "pass_gate"', 'call("other", "pass_gate"'))
    code, name, message = _run_anew(command, "edited.py:gated", *given)
    assert (4, "CapabilityDriftError") == (code, name)
    assert "planaria resume edited" in message

    source.write_text("import nothing_like_it\n")
    code, name, message = _run_anew(command, "edited.py:gated", *given)
    assert (2, "UserCodeError") == (code, name)
    assert "planaria resume edited" in message
    code, _, message = _run_anew(command, "edited.py:gated", "--run-id", "done")
    assert 2 == code and "resume" not in message  # that one isn't open
    command.succeed("cancel", "edited", "--wait")


def _run_anew(command: Command, *words: str) -> tuple[int, str, str]:
    """Returns what `run` says in a process that hasn't loaded the file yet."""
    for name in [name for name in sys.modules if name.startswith("edited")]:
        del sys.modules[name]
    code, document = command.json("run", *words)
    return code, document["error"]["class"], document["error"]["message"]


def test_run_id_of_another_workflow_is_said_to_be_that(command: Command) -> None:
    code, _, message = command.error("run", "flows.py:failing", "--run-id", "done")

    assert 4 == code
    assert "another workflow" in message


# -- effects -------------------------------------------------------------------------------


def test_unknown_outcome_is_shown_after_the_run_was_cancelled(command: Command) -> None:
    command("run", "flows.py:dying", "--run-id", "lost")
    before = command.json("show", "lost")[1]
    command.succeed("cancel", "lost", "--wait")
    after = command.json("show", "lost")[1]

    assert ("interrupted", "cancelled") == (before["status"], after["status"])
    assert before["unknownEffects"] == after["unknownEffects"]
    assert [("die", "once")] == [(u["toolName"], u["effect"]) for u in after["unknownEffects"]]
    text = command("show", "lost")[1]
    assert 1 == text.count("unknown outcome: die (once)")
    assert after["unknownEffects"][0]["idempotencyKey"] in text


# -- data directories ------------------------------------------------------------------------


@pytest.mark.parametrize("words", EACH, ids=" ".join)
def test_what_is_no_data_directory_has_code_6_and_the_sentence_of_run(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").touch()
    for name, said in (("file", "is a file"), ("foreign", "holds other things ('thesis.txt')")):
        place = Command(tmp_path / name, capfd)
        code, error, message = place.error(*words)

        assert (6, "DataDirectoryError") == (code, error)
        assert said in message
        if words == ["runs"]:
            assert message == place.error("run", "flows.py:failing")[2]


@pytest.mark.parametrize("words", EACH, ids=" ".join)
def test_data_directory_that_cant_be_read_has_code_6(
    fresh: Command, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def refuse(path: Any) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    fresh.data.mkdir()
    monkeypatch.setattr("planaria.observation.os.listdir", refuse)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # what the parser would ask

    code, error, message = fresh.error(*words)
    assert (6, "DataDirectoryError") == (code, error)
    assert "Permission denied" in message and "choose another one" in message


def test_directory_without_a_log_yet_says_what_makes_one(fresh: Command) -> None:
    fresh.data.mkdir()
    for name in ("runs", "verify"):
        code, _, message = fresh.error(name)

        assert 6 == code
        assert "planaria run" in message


def test_help_lists_the_code_of_a_fault(capfd: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--help"])
    assert "70 an unexpected fault" in " ".join(capfd.readouterr().out.split())


# -- failures ------------------------------------------------------------------------------


def test_failure_names_the_exception_and_where_to_read_more(command: Command) -> None:
    _, _, message = command.error("wait", "bad")

    assert "ValueError: no such ticket" in message
    assert "'planaria logs bad'" in message
    assert "ValueError: no such ticket" in command("show", "bad")[1]


def test_crash_that_printed_nothing_says_so(tmp_path: Path) -> None:
    error = {
        "name": "ProcessCrashed",
        "message": "it ended 6 times",
        "causeCode": "process_crashed",
    }
    outcome = {"runId": "r", "status": "failed", "error": error, "failedStepPath": "one"}
    client = Client(tmp_path, start_if_missing=False)

    with pytest.raises(RunFailedError, match="It has printed nothing"):
        client.read_outcome(outcome)
    logs = tmp_path / "runs" / "r" / "logs"
    logs.mkdir(parents=True)
    (logs / "hs_1.log").write_text("hello\n")
    with pytest.raises(RunFailedError, match="'planaria logs r' shows"):
        client.read_outcome(outcome)


def test_status_that_no_run_has_is_refused_with_those_there_are(command: Command) -> None:
    _, _, message = command.error("runs", "--status", "foo")

    assert "no status 'foo'" in message and "interrupted" in message


# -- check ---------------------------------------------------------------------------------


def test_check_names_the_file_of_a_document_without_a_name(fresh: Command, project: Path) -> None:
    nameless = {name: value for name, value in DOCUMENT.items() if name != "metadata"}
    (project / "nameless.json").write_text(json.dumps(nameless))

    out = fresh("check", "nameless.json", "--module", "flows.py")[1]
    assert "nameless.json: 1 finding(s)" in out
    assert "'nameless.json'" in fresh.error("run", "nameless.json", "--module", "flows.py")[2]


def test_check_has_arguments_among_other_findings(fresh: Command, project: Path) -> None:
    step = {"id": "one", "uses": "tool.call", "with": {"tool": "echo", "args": {"m": 1}}}
    wrong = {
        **DOCUMENT,
        "steps": [step, {"id": "two", "uses": "nonsense"}, 5, {"uses": "tool.call"}],
    }
    (project / "several.json").write_text(json.dumps(wrong))
    found = fresh.json("check", "several.json", "--module", "flows.py")[1]["findings"]

    paths = {finding["path"] for finding in found}
    assert {"$.steps[0].with.args.m", "$.steps[0].with.args.n", "$.steps[1].uses"} <= paths
    unknown = next(f["message"] for f in found if f["code"] == "lwir.unknown_kind")
    assert "workflow.call" in unknown
    assert "approval" in unknown and "wait" in unknown


def test_target_of_another_type_is_named_with_its_article(fresh: Command, project: Path) -> None:
    (project / "number.py").write_text("number = 5\n")

    assert "it is an int" in fresh.error("run", "number.py:number")[2]
