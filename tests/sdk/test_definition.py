"""A child finds the definition again: by module, by file, by document, or carried by dill."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria import Workflow
from planaria.definition import find_source, load_target, prepare_source
from planaria.prompt_definition import BLOB_NAME
from planaria.protocol.errors import (
    IntegrityError,
    UsageError,
)
from planaria.workers.loading import load_parts

FLOW = """
from planaria import Workflow, call, tool

@tool(effect="read")
def look(key: str) -> str:
    return "v1" + key

flow = Workflow("w", tools=[look], steps=[call("a", look, args={"key": "x"})])
"""
MADE_BY_CALL = FLOW.replace("\nflow = ", "\ndef make():\n    return ")
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


def open_in_child(source: dict[str, Any], modules_dir: Path, key: str = "x") -> str:
    """Returns what the definition's tool gives in a process of its own."""
    program = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from planaria.workers.loading import load_parts\n"
        "source, modules, key = sys.argv[1:]\n"  # loading a file changes sys.argv
        "tool = load_parts(json.loads(source), Path(modules)).tools['look']\n"
        "arguments = tool.load_arguments({'key': key})\n"
        "print(json.dumps(tool.returns.dump(tool(**arguments))))\n"
    )
    arguments = [json.dumps(source), str(modules_dir), key]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        cwd=modules_dir,
    )
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout))


def run_main(root: Path, *arguments: str, stdin: str | None = None) -> dict[str, Any]:
    """Runs a program that prints a source, and returns it; its modules are in root/modules."""
    done = subprocess.run(
        [sys.executable, *arguments], input=stdin, capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


PRINT = """
import json
from pathlib import Path
from planaria.definition import prepare_source
print(json.dumps(prepare_source({name}, modules_dir=Path("modules"))))
"""


@pytest.mark.parametrize("target", ["flow.py:flow", "flow:flow", "pkg/flow.py:flow"])
def test_target_is_loaded_and_found_again_from_its_pin(project: Path, target: str) -> None:
    write(project, "flow.py", FLOW)
    write(project, "pkg/flow.py", FLOW)

    workflow = load_target(target)
    source = prepare_source(workflow, modules_dir=project / "modules")
    for name in ("flow.py", "pkg/flow.py"):
        write(project, name, FLOW.replace("v1", "v2"))

    assert workflow.id == "w"
    assert source["kind"] == ("module" if target == "flow:flow" else "file")
    assert source["cwd"] == str(project)
    assert open_in_child(source, project / "modules") == "v1x"


def test_script_is_found_by_its_own_file(project: Path) -> None:
    write(project, "main.py", FLOW + PRINT.format(name="flow"))

    source = run_main(project, "main.py")

    assert (source["kind"], source["entry"], source["file"]) == (
        "script",
        "main.py:flow",
        "main.py",
    )


def test_imported_definition_is_found_in_its_module_before_the_main_program(
    project: Path,
) -> None:
    write(project, "flows/triage.py", FLOW)
    write(project, "main.py", "from flows.triage import flow\n" + PRINT.format(name="flow"))

    source = run_main(project, "main.py")

    assert (source["kind"], source["entry"]) == ("module", "flows.triage:flow")
    assert open_in_child(source, project / "modules") == "v1x"


def test_main_module_of_a_package_is_found_by_its_name(project: Path) -> None:
    write(project, "flows/__init__.py", "")
    write(project, "flows/tools.py", FLOW)
    step = "call('a', look, args={'key': 'x'})"
    main = f"from .tools import *\nflow = Workflow('m', tools=[look], steps=[{step}])\n"
    ending = PRINT.format(name="flow").replace("print", "if __name__ == '__main__': print")
    write(project, "flows/go.py", main + ending)

    source = run_main(project, "-m", "flows.go")

    assert (source["kind"], source["entry"]) == ("module", "flows.go:flow")
    assert open_in_child(source, project / "modules") == "v1x"


@pytest.mark.parametrize("guard", ["", "if __name__ == '__main__':\n    "])
def test_workflow_that_loading_would_not_define_is_carried_by_dill(
    project: Path, guard: str
) -> None:
    name = "flow" if guard else "make()"
    main = MADE_BY_CALL + (f"{guard}flow = make()\n" if guard else "") + PRINT.format(name=name)
    write(project, "main.py", main)

    source = run_main(project, "main.py")
    (project / "main.py").unlink()

    assert (source["kind"], source["file"]) == ("dill", BLOB_NAME)
    assert open_in_child(source, project / "modules") == "v1x"


PROMPT = """
import datetime, enum
from pydantic import BaseModel, Field, field_validator
from planaria import Workflow, call, tool

LIMIT = 30

class Kind(enum.Enum):
    A = "a"
    @property
    def loud(self):
        return self.value.upper()

class Part(BaseModel):
    kind: Kind = Kind.A
    more: "list[Part]" = Field(default_factory=lambda: [])

class Key(BaseModel):
    day: datetime.date
    part: dict[str, Kind]
    @field_validator("day")
    @classmethod
    def check(cls, day):
        assert day.day < LIMIT, "too late"
        return day

@tool(effect="read")
def other(day: datetime.date) -> str:
    return day.isoformat()

@tool(effect="read")
def look(key: str) -> str:
    try:
        Key(day="2024-05-31", part={})
    except ValueError:
        made = Key(day=key, part={"p": "a"})
        part = Part.model_validate({"more": [{"kind": "a"}]})
        return other(made.day) + made.part["p"].loud + part.more[0].kind.value

flow = Workflow(
    "p", input=Key, output=Part, tools=[other, look], steps=[call("a", look, args={"key": "x"})]
)
"""


def test_definition_made_at_a_prompt_travels_with_its_models(project: Path) -> None:
    text = PROMPT.replace("output=Part", "output=Key") + PRINT.format(name="flow")

    source = run_main(project, "-", stdin=text)

    assert source["kind"] == "dill"
    assert open_in_child(source, project / "modules", "2024-05-06") == "2024-05-06Aa"


def test_carried_definition_that_was_changed_is_not_opened(project: Path) -> None:
    source = run_main(project, "-", stdin=FLOW + PRINT.format(name="flow"))
    blob = project / "modules" / source["modulesRef"] / BLOB_NAME
    blob.write_bytes(blob.read_bytes() + b"x")

    with pytest.raises(IntegrityError, match="not what was stored"):
        load_parts(source, project / "modules")


def test_what_can_not_travel_is_refused_with_the_way_out(project: Path) -> None:
    text = """
    import threading
    from planaria import Workflow, call, tool
    lock = threading.Lock()

    @tool(effect="read")
    def look(key: str) -> str:
        with lock:
            return (x for x in range(3)) and key
    state = (x for x in range(3))

    @tool(effect="read")
    def bad() -> int:
        return next(state)

    flow = Workflow("w", tools=[bad], steps=[call("a", bad)])
    from planaria.definition import find_source
    from planaria.protocol.errors import UsageError
    try:
        find_source(flow)
    except UsageError as error:
        import json
        print(json.dumps({"text": str(error)}))
    """

    said = run_main(project, "-", stdin=textwrap.dedent(text))["text"]

    assert said.startswith("workflow 'w' stands under no name that a child process could import")
    assert said.endswith("Assign it to a name at the top level of a file")


def test_missing_dill_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dill", None)
    workflow = Workflow("w", steps=[{"id": "a", "uses": "code.run", "with": {"source": "1"}}])

    with pytest.raises(UsageError, match="dill isn't installed to carry it there"):
        find_source(workflow)


def test_document_finds_tools_and_models_in_its_module(project: Path) -> None:
    write(project, "parts.py", FLOW + "models = {'fast': 'test'}\nenv = ['TOKEN']\n")
    write(project, "flow.json", json.dumps(DOCUMENT))

    workflow = load_target("flow.json", "parts.py")
    source = prepare_source(workflow, modules_dir=project / "modules")
    write(project, "parts.py", "")

    assert workflow.models == {"fast": "test", "openai:gpt-5": "openai:gpt-5"}
    assert (source["kind"], source["file"], source["env"]) == ("lwir", "parts.py", ["TOKEN"])
    del sys.modules["parts__planaria"]
    found: Any = load_parts(source, project / "modules")
    assert found.models == workflow.models
    assert open_in_child(source, project / "modules") == "v1x"


def test_document_of_code_only_needs_no_module(project: Path) -> None:
    step = "{id: a, uses: code.run, with: {source: '1'}}"
    write(
        project,
        "flow.yaml",
        f"apiVersion: lwir/v1\nkind: Workflow\nmetadata: {{name: c}}\nsteps: [{step}]\n",
    )

    source = prepare_source(load_target("flow.yaml"), modules_dir=project / "modules")

    found: Any = load_parts(source, project / "modules")
    assert (found.tools, found.models) == ({}, {})


def test_target_of_a_call_has_to_be_the_workflow(project: Path) -> None:
    write(project, "flow.py", FLOW + "other = make = flow\n")
    workflow = load_target("flow.py:flow")

    source, _ = find_source(workflow, target="flow.py:other")

    assert source["entry"] == "flow.py:other"
    with pytest.raises(UsageError, match="the target 'flow:flow' is <workflow w wv_.*>, not the"):
        find_source(workflow, target="flow:flow")
    with pytest.raises(UsageError, match="there is no file"):
        find_source(workflow, target="gone.py:flow")


def test_package_folder_with_its_own_marker_is_pinned_under_its_name(tmp_path: Path) -> None:
    root = tmp_path / "pkg"
    write(root, "pyproject.toml", "")
    write(root, "flow.py", FLOW)
    sys.path.insert(0, str(tmp_path))

    source = prepare_source(load_target("pkg.flow:flow"), modules_dir=tmp_path / "modules")

    assert source["root"] == str(tmp_path)
    assert {"pin": "."} in source["paths"]


def test_installed_definition_stays_live(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "site-packages"
    write(site, "flows.py", FLOW)
    sys.path.insert(0, str(site))

    source, snapshot = find_source(load_target("flows:flow"))

    assert snapshot.files == {}
    assert {"live": str(site)} in source["paths"]
