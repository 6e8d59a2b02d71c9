"""The commands that go back in a run's history, before there is a supervisor that answers them."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria import log_reader
from planaria.cli import main
from planaria.client import Client
from planaria.history import find_user

FLOW = """
from planaria import Workflow, call, tool

@tool(effect="read")
def look(key: str) -> str:
    return key

flow = Workflow("flow", tools=[look], steps=[call("a", look, args={"key": "x"})])
"""
Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "d").mkdir()
    monkeypatch.chdir(tmp_path)
    path, names = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - names:
        del sys.modules[name]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, project: Path) -> list[tuple[str, dict[str, Any]]]:
    """What was asked of a supervisor that has one run of the flow, and says yes to all."""
    source = {"kind": "file", "entry": "flow.py:flow", "file": "flow.py", "root": str(project)}
    answers: dict[str, Any] = {
        "ping": {"pid": 1},
        "get_run": {"runId": "r", "workflowId": "flow", "source": source, "status": "failed"},
        "retry_run": {},
        "fork_run": {"runId": "n"},
    }
    requests: list[tuple[str, dict[str, Any]]] = []

    def ask(self: Client, operation: str, **arguments: Any) -> Any:
        wait = {name: arguments.pop(name, None) for name in ("timeout", "stop_fd")}
        assert [None, None] == list(wait.values())
        requests.append((operation, arguments))
        if operation == "wait_run":
            usage = {"test": {"requests": 1}}
            ended = {"runId": arguments["runId"], "status": "completed", "output": 5}
            return {**ended, "usage": usage, "costUsd": 0.25}
        return answers[operation]

    monkeypatch.setattr(Client, "ask", ask)
    return requests


@pytest.fixture
def command(project: Path, capfd: pytest.CaptureFixture[str]) -> Ask:
    def ask(*words: str) -> tuple[int, Any]:
        capfd.readouterr()
        code = main([*words, "--json", "--data-dir", str(project / "d")])
        return code, json.loads(capfd.readouterr().out)

    return ask


def only(asked: list[tuple[str, dict[str, Any]]], operation: str) -> dict[str, Any]:
    (arguments,) = [arguments for name, arguments in asked if name == operation]
    return arguments


def test_retry_asks_and_waits_for_the_run(asked: Any, command: Ask) -> None:
    code, shown = command("retry", "r", "--reason", "again")

    assert (0, 5, 0.25) == (code, shown["output"], shown["costUsd"])
    assert {"runId": "r", "by": find_user(), "reason": "again"} == only(asked, "retry_run")


def test_retry_with_the_current_source_brings_it(asked: Any, command: Ask) -> None:
    command("retry", "r", "--source", "current", "--by", "ann")

    request = only(asked, "retry_run")
    assert ("ann", "flow.py:flow") == (request["by"], request["source"]["entry"])
    assert "flow" == request["lock"]["lwir"]["metadata"]["name"]


def test_fork_asks_with_its_changes_and_waits_for_the_new_run(
    asked: Any, command: Ask, project: Path
) -> None:
    (project / "schema.json").write_text('{"type": "integer"}')

    code, shown = command(
        *["fork", "r", "--at", "4", "--input", "null", "--model", "m=openai:gpt-5"],
        *["--model", "n=test", "--instructions", "Be brief.", "--output-schema", "schema.json"],
        *["--run-id", "n"],
    )

    assert (0, "n", 5) == (code, shown["runId"], shown["output"])
    assert {
        "fromRunId": "r",
        "runId": "n",
        "by": find_user(),
        "atSequence": 4,
        "changes": {
            "input": None,
            "models": {"m": "openai:gpt-5", "n": "test"},
            "instructions": "Be brief.",
            "outputSchema": {"type": "integer"},
        },
    } == only(asked, "fork_run")


def test_fork_without_changes_names_a_run_of_its_own(asked: Any, command: Ask) -> None:
    command("fork", "r", "--source", "current", "--target", "flow.py:flow")

    request = only(asked, "fork_run")
    assert re.fullmatch("run_[0-9a-f]{16}", request["runId"])
    assert ({}, "flow.py:flow") == (request["changes"], request["source"]["entry"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["retry", "r", "--source", "old"], "--source 'old' is none"),
        (["retry", "r", "--target", "flow.py:flow"], "go with --source current"),
        (["fork", "r", "--model", "fast"], "--model 'fast' says no slot and model"),
        (["fork", "r", "--model", "m=test", "--model", "m=a:b"], "gives slot 'm' two models"),
        (["fork", "r", "--model", "m=gpt"], "model slot 'm' holds 'gpt'"),
        (["fork", "r", "--input", "x"], "--input is no JSON"),
        (["fork", "r", "--output-schema", "gone"], "--output-schema file 'gone' can't be read"),
        (["fork", "r", "--run-id", "a/b"], "no legal run id"),
        (["fork", "r", "--at", "0"], "--at"),
        (["replay", "a/b"], "no legal run id"),
        (["retry", "r", "--source", "current", "--target", "gone.py:x"], "there is no file"),
    ],
)
def test_what_can_not_be_asked_for_has_code_2(
    asked: Any, command: Ask, words: list[str], text: str
) -> None:
    code, shown = command(*words)

    assert 2 == code
    assert text in shown["error"]["message"]
    assert not [name for name, _ in asked if name in ("retry_run", "fork_run")]


def test_directory_that_is_not_there_has_code_3(command: Ask, project: Path) -> None:
    (project / "d").rmdir()

    for words in (["retry", "r"], ["fork", "r"], ["replay", "r"]):
        assert 3 == command(*words)[0]


def test_replay_shows_the_run_that_the_reader_rebuilds(
    command: Ask, project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    read: list[tuple[str, ...]] = []
    run = {
        **{"runId": "r", "status": "running", "workflowId": "flow", "steps": []},
        **{"admittedAt": 0, "endedAt": None, "events": 3, "usage": {}},
    }

    def supervisor_command(*arguments: str) -> list[str]:
        read.append(arguments)
        return [sys.executable, "-c", f"print({json.dumps(run)!r})"]

    monkeypatch.setattr(log_reader, "supervisor_command", supervisor_command)

    assert (0, run) == command("replay", "r", "--at", "3")
    assert 0 == main(["replay", "r", "--data-dir", str(project / "d")])
    assert "r  running  flow" in capfd.readouterr().out
    place = ("--", str(project / "d"), "r")
    assert [("replay", "--at=3", *place), ("replay", *place)] == read
