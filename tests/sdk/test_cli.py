"""Every command against real supervisors: what it writes, its JSON, its exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from planaria.cli import COMMANDS, main
from planaria.client import Client
from planaria.command_line import read_input
from planaria.protocol.errors import UsageError

from .cli_stage import (
    DOCUMENT,
    PATIENCE_SECONDS,
    Command,
    command,
    fresh,
    project,
    served,
    start,
)

__all__ = ["command", "fresh", "project", "served"]  # pytest finds fixtures by their names

# -- run, result, wait ---------------------------------------------------------------------


def test_run_writes_the_output_alone_on_stdout(fresh: Command) -> None:
    code, out, err = fresh("run", "flows.py:flow", "--input", '{"n": 7}')

    assert (0, "7\n") == (code, out)  # what the module prints at its import isn't there
    assert "step one (tool.call) in process" in err and "completed" in err
    assert not (fresh.data / "supervisor.json").exists()  # its supervisor has ended with it


def test_same_run_id_gives_the_recorded_result_and_no_event(command: Command) -> None:
    words = ["run", "flows:flow", "--input", '{"n": 3}', "--run-id", "done"]
    _, before, _ = command("events", "done", "--json")
    code, document = command.json(*words)

    assert 0 == code
    assert document.pop("costUsd") in (None, 0)  # it called no model
    assert {"runId": "done", "status": "completed", "output": 3, "usage": {}} == document
    assert before == command("events", "done", "--json")[1]


def test_same_run_id_with_another_input_is_a_conflict(command: Command) -> None:
    words = ["run", "flows.py:flow", "--run-id", "done", "--input", '{"n": 4}']

    assert (4, "RunInputMismatchError") == command.error(*words)[:2]


def test_failed_run_has_code_1(command: Command) -> None:
    code, name, message = command.error("wait", "bad")

    assert (1, "RunFailedError") == (code, name)
    assert "no such ticket" in message
    assert (1, name, message) == command.error("result", "bad")


def test_interrupted_run_has_code_5(command: Command) -> None:
    code, name, message = command.error("run", "flows.py:dying", "--run-id", "held")

    assert (5, "InterruptedEffectError") == (code, name)
    assert "'die'" in message
    assert 5 == command("resume", "held")[0]


def test_result_is_read_back(command: Command) -> None:
    assert (0, "3\n", "") == command("result", "done")


def test_document_runs_with_the_tools_of_a_module(command: Command) -> None:
    code, document = command.json("run", "document.json", "--module", "flows.py")

    assert (0, 5) == (code, document["output"])


def test_waiting_ends_with_the_callers_patience(command: Command, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = ["run", "flows.py:gated", "--input", json.dumps(str(gate)), "--run-id", "patient"]

    code, out, _ = command(*run, "--detach")
    assert (0, "patient\n") == (code, out)
    assert (5, "WaitTimeoutError") == command.error(*run, "--wait-timeout", "0.2")[:2]
    assert (5, "WaitTimeoutError") == command.error("wait", "patient", "--timeout", "100ms")[:2]
    assert (5, "WaitTimeoutError") == command.error("result", "patient")[:2]

    gate.touch()
    assert (0, "passed") == (0, command.json("wait", "patient")[1]["output"])


def test_cancel_waits_and_then_says_that_it_has_ended(command: Command, tmp_path: Path) -> None:
    given = json.dumps(str(tmp_path / "never"))
    command("run", "flows.py:gated", "--input", given, "--run-id", "unwanted", "--detach")

    assert (0, "cancelled") == _status(command.json("cancel", "unwanted", "--wait"))
    assert (0, "cancelled") == _status(command.json("cancel", "unwanted"))
    assert (4, "completed") == _status(command.json("cancel", "done"))
    assert (1, "RunFailedError") == command.error("wait", "unwanted")[:2]


def _status(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["status"]


# -- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.py:flow"], "nowhere.py"),
        (["flows.py:nothing"], "nothing"),
        (["flows"], "flows"),
        (["no_such_module:flow"], "no_such_module"),
        (["nowhere.json"], "nowhere.json"),
        (["broken.json"], "broken.json"),
        (["broken.yaml"], "broken.yaml"),
        (["broken.py:flow"], "broken.py"),
        (["leaving.py:flow"], "leaving.py"),
        (["wrong.py:flow"], "nonsense"),
        (["flows.py:flow", "--input", '{"n": "three"}'], "$.n"),
        (["flows.py:flow", "--input", "{n: 3}"], "no JSON"),
        (["flows.py:flow", "--input", "@nowhere.json"], "nowhere.json"),
        (["flows.py:flow", "--input", '{"n": 1}', "--run-id", "a/b"], "a/b"),
        (["flows.py:flow", "--timeout", "soon"], "soon"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_has_code_2_and_leaves_nothing(
    fresh: Command, project: Path, words: list[str], said: str
) -> None:
    (project / "broken.json").write_text('{"apiVersion": ')
    (project / "broken.yaml").write_text("a: [1\n")
    (project / "broken.py").write_text("import nothing_like_it\n")
    (project / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    (project / "wrong.py").write_text(
        "from planaria import Workflow\n"
        "flow = Workflow('wrong', steps=[{'id': 'one', 'uses': 'nonsense'}])\n"
    )
    code, _, message = fresh.error("run", *words)

    assert 2 == code
    assert said in message
    assert not fresh.data.exists()


def test_model_without_its_package_is_refused(
    fresh: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planaria.providers._is_installed", lambda module: False)
    code, _, message = fresh.error("run", "flows.py:asking")

    assert 2 == code
    assert "pip install 'pydantic-ai-slim[groq]'" in message
    assert not fresh.data.exists()


def test_model_without_its_key_is_refused_where_the_supervisor_runs(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planaria.providers._is_installed", lambda module: True)
    monkeypatch.setenv("GROQ_API_KEY", "only the client has it")
    code, _, message = command.error("run", "flows.py:asking", "--run-id", "keyless")

    assert 2 == code
    assert "GROQ_API_KEY" in message
    assert 3 == command("show", "keyless")[0]


def test_input_is_read_from_a_file_or_refused(tmp_path: Path) -> None:
    (tmp_path / "input.json").write_text('{"n": 1}')

    assert {"n": 1} == read_input(f"@{tmp_path}/input.json")
    assert read_input(None) is None
    with pytest.raises(UsageError, match="NaN"):
        read_input("[NaN]")


# -- check ---------------------------------------------------------------------------------


def test_check_of_a_sound_workflow(fresh: Command) -> None:
    code, document = fresh.json("check", "flows.py:flow")

    assert 0 == code
    assert {"workflow": "t.echo", "isValid": True, "findings": []} == {
        name: document[name] for name in ("workflow", "isValid", "findings")
    }
    assert document["versionId"].startswith("wv_")


def test_check_lists_findings_with_code_2(fresh: Command, project: Path) -> None:
    wrong = {**DOCUMENT, "steps": [{"id": "one", "uses": "nonsense"}]}
    (project / "wrong.json").write_text(json.dumps(wrong))
    code, document = fresh.json("check", "wrong.json", "--module", "flows.py")

    assert 2 == code
    assert not document["isValid"]
    assert all({"code", "path", "message"} == set(found) for found in document["findings"])
    code, out, _ = fresh("check", "wrong.json", "--module", "flows.py")
    assert 2 == code
    assert document["findings"][0]["code"] in out


def test_check_names_missing_packages_and_keys(
    fresh: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planaria.providers._is_installed", lambda module: False)
    code, document = fresh.json("check", "flows.py:asking")

    assert 2 == code
    found = {found["code"]: found["message"] for found in document["findings"]}
    assert {"model.package_missing", "model.key_missing"} == set(found)
    assert "GROQ_API_KEY" in found["model.key_missing"]


# -- looking -------------------------------------------------------------------------------


def test_runs_lists_the_newest_first(command: Command) -> None:
    code, document = command.json("runs")
    listed = [run["runId"] for run in document]

    assert 0 == code
    assert listed.index("held") < listed.index("bad") < listed.index("done")
    assert {"runId", "status", "workflowId", "admittedAt", "endedAt"} == set(document[0])
    assert ["bad"] == [
        run["runId"]
        for run in command.json("runs", "--status", "failed")[1]
        if run["runId"] == "bad"
    ]
    assert 2 == command("runs", "--status", "lost")[0]
    assert "t.echo" in command("runs")[1]


def test_show_has_the_steps_as_a_tree(command: Command) -> None:
    code, document = command.json("show", "done")

    assert 0 == code
    assert ["one", "two"] == [step["stepId"] for step in document["steps"]]
    assert ("completed", 3) == (document["status"], document["output"])
    text = command("show", "done")[1]
    assert "one tool.call completed" in text and "output: 3" in text
    assert "unknown outcome: die (once)" in command("show", "held")[1]


def test_events_are_one_a_line_and_can_be_chosen(command: Command) -> None:
    _, out, _ = command("events", "done", "--json")
    listed = [json.loads(line) for line in out.splitlines()]

    assert list(range(1, len(listed) + 1)) == [event["sequence"] for event in listed]
    assert "RunCompleted" == listed[-1]["type"]
    _, out, _ = command("events", "done", "--type", "StepC*", "--type", "RunC*", "--json")
    chosen = [json.loads(line)["type"] for line in out.splitlines()]
    assert ["StepCompleted", "StepCompleted", "RunCompleted"] == chosen
    _, out, _ = command("events", "done", "--after", str(len(listed) - 1), "--follow")
    assert 1 == len(out.splitlines())
    assert "RunCompleted" in out


def test_logs_have_what_each_session_printed(command: Command) -> None:
    code, document = command.json("logs", "done")

    assert 0 == code
    assert ["one", "two"] == [log["stepPath"] for log in document["sessions"]]
    assert all("echo says 3\n" in log["text"] for log in document["sessions"])
    session = document["sessions"][1]["sessionId"]
    assert "echo says 3\n" == command("logs", "done", "--session", session)[1]
    assert 3 == command("logs", "done", "--session", "hs_other")[0]


def test_logs_keep_what_a_killed_process_printed(command: Command) -> None:
    _, document = command.json("logs", "held")

    assert ["held"] == [log["stepPath"] for log in document["sessions"]]
    assert "loaded\n" == document["sessions"][0]["text"]


def test_ps_has_the_supervisor_and_its_children(command: Command, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = ["--input", json.dumps(str(gate)), "--run-id", "living", "--detach"]
    command("run", "flows.py:gated", *words)
    _wait_for(command.data, "living", "ProcessStarted")
    code, document = command.json("ps")
    process = next(found for found in document["processes"] if found["runId"] == "living")

    assert 0 == code
    assert {"supervisor", "processes"} == set(document)
    assert ("gate", 1, []) == (
        process["stepPath"],
        process["incarnation"],
        process["descendants"],
    )
    assert "supervisor pid" in command("ps")[1]
    gate.touch()
    assert 0 == command("wait", "living")[0]


def _wait_for(data: Path, run_id: str, event_type: str) -> None:
    with Client(data) as client:
        for event in client.events(run_id, follow=True):
            if event["type"] == event_type:
                return
    raise AssertionError(f"run {run_id!r} has ended without {event_type}")


def test_status_counts_runs(command: Command) -> None:
    code, document = command.json("status")

    assert 0 == code
    assert {"directory", "supervisor", "runs"} == set(document)
    assert document["runs"]["failed"] >= 1
    assert not document["supervisor"]["isEphemeral"]
    assert "stays" in command("status")[1]


@pytest.mark.parametrize("name", ["show", "events", "logs", "wait", "result", "cancel", "resume"])
def test_unknown_run_has_code_3(command: Command, name: str) -> None:
    assert (3, "RunNotFoundError") == command.error(name, "nobody")[:2]


@pytest.mark.parametrize(
    "words",
    [["runs"], ["show", "x"], ["events", "x"], ["logs", "x"], ["ps"], ["status"], ["down"]]
    + [["wait", "x"], ["result", "x"], ["cancel", "x"], ["resume"], ["verify"]],
    ids=" ".join,
)
def test_missing_data_directory_has_code_3_and_isnt_made(fresh: Command, words: list[str]) -> None:
    assert (3, "NotFoundError") == fresh.error(*words)[:2]
    assert not fresh.data.exists()


# -- supervisor and directory ---------------------------------------------------------------


def test_second_supervisor_is_refused_with_code_6(command: Command) -> None:
    assert (6, "DataDirLockedError") == command.error("up", "--detach")[:2]


def test_doctor_looks_at_machine_and_directory(command: Command) -> None:
    code, document = command.json("doctor")
    names = [check["name"] for check in document["checks"]]

    assert 0 == code, document
    assert {"python", "sqlite", "kernel", "disk", "supervisor", "processes"} <= set(names)
    assert all(check["status"] in ("ok", "warning") for check in document["checks"])
    assert "SQLite" not in command("doctor")[2]


# -- faults of our own ---------------------------------------------------------------------


def test_fault_of_ours_has_code_70_and_a_traceback_on_request_only(
    fresh: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def break_down(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("planaria.observation.find_directory", break_down)
    code, _, message = fresh.error("runs")

    assert 70 == code
    assert "a bug" in message and "PLANARIA_DEBUG=1" in message
    monkeypatch.setenv("PLANARIA_DEBUG", "1")
    assert 70 == main(["runs"])
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.slow
def test_reader_that_has_seen_enough_is_no_error(command: Command) -> None:
    words = ["events", "done", "--json", "--data-dir", str(command.data)]
    with start(*words) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        code = process.wait(PATIENCE_SECONDS)
        process.stderr.close()

    assert (141, "") == (code, err)


def test_no_command_is_left_untested() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_cli*.py"))
    missing = [
        function.__name__ for function, _ in COMMANDS if f'"{function.__name__}"' not in text
    ]

    assert [] == missing
