"""Typed inputs and outputs, odd values and people's own agents, through real processes.

All runs of this file share a supervisor: starting one costs more than a run.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from planaria import Client, RunResult, Workflow
from planaria.definition import load_target
from planaria.protocol.errors import InputSchemaError, RunFailedError

HERE = Path(__file__).parent
CASES = json.loads((HERE.parent / "protocol" / "cases" / "values.json").read_text())
WAIT_SECONDS = 50.0  # less than a test's own timeout, so that the run's state is told

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Project:
    """The copied modules, and a client that keeps their supervisor."""

    folder: Path
    client: Client

    def load(self, name: str) -> Workflow:
        place, _, workflow = name.rpartition(".")
        return load_target(f"{self.folder / (place or 'sdk_flows')}.py:{workflow}")

    def run(self, name: str, input: Any = None) -> RunResult:
        workflow = self.load(name)
        run_id = self.client.start(workflow, input)
        return self.client.wait(run_id, workflow=workflow, timeout=WAIT_SECONDS)

    def events(self, run_id: str) -> list[dict[str, Any]]:
        return list(self.client.events(run_id))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("typed")
    (folder / "pyproject.toml").write_text("")
    for name in ("sdk_flows.py", "agent_flows.py", "mcp_flows.py"):
        shutil.copy(HERE / name, folder)
    shutil.copy(HERE.parent / "workers" / "mcp_echo_server.py", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with Client(folder / "data") as client:
            yield Project(folder, client)


def flows(project: Project, name: str = "sdk_flows") -> Any:
    """Returns the module that workflows were loaded from: its classes are theirs."""
    project.load(f"{name}.{'plain' if name == 'sdk_flows' else 'agent_flow'}")
    return sys.modules[f"{name}__planaria"]


def test_typed_input_reaches_the_tool_and_comes_back_with_its_types(project: Project) -> None:
    order = flows(project).ORDER

    result = project.run("typed", order)

    assert order == result.output
    assert type(order) is type(result.output)
    assert (1, 2) == result.output.marks["a.b"].at
    assert str(Decimal("1.10")) == str(result.output.parts[0].shape.side)


def test_json_that_fits_the_type_is_the_same_input(project: Project) -> None:
    workflow, order = project.load("typed"), flows(project).ORDER
    client = project.client
    run_id = client.start(workflow, order)

    joined = client.start(workflow, workflow.dump_input(order), run_id=run_id)

    assert run_id == joined
    assert order == client.wait(run_id, workflow=workflow, timeout=WAIT_SECONDS).output


def test_output_of_a_union_in_a_tuple_has_its_classes(project: Project) -> None:
    module = flows(project)

    result = project.run("shapes", module.ORDER)

    assert (module.Square(side=Decimal("1.10")), module.Circle(radius=-0.0)) == result.output


def test_output_without_the_workflow_is_json(project: Project) -> None:
    workflow = project.load("typed")
    run_id = project.client.start(workflow, flows(project).ORDER)

    output = project.client.wait(run_id, timeout=WAIT_SECONDS).output

    assert workflow.dump_input(flows(project).ORDER) == output


def test_input_that_does_not_fit_is_refused_with_its_path_and_not_recorded(
    project: Project,
) -> None:
    wrong = project.load("typed").dump_input(flows(project).ORDER)
    wrong["parts"][1]["made"] = "yesterday"
    before = len(project.client.runs())

    with pytest.raises(InputSchemaError, match=r"'typed'.*\$\.parts\[1\]\.made"):
        project.client.start(project.load("typed"), wrong)

    assert before == len(project.client.runs())


def test_odd_results_of_a_tool_are_exact_or_refused_with_their_path(project: Project) -> None:
    expected = [make() for make in flows(project).VALUES]
    result = project.run("values", list(range(len(CASES))))
    branches = result.output

    for case, value, branch in zip(CASES, expected, branches, strict=True):
        if case["expect"].startswith("exact") and case["python"] != "2**70":
            assert ("completed", value) == (branch["status"], branch["output"]), case
            assert type(value) is type(branch["output"])
        else:
            error = branch["error"]
            assert ("failed", "ValueRefusedError") == (branch["status"], error["name"]), case
            assert "the result of tool 'nth_value' can't be recorded" in error["message"], case
            assert ", at $" in error["message"], case
            assert error["causeCode"] == "step_failed", case
    assert "$.x" in branches[7]["error"]["message"]  # {'x': {3: 4}}


def test_a_refused_value_leaves_its_process_up(project: Project) -> None:
    run_id = project.run("values", [4, 21, 22, 20]).run_id  # NaN, deep, cyclic, a function

    events = project.events(run_id)
    incarnations = [
        event["payload"]["incarnation"] for event in events if event["type"] == "ProcessStarted"
    ]
    assert [1] * 6 == incarnations  # no session needed a second process
    assert 4 == sum(event["type"] == "harness.session.failed" for event in events)


def test_large_text_is_stored_as_a_blob_and_comes_back_whole(project: Project) -> None:
    result = project.run("values", [23])

    assert "x" * 5_000_000 == result.output[0]["output"]
    [ended] = [
        event["payload"]
        for event in project.events(result.run_id)
        if event["type"] == "StepCompleted" and event["payload"]["stepId"] == "value"
    ]
    assert "output" not in ended
    path = project.client.directory / "artifacts" / "blobs" / ended["outputRef"]["ref"]
    assert 5_000_000 <= path.stat().st_size == ended["outputRef"]["size"]


def test_large_input_is_stored_as_a_blob_by_the_client(project: Project) -> None:
    workflow = project.load("large")
    text = "é" * 200_000

    run_id = project.client.start(workflow, text)

    assert 200_000 == project.client.wait(run_id, timeout=WAIT_SECONDS).output
    admitted = project.events(run_id)[0]["payload"]
    assert "input" not in admitted
    assert 400_000 < admitted["inputRef"]["size"]


def test_an_ordinary_agent_runs_with_its_deps_tools_and_typed_output(project: Project) -> None:
    module = flows(project, "agent_flows")

    result = project.run("agent_flows.agent_flow")

    assert module.Answer(town="Bern", degrees=Decimal("12.5"), asked_by="ada") == result.output
    types = [event["type"] for event in project.events(result.run_id)]
    assert 2 == types.count("harness.model.responded")
    [started] = [
        event["payload"]
        for event in project.events(result.run_id)
        if event["type"] == "harness.tool_call.started"
    ]
    assert ("temperature", "read") == (started["toolName"], started["effect"])


def test_a_streaming_agent_gives_the_same_and_its_undeclared_tool_is_once(
    project: Project,
) -> None:
    module = flows(project, "agent_flows")

    result = project.run("agent_flows.stream_flow")

    assert module.Answer(town="Bern", degrees=Decimal("12.5"), asked_by="ada") == result.output
    effects = [
        event["payload"]["effect"]
        for event in project.events(result.run_id)
        if event["type"] == "harness.tool_call.started"
    ]
    assert ["once"] == effects


def test_tools_of_an_mcp_server_have_the_effects_of_their_annotations(project: Project) -> None:
    result = project.run("mcp_flows.mcp_flow")

    assert "sent hi" == result.output
    assert ["start", "echo", "send"] == Path("mcp-notes.txt").read_text().split()
    effects = {
        event["payload"]["toolName"]: event["payload"]["effect"]
        for event in project.events(result.run_id)
        if event["type"] == "harness.tool_call.started"
    }
    assert {"echo": "read", "send": "once"} == effects


def test_tools_find_the_key_that_their_call_is_recorded_under(project: Project) -> None:
    run_id = project.run("keys").run_id

    events = project.events(run_id)
    recorded = [
        event["payload"]["idempotencyKey"]
        for event in events
        if event["type"] == "harness.tool_call.started"
    ]
    seen = {
        event["payload"]["stepId"]: event["payload"]["output"]
        for event in events
        if event["type"] == "StepCompleted"
    }
    assert sorted(recorded) == sorted(key for key, _ in seen.values())
    assert 3 == len(set(recorded))
    assert all(step == path for step, (_, path) in seen.items())


def test_a_tool_that_raises_fails_the_run_with_its_words(project: Project) -> None:
    text = r"at step 'bad' \(step_failed\): LookupError: no such row"
    with pytest.raises(RunFailedError, match=text) as got:
        project.run("failing")

    assert ("step_failed", "LookupError") == (got.value.cause_code, got.value.error_name)
