"""What children load besides steps: a loop's function, inner workflows, skills; also by dill."""

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria import UsageError
from planaria.current_source import load_current
from planaria.definition import find_source, load_target
from planaria.protocol.errors import UserCodeError

FLOW = """
from planaria import Done, Orchestrator, Planner, Skill, Workflow, call, tool

@tool(effect="read")
def look(key: str) -> str:
    return "v1" + key

tone = Skill("tone", "How we write.", "skills/to[n]e.md")
inner = Workflow("inner", tools=[look], env=["B"], steps=[call("a", look, args={"key": "x"})])
planned = Workflow("planned", models={"m": "test"}, planner=Planner("m"), skills=[tone], env=["A"])
flow = Workflow("flow", workflows=[inner, planned], env=["A"], steps=[
    {"id": "s", "uses": "workflow.call", "with": {"workflow": "inner", "input": "x"}},
])
lead = Orchestrator("lead", model="test", workflows=[flow])

def supervise(state):
    return Done(["v1", state])
"""
# Runs in a process of its own; the names in `wanted` lead from what is loaded to what is shown.
OPEN = """
import json, sys
from pathlib import Path
from planaria.workers.loading import load_definition
source, modules, within = sys.argv[1:]
found = load_definition(json.loads(source), Path(modules))
if callable(found):
    answer = found(1)
    print(json.dumps([type(answer).__name__, answer.final_output]))
else:
    for name in json.loads(within):
        found = found.workflows[name]
    print(json.dumps([found.id, found.version_id, found.definition_hash, found.skills]))
"""
PREPARE = """
import json
from pathlib import Path
from planaria.definition import prepare_function, prepare_source
source = prepare_source(lead, modules_dir=Path("modules"))
by = prepare_function({function}, beside=lead, modules_dir=Path("modules"))
print(json.dumps([source, by, lead.lock, inner.definition_hash, planned.definition_hash]))
"""


@pytest.fixture(autouse=True)
def import_state() -> Iterator[None]:
    path, modules = list(sys.path), dict(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    write(root, "pyproject.toml", "")
    write(root, "flow.py", FLOW)
    write(root, "skills/to[n]e.md", "Short words.")
    monkeypatch.chdir(root)
    return root


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def run_program(*arguments: str, root: Path, stdin: str | None = None) -> Any:
    done = subprocess.run(
        [sys.executable, *arguments], input=stdin, capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def open_in_child(root: Path, source: dict[str, Any], *within: str) -> Any:
    arguments = [json.dumps(source), str(root / "modules"), json.dumps(within)]
    return run_program("-c", OPEN, *arguments, root=root / "modules")


def prepare(root: Path, function: str, *arguments: str, stdin: str | None = None) -> Any:
    """Returns what PREPARE prints; `function` supervises."""
    program = PREPARE.format(function=function)
    if stdin is not None:
        return run_program("-", root=root, stdin=stdin + program)
    return run_program(*arguments, "-c", "from flow import *\n" + program, root=root)


# -- from files -----------------------------------------------------------------------------------


def test_inner_workflows_are_found_by_the_way_down_to_them(project: Path) -> None:
    source, _, lock, inner_hash, planned_hash = prepare(project, "supervise")
    write(project, "flow.py", FLOW.replace("v1", "v2"))

    inner = open_in_child(project, source, "flow", "inner")
    planned = open_in_child(project, source, "flow", "planned")

    inside = lock["workflows"]["flow"]["lock"]["workflows"]
    assert ["inner", inner_hash, {}] == [inner[0], inner[2], inner[3]]
    assert ["planned", None, planned_hash, {"tone": "skills/to[n]e.md"}] == planned
    assert {"inner", "planned"} == inside.keys()


def test_skills_of_all_are_pinned_with_the_modules(project: Path) -> None:
    source, *_ = prepare(project, "supervise")

    pin = project / "modules" / source["modulesRef"]
    assert "Short words." == (pin / "skills" / "to[n]e.md").read_text()


def test_children_see_the_variables_of_all_that_may_be_started(project: Path) -> None:
    source, by, *_ = prepare(project, "supervise")

    assert ["A", "B"] == source["env"] == by["env"]


def test_skill_that_is_not_there_is_named(project: Path) -> None:
    (project / "skills" / "to[n]e.md").unlink()

    text = "skill 'tone' of 'planned' isn't among the files that are pinned: expected a file "
    with pytest.raises(UsageError, match=re.escape(text)):
        find_source(load_target("flow.py:lead"))


def test_function_is_loaded_from_its_pin(project: Path) -> None:
    _, by, *_ = prepare(project, "supervise")
    write(project, "flow.py", FLOW.replace("v1", "v2"))

    assert ("module", "flow:supervise") == (by["kind"], by["entry"])
    assert ["Done", ["v1", 1]] == open_in_child(project, by)


def test_function_of_a_script_is_loaded_without_running_it(project: Path) -> None:
    program = PREPARE.format(function="supervise")
    write(
        project,
        "script.py",
        FLOW + 'if __name__ == "__main__":\n' + textwrap.indent(program, "    "),
    )

    _, by, *_ = run_program("script.py", root=project)

    assert "script" == by["kind"]
    assert ["Done", ["v1", 1]] == open_in_child(project, by)


@pytest.mark.parametrize("function", ["lambda state: Done([n, state])", "make(n)"])
def test_local_function_travels_by_itself(project: Path, function: str) -> None:
    own = "def make(n):\n    def own(state):\n        return Done([n, state])\n    return own\n"
    made = "n = 7\n" + own
    _, by, *_ = run_program(
        "-c", "from flow import *\n" + made + PREPARE.format(function=function), root=project
    )

    assert "dill" == by["kind"]
    assert ["Done", [7, 1]] == open_in_child(project, by)


# -- from a prompt --------------------------------------------------------------------------------


def test_all_of_a_prompt_travel_together(project: Path) -> None:
    source, by, lock, inner_hash, planned_hash = prepare(project, "supervise", stdin=FLOW)

    assert "dill" == source["kind"] == by["kind"]
    assert ["Done", ["v1", 1]] == open_in_child(project, by)
    lead = open_in_child(project, source)
    assert "lead" == lead[0]
    assert lock["workflows"]["flow"]["definitionHash"] == open_in_child(project, source, "flow")[2]
    assert inner_hash == open_in_child(project, source, "flow", "inner")[2]
    assert [None, planned_hash] == open_in_child(project, source, "flow", "planned")[1:3]
    skill = project / "modules" / source["modulesRef"] / "skills" / "to[n]e.md"
    assert "Short words." == skill.read_text()


def test_what_a_prompt_imports_stays_where_it_is(project: Path) -> None:
    mine = 'from flow import *\nlead = Orchestrator("mine", model="test", workflows=[flow])\n'
    source, *_ = prepare(project, "supervise", stdin=mine)
    write(project, "flow.py", FLOW.replace('env=["A"]', 'description="Later.", env=["A"]'))

    assert "mine" == open_in_child(project, source)[0]
    assert None is open_in_child(project, source, "flow", "planned")[1]


# -- as it is now -------------------------------------------------------------------------------


def describe_run(workflow_id: str, source: dict[str, Any]) -> dict[str, Any]:
    return {"runId": "r", "workflowId": workflow_id, "source": source}


@pytest.mark.parametrize("target", ["flow.py:lead", "flow:lead"])
def test_current_definition_is_found_where_it_was(
    project: Path, target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, _ = find_source(load_target(target))
    for name in [name for name in sys.modules if name.startswith("flow")]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if path not in ("", str(project))]
    write(project, "flow.py", FLOW.replace('Orchestrator("lead"', 'Orchestrator("lead", "Newer."'))
    monkeypatch.chdir(tmp_path)

    found = load_current(describe_run("lead", source))

    assert ("Newer.", ()) == (found.runnable.description, found.within)


def test_current_definition_of_a_sub_run_lies_inside(project: Path) -> None:
    source, _ = find_source(load_target("flow.py:lead"))

    found = load_current(describe_run("inner", {**source, "within": ["flow", "inner"]}))

    assert ("lead", "inner", ("flow", "inner")) == (
        found.workflow.id,
        found.runnable.id,
        found.within,
    )


def test_current_definition_of_a_document_is_its_file(project: Path) -> None:
    document = {
        "apiVersion": "lwir/v1",
        "kind": "Workflow",
        "metadata": {"name": "d"},
        "permissions": {"tools": ["look"]},
        "steps": [{"id": "a", "uses": "tool.call", "with": {"tool": "look", "args": {"key": "x"}}}],
    }
    write(project, "document.json", json.dumps(document))
    source, _ = find_source(load_target("document.json", "flow.py"))

    assert "d" == load_current(describe_run("d", source)).runnable.id

    (project / "document.json").unlink()
    with pytest.raises(UsageError, match="there is no file 'document.json'.* Pass --target"):
        load_current(describe_run("d", source))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"kind": "dill", "entry": "flow"}, "it was made at a prompt"),
        ({}, "nothing is recorded of its place"),
        ({"kind": "file", "entry": "gone.py:x", "file": "gone.py"}, "there is no file"),
        ({"kind": "file", "entry": "flow.py:gone", "file": "flow.py"}, "names no workflow"),
        ({"kind": "module", "entry": "gone:x"}, "there is no module 'gone'"),
        (
            {"kind": "file", "entry": "flow.py:lead", "file": "flow.py", "within": ["gone"]},
            "workflow 'lead' has no workflow 'gone' now",
        ),
    ],
)
def test_definition_that_is_gone_asks_for_a_target(
    project: Path, source: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError, match=f"{text}.* Pass --target"):
        load_current(describe_run("lead", {"root": str(project), **source}))


def test_target_says_where_a_definition_is_now(project: Path) -> None:
    run = describe_run("inner", {"kind": "dill", "entry": "x", "within": ["flow", "inner"]})

    assert ((), "inner") == (
        load_current(run, "flow.py:inner").within,
        load_current(run, "flow.py:lead").runnable.id,
    )
    with pytest.raises(UsageError, match="is workflow 'planned', and run 'r' is one of 'inner'"):
        load_current({**run, "source": {}}, "flow.py:planned")


def test_broken_module_is_said_as_it_is(project: Path) -> None:
    write(project, "flow.py", "1 / 0")
    source = {"kind": "file", "entry": "flow.py:lead", "file": "flow.py", "root": str(project)}

    with pytest.raises(UserCodeError, match="ZeroDivisionError"):
        load_current(describe_run("lead", source))


def test_document_takes_workflows_memory_and_skills_of_its_module(project: Path) -> None:
    write(project, "parts.py", FLOW + 'workflows = [inner]\nmemory = ["org"]\nskills = [tone]\n')
    document = {
        "apiVersion": "lwir/v1",
        "kind": "Workflow",
        "metadata": {"name": "d"},
        "permissions": {"workflows": ["inner"]},
        "steps": [
            {"id": "a", "uses": "workflow.call", "with": {"workflow": "inner", "input": "x"}}
        ],
    }
    write(project, "document.json", json.dumps(document))

    workflow = load_target("document.json", "parts.py")
    source, snapshot = find_source(workflow)

    assert ({"inner"}, ["org"], {"tone": "skills/to[n]e.md"}) == (
        workflow.lock["workflows"].keys(),
        workflow.lock["memory"],
        workflow.skills,
    )
    assert "skills/to[n]e.md" in snapshot.files
    assert ["B"] == source["env"]


@pytest.mark.parametrize("loaded", [True, False])
def test_source_says_whether_its_modules_import_the_agent_library(
    project: Path, loaded: bool
) -> None:
    write(project, "flow.py", "import pydantic_ai\n" * loaded + FLOW)

    source, by, *_ = prepare(project, "supervise")

    assert loaded == source.get("importsAgents", False) == by.get("importsAgents", False)
