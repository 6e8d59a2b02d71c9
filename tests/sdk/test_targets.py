"""A target names a workflow; one that doesn't is an error that says why."""

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria.definition import collect_parts, load_target
from planaria.protocol.errors import UsageError, UserCodeError, WorkflowInvalidError

FLOW = """
from planaria import Workflow, call, tool

@tool(effect="read")
def look(key: str) -> str:
    return "v1" + key

flow = Workflow("w", tools=[look], steps=[call("a", look, args={"key": "x"})])
"""
DOCUMENT = {
    "apiVersion": "lwir/v1",
    "kind": "Workflow",
    "metadata": {"name": "d"},
    "permissions": {"tools": ["look"], "models": ["fast", "openai:gpt-5"]},
    "steps": [
        {"id": "a", "uses": "tool.call", "with": {"tool": "look", "args": {"key": "x"}}},
        {"id": "b", "uses": "ai.generate", "with": {"model": "fast", "prompt": "p"}},
    ],
}


@pytest.fixture(autouse=True)
def import_state() -> Iterator[None]:
    """Gives the import state back as it was."""
    path, meta, argv = list(sys.path), list(sys.meta_path), list(sys.argv)
    modules, bytecode = dict(sys.modules), sys.dont_write_bytecode
    yield
    sys.path[:], sys.meta_path[:], sys.argv[:] = path, meta, argv
    sys.dont_write_bytecode = bytecode
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "pyproject.toml").write_text("")
    monkeypatch.chdir(root)
    return root


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def test_document_without_its_module_has_findings(project: Path) -> None:
    write(project, "flow.json", json.dumps(DOCUMENT))

    with pytest.raises(WorkflowInvalidError, match="the definition has no tool 'look'"):
        load_target("flow.json")


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        ("flow", UsageError, "'flow' names no workflow: write path.py:name, module:name"),
        ("gone.py:flow", UsageError, "there is no file"),
        ("gone:flow", UsageError, "there is no module 'gone' on the import path"),
        ("flow.py:flw", UsageError, "nothing of that name. The workflows of 'flow.py': flow"),
        ("flow.py:look", UsageError, "it is a Tool. The workflows of 'flow.py': flow"),
        (
            "bad.py:x",
            UserCodeError,
            r"loading '.*bad.py' failed at .*bad.py, line 2: ValueError: no",
        ),
        ("syntax.py:x", UserCodeError, "failed at .*syntax.py, line 1: SyntaxError"),
        ("exits.py:x", UserCodeError, "failed at .*exits.py, line 1: SystemExit"),
        ("imports:x", UserCodeError, "line 1: ModuleNotFoundError: No module named 'nowhere'"),
        ("runs:x", UserCodeError, r"module 'runs' calls run\(\) while it is imported"),
        ("gone.json", UsageError, "can't be read: No such file"),
    ],
)
def test_target_that_names_no_workflow_is_an_error_that_says_why(
    project: Path, target: str, error: type[Exception], text: str
) -> None:
    write(project, "flow.py", FLOW)
    write(project, "bad.py", "\nraise ValueError('no')\n")
    write(project, "syntax.py", "def\n")
    write(project, "exits.py", "raise SystemExit(3)\n")
    write(project, "imports.py", "import nowhere\n")
    write(project, "runs.py", "from planaria.loading_guard import raise_if_loading as r\nr()\n")

    with pytest.raises(error, match=text):
        load_target(target)


def test_script_without_a_guard_is_loaded_up_to_its_run(project: Path) -> None:
    text = FLOW + "from planaria import run\nrun(flow)\nraise AssertionError('not reached')\n"
    write(project, "flow.py", text)

    assert load_target("flow.py:flow").id == "w"


def test_module_is_only_for_documents(project: Path) -> None:
    write(project, "flow.py", FLOW)
    write(project, "parts.py", "models = 3\n")
    write(project, "flow.json", json.dumps(DOCUMENT))

    with pytest.raises(UsageError, match="--module goes with an LWIR file"):
        load_target("flow.py:flow", "parts.py")
    with pytest.raises(UsageError, match="`models` in .*parts.py' is an int; expected a map"):
        load_target("flow.json", "parts.py")
    assert collect_parts(None).tools == {}
