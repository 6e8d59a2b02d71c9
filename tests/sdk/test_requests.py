"""What a client asks for (budgets, outer loops, retries, forks), and what it makes of answers."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded_requests import RecordedClient

import planaria
from planaria import Budget, RunFailedError, RunResult, UsageError, WaitTimeoutError, arun, run
from planaria.connection import Connection
from planaria.definition import load_target
from planaria.history import find_user
from planaria.protocol.errors import InvalidIdError, SupervisorUnavailableError
from planaria.protocol.limits import FRAME_BYTES_MAX, INLINE_BYTES_MAX

STARTED = {"runId": "r", "attached": False, "isEnded": False, "modulesRef": None}


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module of the definitions, in a project so small that it is pinned at once."""
    folder = tmp_path_factory.mktemp("requests")
    (folder / "pyproject.toml").touch()
    file = shutil.copy(Path(__file__).parent / "request_flows.py", folder)
    load_target(f"{file}:flow")
    return sys.modules["request_flows__planaria"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "d"


# -- runs -------------------------------------------------------------------------------------


def test_run_is_started_with_the_limits_of_its_budget_that_are_set(flows: Any, data: Path) -> None:
    client = RecordedClient(data, start_run=STARTED)

    client.start(flows.flow, "x", run_id="r", budget=Budget(max_model_calls=3))
    assert {"maxModelCalls": 3} == client.request("start_run")["budget"]

    client = RecordedClient(data, start_run=STARTED)
    client.start(flows.flow, "x", run_id="r")
    assert "budget" not in client.request("start_run")


def test_planned_workflow_is_started_by_its_planner_and_definition(flows: Any, data: Path) -> None:
    client = RecordedClient(data, start_run=STARTED)

    client.start(flows.planned, {"a": 1})

    asked = client.request("start_run")
    assert flows.planned.lock == asked["lock"]
    assert ("planned", flows.planned.definition_hash) == (
        asked["workflowId"],
        asked["definitionHash"],
    )
    assert asked["source"]["entry"].endswith(":planned")


def test_large_input_of_a_request_is_a_blob(flows: Any, data: Path) -> None:
    client = RecordedClient(data, start_run=STARTED)

    client.start(flows.flow, "x" * INLINE_BYTES_MAX)

    asked = client.request("start_run")
    assert "input" not in asked
    assert (data / "artifacts" / "blobs" / asked["inputRef"]["ref"]).is_file()


def test_result_has_usage_by_model_and_its_cost(flows: Any, data: Path) -> None:
    usage = {"openai:gpt-5": {"requests": 1, "input_tokens": 2}}
    outcome = {"runId": "r", "status": "completed", "output": "x", "usage": usage, "costUsd": 0.5}
    client = RecordedClient(data, wait_run=outcome)

    assert RunResult("x", "r", usage=usage, cost_usd=0.5) == client.wait("r", workflow=flows.flow)


# -- outer loops -----------------------------------------------------------------------------


def test_loop_is_started_with_all_that_its_cycles_need(flows: Any, data: Path) -> None:
    client = RecordedClient(data, start_loop={"outerLoopId": "ol_1", "attached": False})

    loop_id = client.start_loop(
        flows.flow,
        "x",
        max_outer_cycles=3,
        outer_loop_id="ol_1",
        supervise=flows.supervise,
        timeout=2,
        budget=Budget(max_tokens=9),
    )

    asked = client.request("start_loop")
    assert "ol_1" == loop_id == asked["outerLoopId"]
    goal = {"workflowDefinitionHash": flows.flow.definition_hash, "description": "Looks."}
    assert (goal, 3, "x", 2000) == (
        asked["goal"],
        asked["maxCycles"],
        asked["input"],
        asked["deadlineMs"],
    )
    assert ("flow", flows.flow.lock, flows.flow.definition_hash) == (
        asked["workflowId"],
        asked["lock"],
        asked["definitionHash"],
    )
    assert {"maxTokens": 9} == asked["budget"]
    assert asked["supervise"]["entry"].endswith(":supervise")
    assert asked["source"]["modulesRef"] == asked["supervise"]["modulesRef"]
    assert (data / "artifacts" / "modules" / asked["supervise"]["modulesRef"]).is_dir()


def test_loop_without_an_id_gets_one(flows: Any, data: Path) -> None:
    client = RecordedClient(data, start_loop={"outerLoopId": "ol_x", "attached": False})

    client.start_loop(flows.flow, "x", max_outer_cycles=1, supervise=flows.supervise)

    assert re.fullmatch("ol_[0-9a-f]{16}", client.request("start_loop")["outerLoopId"])


CYCLES = [
    {"cycleNumber": 1, "runId": "r1", "workflowVersionId": "wv_1", "status": "failed"},
    {
        "cycleNumber": 2,
        "runId": "r2",
        "workflowVersionId": "wv_1",
        "status": "completed",
        "output": 7,
        "summary": "n",
    },
]


def test_loop_that_is_done_gives_what_supervise_answered(data: Path) -> None:
    answer = {"outerLoopId": "ol_1", "status": "done", "output": [1], "cycles": CYCLES}
    client = RecordedClient(data, wait_loop=answer)

    result = client.wait_loop("ol_1")

    assert ([1], "r2", "ol_1", "completed", None) == (
        result.output,
        result.run_id,
        result.outer_loop_id,
        result.status,
        result.cost_usd,
    )
    assert ({**CYCLES[0], "output": None}, CYCLES[1]) == result.cycles
    assert {"outerLoopId": "ol_1"} == client.request("wait_loop")


def test_outputs_of_a_loop_may_be_blobs(flows: Any, data: Path) -> None:
    client = RecordedClient(data, start_run=STARTED)
    client.start(flows.flow, "x" * INLINE_BYTES_MAX)
    ref = client.request("start_run")["inputRef"]
    cycles = [{**CYCLES[0], "outputRef": ref}]
    client.answers["wait_loop"] = {
        "outerLoopId": "ol_1",
        "status": "done",
        "outputRef": ref,
        "cycles": cycles,
    }

    result = client.wait_loop("ol_1")

    assert "x" * INLINE_BYTES_MAX == result.output == result.cycles[0]["output"]
    assert "outputRef" not in result.cycles[0]


def test_exhausted_loop_fails_with_its_last_cycles_output(data: Path) -> None:
    answer = {"outerLoopId": "ol_1", "status": "exhausted", "cycles": CYCLES}
    client = RecordedClient(data, wait_loop=answer)

    with pytest.raises(RunFailedError, match="2 cycle") as failed:
        client.wait_loop("ol_1")

    assert ("outer_loop_exhausted", "outer_loop_exhausted", 7, "ol_1", "r2") == (
        failed.value.cause_code,
        failed.value.code,
        failed.value.last_cycle_output,
        failed.value.outer_loop_id,
        failed.value.run_id,
    )


def test_stopped_loop_fails_with_why(data: Path) -> None:
    error = {"causeCode": "runtime_config_error", "code": "supervise_failed", "message": "boom"}
    answer = {"outerLoopId": "ol_1", "status": "stopped", "cycles": [], "error": error}
    client = RecordedClient(data, wait_loop=answer)

    with pytest.raises(RunFailedError, match="boom") as failed:
        client.wait_loop("ol_1")

    assert ("runtime_config_error", "supervise_failed", "ol_1") == (
        failed.value.cause_code,
        failed.value.code,
        failed.value.run_id,
    )


def test_patience_with_a_loop_ends_and_the_loop_goes_on(data: Path) -> None:
    client = RecordedClient(data, wait_loop=SupervisorUnavailableError(message="no answer"))

    with pytest.raises(WaitTimeoutError):
        client.wait_loop("ol_1", timeout=0)


@pytest.mark.parametrize("count", [True, 0, -1, 1.0, "3", None])
def test_number_of_cycles_is_a_whole_one(flows: Any, data: Path, count: Any) -> None:
    client = RecordedClient(data)

    with pytest.raises(UsageError, match="max_outer_cycles is"):
        client.start_loop(flows.flow, "x", max_outer_cycles=count, supervise=flows.supervise)
    with pytest.raises(UsageError, match="max_outer_cycles is"):
        run(flows.flow, "x", data_dir=data, max_outer_cycles=count, supervise=flows.supervise)

    assert [] == client.asked
    assert not data.exists()


async def ask_for_a_loop(flows: Any, given: dict[str, Any], data: Path) -> None:
    await arun(flows.flow, "x", data_dir=data, **given)


@pytest.mark.parametrize("given", [{"max_outer_cycles": 2}, {"outer_loop_id": "ol_1"}])
def test_loop_that_nobody_supervises_is_refused(
    flows: Any, given: dict[str, Any], data: Path
) -> None:
    with pytest.raises(RunFailedError, match="nobody says when it is done") as failed:
        run(flows.flow, "x", data_dir=data, **given)
    with pytest.raises(RunFailedError):
        asyncio.run(ask_for_a_loop(flows, given, data))

    assert ("runtime_config_error", "outer_loop_requested_without_supervise") == (
        failed.value.cause_code,
        failed.value.code,
    )
    assert not data.exists()


def test_id_of_a_loop_is_an_id(flows: Any, data: Path) -> None:
    client = RecordedClient(data)

    with pytest.raises(InvalidIdError, match="no legal outer loop id"):
        client.start_loop(
            flows.flow, "x", max_outer_cycles=1, outer_loop_id="../x", supervise=flows.supervise
        )

    assert [] == client.asked


def test_request_that_no_frame_holds_is_refused_at_once(tmp_path: Path) -> None:
    connection = Connection(str(tmp_path / "nobody"), os.getpid())

    with pytest.raises(UsageError, match="at most 1,048,576 are taken"):
        connection.ask("start_run", lock={"lwir": "x" * FRAME_BYTES_MAX})

    connection.close()


def test_loop_has_no_run_id(flows: Any, data: Path) -> None:
    with pytest.raises(UsageError, match="run_id='r' names one run"):
        run(
            flows.flow,
            "x",
            data_dir=data,
            run_id="r",
            max_outer_cycles=1,
            supervise=flows.supervise,
        )


def test_supervise_is_a_function(flows: Any, data: Path) -> None:
    client = RecordedClient(data)

    with pytest.raises(UsageError, match="'x' is no function"):
        client.start_loop(flows.flow, "x", max_outer_cycles=1, supervise="x")


# -- history ------------------------------------------------------------------------------------


def test_retry_says_who_asks_and_why(data: Path) -> None:
    client = RecordedClient(data, retry_run={})

    client.retry("r", reason="again")
    assert {"runId": "r", "by": find_user(), "reason": "again"} == client.request("retry_run")


def test_retry_of_the_current_source_brings_its_definition(flows: Any, data: Path) -> None:
    client = RecordedClient(data, retry_run={})

    client.retry("r", by="ann", workflow=flows.flow)

    asked = client.request("retry_run")
    assert ("ann", flows.flow.lock, flows.flow.definition_hash) == (
        asked["by"],
        asked["lock"],
        asked["definitionHash"],
    )
    assert "within" not in asked["source"]


def test_retry_of_a_sub_run_brings_the_inner_definition(flows: Any, data: Path) -> None:
    client = RecordedClient(data, retry_run={})

    client.retry("r", workflow=flows.outer, within=["flow"])

    asked = client.request("retry_run")
    assert (flows.flow.lock, ["flow"]) == (asked["lock"], asked["source"]["within"])
    assert asked["source"]["entry"].endswith(":outer")
    with pytest.raises(UsageError, match="doesn't have the workflow 'gone' any more"):
        client.retry("r", workflow=flows.outer, within=["gone"])


def test_fork_names_only_what_changes(data: Path) -> None:
    client = RecordedClient(data, fork_run={"runId": "n"})

    assert "n" == client.fork("r", new_run_id="n")
    asked = {"fromRunId": "r", "runId": "n", "by": find_user(), "changes": {}}
    assert asked == client.request("fork_run")


def test_fork_has_each_change(data: Path) -> None:
    client = RecordedClient(data, fork_run={"runId": "n"})

    client.fork(
        "r",
        at=4,
        new_run_id="n",
        input=None,
        models={"m": "openai:gpt-5"},
        instructions="Be brief.",
        output_schema=list[int],
    )

    asked = client.request("fork_run")
    assert 4 == asked["atSequence"]
    assert {
        "input": None,
        "models": {"m": "openai:gpt-5"},
        "instructions": "Be brief.",
        "outputSchema": {"type": "array", "items": {"type": "integer"}},
    } == asked["changes"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"models": {"m": "gpt"}}, "model slot 'm' holds 'gpt'"),
        ({"models": {"m": 3}}, "model slot 'm' of a fork is given an int"),
        ({"output_schema": {"type": "string", "format": "date"}}, "$.format"),
        ({"input": {1, 2}}, "can't be recorded"),
    ],
)
def test_change_that_can_not_be_made_is_refused(
    data: Path, change: dict[str, Any], text: str
) -> None:
    client = RecordedClient(data)

    with pytest.raises(UsageError, match=re.escape(text)):
        client.fork("r", **change)

    assert [] == client.asked


def test_loop_functions_are_public() -> None:
    assert {"Budget", "Continue", "Done", "Orchestrator", "Planner", "Skill"} <= {*dir(planaria)}
