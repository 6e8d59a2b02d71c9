"""Every command against real supervisors: what it writes, its JSON, its exit codes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from planaria.cli import COMMANDS, main
from planaria.client import Client
from planaria.command_line import read_input
from planaria.protocol.errors import UsageError

WORKFLOWS = """
import asyncio, os, signal
from planaria import Workflow, call, tool

print("loaded")

@tool(effect="read")
def echo(n: int) -> int:
    print("echo says", n)
    return n

@tool(effect="read")
def fail() -> None:
    raise ValueError("no such ticket")

@tool(effect="once")
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@tool(effect="read")
async def pass_gate(path: str) -> str:
    while not os.path.exists(path):
        await asyncio.sleep(0.01)
    return "passed"

flow = Workflow("t.echo", input=dict[str, int], tools=[echo], steps=[
    call("one", "echo", args={"n": "{{ input.n }}"}),
    call("two", "echo", args={"n": "{{ steps.one.output }}"}, needs=["one"]),
])
failing = Workflow("t.fail", tools=[fail], steps=[call("bad", "fail", args={})])
dying = Workflow("t.die", tools=[die], steps=[call("held", "die", args={})])
gated = Workflow("t.gate", input=str, tools=[pass_gate], steps=[
    call("gate", "pass_gate", args={"path": "{{ input }}"}),
])
asking = Workflow("t.ask", models={"fast": "groq:some-model"}, steps=[
    {"id": "ask", "uses": "ai.generate", "with": {"model": "fast", "prompt": "hello"}},
])
"""
DOCUMENT = {
    "apiVersion": "lwir/v1",
    "kind": "Workflow",
    "metadata": {"name": "t.document"},
    "permissions": {"tools": ["echo"]},
    "steps": [{"id": "one", "uses": "tool.call", "with": {"tool": "echo", "args": {"n": 5}}}],
}
PATIENCE_SECONDS = 40.0
PLANARIA = [sys.executable, "-P", "-m", "planaria"]


class Command:
    """Runs commands in this process, in one folder, on one data directory."""

    def __init__(self, data: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.data = data
        self.capture = capture

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Returns exit code, stdout and stderr."""
        self.capture.readouterr()
        code = main([*words, "--data-dir", str(self.data)])
        shown = self.capture.readouterr()
        assert "Traceback" not in shown.err
        return code, shown.out, shown.err

    def json(self, *words: str) -> tuple[int, Any]:
        """Returns exit code and the one document on stdout."""
        code, out, _ = self(*words, "--json")
        return code, json.loads(out)

    def error(self, *words: str) -> tuple[int, str, str]:
        """Returns exit code, class and message of a command that fails, both ways."""
        code, document = self.json(*words)
        error = document["error"]
        again, out, err = self(*words)
        assert (code, "") == (again, out)
        assert error["message"] in err
        return code, error["class"], error["message"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "pyproject.toml").touch()
    (folder / "flows.py").write_text(WORKFLOWS)
    (folder / "document.json").write_text(json.dumps(DOCUMENT))
    search_path, names = list(sys.path), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("GROQ_API_KEY", raising=False)
        yield folder
    sys.path[:] = search_path
    for name in [name for name in sys.modules if name not in names and "flows" in name]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def served(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory with a supervisor that `planaria up` runs, and one run of each end."""
    data = tmp_path_factory.mktemp("data") / "d"
    with up(data) as facts:
        assert os.getpid() != facts["pid"]
        for target, run_id, code in (
            ("flows.py:flow", "done", 0),
            ("flows.py:failing", "bad", 1),
            ("flows.py:dying", "held", 5),
        ):
            given = ["--input", '{"n": 3}'] if run_id == "done" else []
            words = [target, "--run-id", run_id, "--data-dir", str(data), "--json", *given]
            assert code == main(["run", *words])
        yield data


@contextlib.contextmanager
def up(data: Path, *words: str) -> Iterator[dict[str, Any]]:
    """Runs `planaria up` in the foreground and gives what it announces."""
    command = [*PLANARIA, "up", "--json", "--data-dir", str(data), *words]
    with (data.parent / "up.err").open("ab") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)


@pytest.fixture
def command(served: Path, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(served, capfd)


@pytest.fixture
def fresh(project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Command:
    """Commands on a data directory that isn't there yet."""
    return Command(tmp_path / "d", capfd)


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
    if "--run-id" not in words:  # a supervisor refuses that one
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
def test_missing_data_directory_has_code_3_and_isnt_made(
    fresh: Command, words: list[str]
) -> None:
    assert (3, "NotFoundError") == fresh.error(*words)[:2]
    assert not fresh.data.exists()


# -- the data directory --------------------------------------------------------------------


def test_foreign_data_directory_has_code_6_and_stays_as_it_is(fresh: Command) -> None:
    fresh.data.mkdir()
    (fresh.data / "thesis.txt").write_text("mine")
    run = ["run", "flows.py:flow", "--input", '{"n": 1}']

    assert (6, "DataDirectoryError") == fresh.error(*run)[:2]
    assert (6, "DataDirectoryError") == fresh.error("runs")[:2]
    assert 6 == fresh("doctor")[0]
    assert ["thesis.txt"] == os.listdir(fresh.data)


def test_second_supervisor_is_refused_with_code_6(command: Command) -> None:
    assert (6, "DataDirLockedError") == command.error("up", "--detach")[:2]


def test_look_after_the_supervisor_has_ended(fresh: Command) -> None:
    given = ["--input", '{"n": 2}', "--run-id", "over"]
    assert 0 == fresh("run", "flows.py:flow", *given, "--quiet")[0]

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
    assert 0 == fresh("run", "flows.py:flow", *given, "--quiet")[0]
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


def test_doctor_looks_at_machine_and_directory(command: Command) -> None:
    code, document = command.json("doctor")
    names = [check["name"] for check in document["checks"]]

    assert 0 == code, document
    assert {"python", "sqlite", "kernel", "disk", "supervisor", "processes"} <= set(names)
    assert all(check["status"] in ("ok", "warning") for check in document["checks"])
    assert "SQLite" not in command("doctor")[2]


# -- supervisors that end ------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_leaves_the_run_open_and_resume_carries_it_on(
    fresh: Command, project: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    words = ["run", "flows.py:gated", "--input", json.dumps(str(gate)), "--run-id", "left"]
    with _start(*words, "--data-dir", str(fresh.data)) as process:
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
        assert 0 == fresh("run", "flows.py:gated", *given, "--detach")[0]
        os.kill(first["pid"], signal.SIGSTOP)
        code, second = fresh.json("up", "--detach", "--take-over")
        assert 0 == code
        assert first["pid"] != second["pid"]

        gate.touch()
        assert (0, "passed") == _output(fresh.json("wait", "long"))
        code, document = fresh.json("down")
        assert (0, second["pid"]) == (code, document["pid"])
        assert 0 == fresh("verify")[0]


@pytest.mark.slow
def test_resume_carries_every_open_run_on_after_a_kill(fresh: Command, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with up(fresh.data) as facts:
        for run_id in ("a", "b"):
            given = ["--input", json.dumps(str(gate)), "--run-id", run_id, "--detach"]
            assert 0 == fresh("run", "flows.py:gated", *given)[0]
        os.kill(facts["pid"], signal.SIGKILL)
    gate.touch()
    code, document = fresh.json("resume")

    assert 0 == code
    assert {"a": "completed", "b": "completed"} == {
        run["runId"]: run["status"] for run in document["runs"]
    }


def _output(answer: tuple[int, Any]) -> tuple[int, Any]:
    return answer[0], answer[1].get("output")


@contextlib.contextmanager
def _start(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*PLANARIA, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _read_until(stream: IO[str], text: str) -> None:
    for line in stream:
        if text in line:
            return
    raise AssertionError(f"the command has ended without saying {text!r}")


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
    with _start(*words) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        code = process.wait(PATIENCE_SECONDS)
        process.stderr.close()

    assert (141, "") == (code, err)


def test_no_command_is_left_untested() -> None:
    text = Path(__file__).read_text()
    missing = [function.__name__ for function, _ in COMMANDS if f'"{function.__name__}"' not in text]

    assert [] == missing
