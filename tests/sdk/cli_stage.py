"""The stage of the command's tests: a project, data directories, commands that are looked at."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria.cli import main

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

    def succeed(self, *words: str) -> str:
        """Returns stdout of a command that has to end well."""
        code, out, err = self(*words)
        assert 0 == code, err
        return out

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


@contextlib.contextmanager
def start(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*PLANARIA, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
