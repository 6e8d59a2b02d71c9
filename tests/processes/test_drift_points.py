"""Sources are edited while runs wait: what is drift is refused by name, the rest goes on pinned."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from drift_programs import DRIFTING, FAILING, FLAT, LAZY, SRC_LAYOUT
from harness import DEADLINE_SECONDS, World, worlds

from planaria.client import Client
from planaria.definition import load_target
from planaria.protocol.errors import CapabilityDriftError, RunFailedError

pytestmark = pytest.mark.slow

EXIT_DRIFT = 4
INPUTS: dict[str, Any] = {"flow": {"n": 1}, "planned": None, "boss": None}

# What is edited -> (the definition, the old text, the new one, the fields that say so).
DRIFTS: dict[str, tuple[str, str, str, str]] = {
    "model slot": ("flow", 'model="m", prompt', 'model="w", prompt', "worker 'b': modelSlotId"),
    "instructions": ("flow", "Be kind.", "Be brief.", "worker 'b': systemPromptHash"),
    "docstring of a tool": ("flow", "Holds on.", "Lets go.", "worker 'a': allowedToolsHash"),
    "signature of a tool": (
        "flow",
        "hold(n: int)",
        "hold(n: int, m: int = 0)",
        "worker 'a': allowedToolsHash",
    ),
    "effect of a tool": (
        "flow",
        '"idempotent")\ndef hold',
        '"once")\ndef hold',
        "worker 'a': allowedToolsHash",
    ),
    "fixer's instructions": ("flow", "Be careful.", "Be bold.", "fixer 'c': fixerSystemHash"),
    "fixer's attempts": ("flow", '"maxAttempts": 2', '"maxAttempts": 3', "fixerMaxAttempts: 2 → 3"),
    "memory stores": ("flow", '["org", "workflow"]', '["workflow"]', "memoryStoreIds"),
    "description of a skill": ("flow", "How to write.", "How to sing.", "skillsHash"),
    "planner's instructions": ("planned", "Plan well.", "Plan ill.", "planner: systemPromptHash"),
    "planner's tools": ("planned", "Holds on.", "Lets go.", "planner: globalToolsHash"),
    "orchestrator's workflows": (
        "boss",
        '[make("one"), make("two")]',
        '[make("one")]',
        "orchestrator: availableWorkflows",
    ),
    "one of orchestrator's workflows": (
        "boss",
        "A part.",
        "A piece.",
        "orchestrator: availableWorkflows",
    ),
    "sub-runs at once": ("boss", "runs=7", "runs=8", "maxConcurrentSubRuns: 7 → 8"),
    "orchestrator's instructions": (
        "boss",
        "Lead well.",
        "Lead ill.",
        "orchestrator: systemPromptHash",
    ),
}
# What is edited and is no drift -> the definition, the old text, the new one.
SAME = {
    "order of tools": ("flow", "tools=[hold, put],\n", "tools=[put, hold],\n"),
    "order of model slots": (
        "flow",
        '"m": FunctionModel(answer), "w": FunctionModel(answer)',
        '"w": FunctionModel(answer), "m": FunctionModel(answer)',
    ),
    "order of memory stores": ("flow", '"org", "workflow"', '"workflow", "org"'),
    "order of skills": (
        "flow",
        'Skill("style", "How to write.", "style.md"), Skill("tone", "How to speak.", "tone.md")',
        'Skill("tone", "How to speak.", "tone.md"), Skill("style", "How to write.", "style.md")',
    ),
    "order of workflows": ("boss", 'make("one"), make("two")', 'make("two"), make("one")'),
    "body of a tool": ("flow", 'return f"old {n}"', 'return f"new {n}"'),
}


@dataclass(slots=True)
class Waiting:
    """Three runs that wait in a tool, each of another kind of definition."""

    world: World
    client: Client

    def load(self, name: str, source: str = DRIFTING) -> Any:
        """Writes the module with this text and returns what stands under a name in it."""
        self.world.load(source)
        return load_target(f"{self.world.folder}/project/flow.py:{name}")

    def begin(self, name: str, source: str = DRIFTING) -> str:
        """Starts or joins a run with a definition as this text has it."""
        return self.client.start(self.load(name, source), INPUTS[name], run_id=name)

    def look(self) -> tuple[Any, Any, Any]:
        """Returns what a refusal may not change: events, processes, what was done."""
        processes = [
            (one["pid"], one["incarnation"])
            for one in self.client.processes()
            if one["status"] == "bound"  # what has ended may take a moment to be gone
        ]
        return self.world.all_events(), processes, self.world.executions()


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    found = worlds(tmp_path_factory.mktemp("drift"))
    world = next(found)
    project = world.folder / "project"
    project.mkdir()
    for name in ("style", "tone"):
        (project / f"{name}.md").write_text(f"the {name}")
    world.start()
    waiting = Waiting(world, world.client(start_if_missing=False))
    for name in INPUTS:
        waiting.begin(name)
    world.wait_ledger("hold", len(INPUTS))
    yield waiting
    for _ in found:
        pass


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from worlds(tmp_path)


def edit(old: str, new: str) -> str:
    assert DRIFTING.count(old) >= 1, f"{old!r} isn't in the source"
    return DRIFTING.replace(old, new)


@pytest.mark.parametrize("what", DRIFTS)
def test_edit_that_is_drift_is_refused_by_its_field_and_changes_nothing(
    waiting: Waiting, what: str
) -> None:
    name, old, new, field = DRIFTS[what]
    before = waiting.look()

    with pytest.raises(CapabilityDriftError) as caught:
        waiting.begin(name, edit(old, new))

    assert field in str(caught.value) and "→" in str(caught.value)
    assert name in str(caught.value)
    assert before == waiting.look()
    assert name == waiting.begin(name)  # restored, it is joined
    assert before == waiting.look()


@pytest.mark.parametrize("what", SAME)
def test_edit_that_is_no_drift_joins_the_run(waiting: Waiting, what: str) -> None:
    name, old, new = SAME[what]
    before = waiting.look()

    assert name == waiting.begin(name, edit(old, new))
    assert before == waiting.look()


def test_contents_of_memory_and_bodies_of_skills_are_no_drift(waiting: Waiting) -> None:
    before = waiting.look()
    store = waiting.world.directory / "memory" / "workflows" / "drifting"
    store.mkdir(parents=True, exist_ok=True)
    (store / "found.txt").write_text("something new")
    (waiting.world.folder / "project" / "style.md").write_text("another style")

    assert "flow" == waiting.begin("flow")
    assert before == waiting.look()


def test_edited_body_is_warned_of_with_the_way_to_new_code(
    waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "planaria"):
        waiting.begin("flow", edit('return f"old {n}"', 'return f"new {n}"'))

    assert "goes on with the code that it was admitted with" in caplog.text
    assert "--source current" in caplog.text


def test_command_ends_with_4_at_drift(waiting: Waiting) -> None:
    waiting.load("flow", edit("Holds on.", "Lets go."))
    before = waiting.look()
    target = f"{waiting.world.folder}/project/flow.py:flow"
    words = ("run", target, "--run-id", "flow", "--input", '{"n": 1}')

    done = run_command(waiting.world, *words, loads="pydantic_ai")  # its program looks for it

    assert EXIT_DRIFT == done.returncode, done.stderr
    assert "allowedToolsHash" in done.stderr and "→" in done.stderr
    assert before == waiting.look()


def test_restored_source_lets_the_runs_go_on_as_pinned(waiting: Waiting) -> None:
    """The last one of those that share the runs: they end."""
    for name in INPUTS:
        waiting.begin(name)
    waiting.load("flow", edit('return f"old {n}"', 'return f"new {n}"'))
    waiting.world.mark("open")

    outputs = {name: waiting.client.wait(name, timeout=DEADLINE_SECONDS).output for name in INPUTS}

    assert {"flow": ["old 1", 8], "planned": "old 2", "boss": "old 3"} == outputs
    held = [one["call"] for one in waiting.world.executions() if one["tool"] == "hold"]
    assert 3 == len(held) == len(set(held))


def run_command(
    world: World, *words: str, loads: str = "json"
) -> "subprocess.CompletedProcess[str]":
    """Runs `planaria` in a process of its own, which has loaded a library before."""
    start = f"import sys, {loads}; from planaria.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", start, *words, "--data-dir", str(world.directory)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, cwd=world.folder
    )


# -- new code, asked for ----------------------------------------------------------------------


def test_retry_and_fork_with_the_current_source_take_the_new_code(world: World) -> None:
    world.start()
    client = world.client(start_if_missing=False)
    workflow = world.load(FAILING)
    for run_id in ("r", "s"):
        client.start(workflow, run_id=run_id)
        with pytest.raises(RunFailedError, match="not yet"):
            client.wait(run_id, timeout=DEADLINE_SECONDS)
    world.load(FAILING.replace('raise ValueError("not yet")', 'return f"new {n}"'))

    retried = run_command(world, "retry", "r")
    renewed = run_command(world, "retry", "r", "--source", "current")
    forked = run_command(world, "fork", "s", "--source", "current")

    assert 0 != retried.returncode and "not yet" in retried.stderr
    assert 0 == renewed.returncode and "new 4" in renewed.stdout, renewed.stderr
    assert 0 == forked.returncode and "new 4" in forked.stdout, forked.stderr
    assert "failed" == client.status("s")["status"]
    assert 2 == len(world.executions())  # `put` once in each run: the fork has inherited it


# -- projects of the shapes that people have --------------------------------------------------


def write_project(folder: Path, files: dict[str, str], word: str) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{word}", word))


def test_projects_whose_files_are_all_edited_go_on_with_the_old_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"flat": FLAT, "laid": SRC_LAYOUT, "lazy": LAZY}
    for name, files in shapes.items():
        write_project(world.folder / name, files, "old")
    monkeypatch.syspath_prepend(str(world.folder / "laid" / "src"))
    targets = {
        "flat": f"{world.folder}/flat/flat_flow.py:flow",
        "laid": "laid.flow:flow",
        "lazy": f"{world.folder}/lazy/lazy_flow.py:flow",
    }
    world.start()
    client = world.client(start_if_missing=False)
    for name, target in targets.items():
        client.start(load_target(target), run_id=name)
    world.wait_ledger("hold", len(shapes))
    client.close()

    for name, files in shapes.items():
        write_project(world.folder / name, files, "new")
        for file in files:
            if file.endswith("_flow.py"):
                (world.folder / name / file).write_text("raise RuntimeError('edited')\n")
    world.kill()
    world.mark("open")
    world.start()

    again = world.client(start_if_missing=False)
    outputs = {name: again.wait(name, timeout=DEADLINE_SECONDS).output for name in shapes}
    assert {name: f"{name} old old" for name in shapes} == outputs
    assert 6 == sum(one["tool"] == "hold" for one in world.executions())
