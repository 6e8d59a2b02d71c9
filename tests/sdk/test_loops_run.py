"""Outer loops end to end: done, exhausted, stopped and resumed, joined, refused."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria import Continue, Done, RunFailedError, RunResult, UsageError, arun, run

from .run_stage import PATIENCE_SECONDS, Stage, open_stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory, "loop_flows") as stage:
        yield stage


@pytest.fixture
def job(stage: Stage, tmp_path: Path) -> Any:
    return stage.get("Job")(ledger=str(tmp_path / "ledger"), flag=str(tmp_path / "flag"))


def cycle(
    stage: Stage, flow: str, given: Any, supervise: Any, loop_id: str, cycles: Any = 3
) -> RunResult:
    """Runs, joins or resumes an outer loop; `supervise` may be a name of the flows."""
    return run(
        stage.get(flow),
        given,
        max_outer_cycles=cycles,
        outer_loop_id=loop_id,
        supervise=stage.get(supervise) if isinstance(supervise, str) else supervise,
        data_dir=stage.data,
        wait_timeout=PATIENCE_SECONDS,
    )


def stop(*arguments: Any, **more: Any) -> RunFailedError:
    """Returns why an outer loop ended otherwise."""
    with pytest.raises(RunFailedError) as got:
        cycle(*arguments, **more)
    return got.value


def manifest_of(stage: Stage, loop_id: str) -> Path:
    return stage.data / "outer-loops" / f"{loop_id}.json"


def read_lines(job: Any) -> list[str]:
    ledger = Path(job.ledger)
    return ledger.read_text().splitlines() if ledger.exists() else []


# -- done, exhausted ------------------------------------------------------------------------


def test_loop_is_done_when_supervise_says_so(stage: Stage, job: Any) -> None:
    result = cycle(stage, "counting", job, "after_two", "ol_done")

    assert {"total": 30, "note": "é"} == result.output  # dumped of a pydantic model
    assert ("completed", "ol_done") == (result.status, result.outer_loop_id)
    first, second = result.cycles
    assert (1, 10, "completed", "had 10") == (
        first["cycleNumber"],
        first["output"],
        first["status"],
        first["summary"],
    )
    assert (2, 20, result.run_id) == (second["cycleNumber"], second["output"], second["runId"])
    assert "summary" not in second
    assert ["cycle 1", "cycle 2"] == read_lines(job)
    [said] = stage.payloads(result.run_id, "OuterLoopCycleCompleted")
    assert ({"kind": "done"}, result.output) == (said["supervise"], said["output"])
    [started] = [
        payload
        for payload in stage.payloads("run_system", "OuterLoopStarted")
        if payload["outerLoopId"] == "ol_done"
    ]
    assert 3 == started["maxCycles"] and started["inputHash"].startswith("sha256:")
    manifest = json.loads(manifest_of(stage, "ol_done").read_bytes())
    assert {"output": result.output} == manifest["result"]
    assert "pendingCycleRunId" not in manifest

    counts = stage.client.count_runs()
    assert result == cycle(stage, "counting", job, "never", "ol_done")
    assert (counts, 2) == (stage.client.count_runs(), len(read_lines(job)))


def test_supervise_is_given_goal_and_cycles(stage: Stage, job: Any) -> None:
    result = cycle(stage, "redescribed", job, "tell_all", "ol_told")

    goal, cycles = result.output["goal"], result.output["cycles"]
    assert stage.get("redescribed").definition_hash == goal["workflowDefinitionHash"]
    assert "With another goal." == goal["description"]
    assert [1, 2] == [told["cycleNumber"] for told in cycles]
    assert [dict(told) for told in result.cycles] == cycles


def test_exhausted_loop_says_so_again_with_its_last_output(stage: Stage, job: Any) -> None:
    errors = [stop(stage, "counting", job, "never", "ol_exhausted", 2) for _ in range(2)]

    for error in errors:
        assert ("outer_loop_exhausted", 20) == (error.cause_code, error.last_cycle_output)
        assert [10, 20] == [told["output"] for told in error.cycles]
    assert str(errors[0]) == str(errors[1])
    assert ["cycle 1", "cycle 2"] == read_lines(job)


def test_failed_cycle_goes_to_supervise_which_may_rescue_it(stage: Stage, job: Any) -> None:
    result = cycle(stage, "failing", job, "tell_all", "ol_rescued")

    assert ["failed", "completed"] == [told["status"] for told in result.output["cycles"]]
    assert [None, 2] == [told["output"] for told in result.output["cycles"]]


@pytest.mark.parametrize("kind", ["closure", "lambda", "async"])
def test_supervise_may_be_any_function(stage: Stage, job: Any, kind: str) -> None:
    least = 20

    def closure(state: dict[str, Any]) -> Done | Continue:
        output = state["cycles"][-1]["output"]
        return Done(output) if output >= least else Continue()

    functions: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "closure": (closure, 20),
        "lambda": (lambda state: Done(least + 1), 21),
        "async": (stage.get("after_two_async"), {"total": 30, "note": "é"}),
    }
    supervise, output = functions[kind]

    assert output == cycle(stage, "counting", job, supervise, f"ol_{kind}").output


def test_two_callers_of_one_loop_get_the_same(stage: Stage, job: Any) -> None:
    async def call_twice() -> list[RunResult]:
        calls = [
            arun(
                stage.get("counting"),
                job,
                max_outer_cycles=3,
                outer_loop_id="ol_shared",
                supervise=stage.get("after_two"),
                data_dir=stage.data,
            )
            for _ in range(2)
        ]
        return list(await asyncio.gather(*calls))

    first, second = asyncio.run(call_twice())

    assert first == second
    assert ["cycle 1", "cycle 2"] == read_lines(job)


# -- stopped, resumed -----------------------------------------------------------------------


def test_loop_whose_supervise_raised_is_resumed_without_another_run(stage: Stage, job: Any) -> None:
    error = stop(stage, "counting", job, "with_file", "ol_raised")

    assert ("runtime_config_error", "supervise_failed") == (error.cause_code, error.code)
    assert "supervise failed after cycle 1: FileNotFoundError: supervise-flag" in str(error)
    assert "supervise_failed" == stop(stage, "counting", job, "with_file", "ol_raised").code
    (stage.project / "supervise-flag").touch()
    result = cycle(stage, "counting", job, "with_file", "ol_raised")
    assert ("found", 1) == (result.output, len(result.cycles))
    assert ["cycle 1"] == read_lines(job)


def test_final_output_that_does_not_fit_stops_the_loop(stage: Stage, job: Any) -> None:
    error = stop(stage, "reporting", job, "unfit", "ol_unfit")

    assert "step_schema_error" == error.cause_code
    assert "supervise's final output" in str(error) and "expected integer" in str(error)
    assert [] == stage.payloads(error.run_id, "OuterLoopCycleCompleted")
    (stage.project / "unfit-flag").touch()
    assert 7 == cycle(stage, "reporting", job, "unfit", "ol_unfit").output


def test_supervise_that_answers_nothing_stops_the_loop(stage: Stage, job: Any) -> None:
    error = stop(stage, "counting", job, "speechless", "ol_speechless")

    assert ("runtime_config_error", "supervise_failed") == (error.cause_code, error.code)
    assert "Done" in str(error) and "Continue" in str(error)


def test_cancelled_cycle_is_passed_on_and_run_anew_when_resumed(stage: Stage, job: Any) -> None:
    loop_id = stage.client.start_loop(
        stage.get("waiting"),
        job,
        max_outer_cycles=2,
        outer_loop_id="ol_cancelled",
        supervise=stage.get("at_once"),
    )
    run_id = json.loads(manifest_of(stage, loop_id).read_bytes())["pendingCycleRunId"]
    stage.wait_for(run_id, "harness.tool_call.started")
    stage.client.cancel(run_id)

    with pytest.raises(RunFailedError) as got:
        stage.client.wait_loop(loop_id, timeout=PATIENCE_SECONDS)
    assert ("cancelled", run_id) == (got.value.cause_code, got.value.run_id)
    Path(job.flag).touch()
    result = cycle(stage, "waiting", job, "at_once", loop_id, 2)
    assert (1, 1) == (result.output, result.cycles[0]["cycleNumber"])
    assert run_id != result.run_id
    assert "cancelled" == stage.client.status(run_id)["status"]


# -- refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("supervise", ["at_once", "speechless"])
def test_another_call_is_no_way_into_a_loop(stage: Stage, job: Any, supervise: str) -> None:
    """Cycles are compared first, then the goal, then the input; of a finished loop too."""
    loop_id = f"ol_mismatch_{supervise}"
    try:
        cycle(stage, "counting", job, supervise, loop_id)
    except RunFailedError as error:
        assert "supervise_failed" == error.code
    before, counts = manifest_of(stage, loop_id).read_bytes(), stage.client.count_runs()
    other = job.model_copy(update={"flag": "other"})

    codes = [
        stop(stage, flow, given, "at_once", loop_id, cycles).code
        for flow, given, cycles in (
            ("redescribed", other, 4),
            ("redescribed", other, 3),
            ("counting", other, 3),
        )
    ]
    assert [
        "outer_loop_max_cycles_mismatch",
        "outer_loop_goal_mismatch",
        "outer_loop_input_mismatch",
    ] == codes
    assert (before, counts) == (manifest_of(stage, loop_id).read_bytes(), stage.client.count_runs())


def test_loop_without_supervise_is_refused(stage: Stage, job: Any) -> None:
    error = stop(stage, "counting", job, None, "ol_alone")

    assert "outer_loop_requested_without_supervise" == error.code
    assert "runtime_config_error" == error.cause_code
    with pytest.raises(RunFailedError, match="give supervise="):
        run(stage.get("counting"), job, max_outer_cycles=2, data_dir=stage.data)


@pytest.mark.parametrize("cycles", [0, True, 1.5, -1, None, "2"])
def test_number_of_cycles_is_a_whole_number(stage: Stage, job: Any, cycles: Any) -> None:
    with pytest.raises(UsageError, match="max_outer_cycles"):
        cycle(stage, "counting", job, "never", "ol_number", cycles)

    assert not manifest_of(stage, "ol_number").exists()


def test_loop_has_no_run_id_and_a_legal_id(stage: Stage, job: Any) -> None:
    with pytest.raises(UsageError, match="outer_loop_id"):
        run(
            stage.get("counting"),
            job,
            run_id="run_a",
            max_outer_cycles=1,
            supervise=stage.get("never"),
            data_dir=stage.data,
        )
    with pytest.raises(UsageError, match="outer loop id"):
        cycle(stage, "counting", job, "never", "../ol")
    with pytest.raises(UsageError, match="outer loop id"):
        cycle(stage, "counting", job, "never", "")


@pytest.mark.parametrize("damage", ["torn", "empty", "foreign", "anothers", "cycles"])
def test_damaged_manifest_is_refused_and_left_as_it_is(stage: Stage, job: Any, damage: str) -> None:
    other = manifest_of(stage, "ol_sound")
    if not other.exists():
        cycle(stage, "counting", job, "at_once", "ol_sound")
    sound, loop_id = other.read_bytes(), f"ol_{damage}"
    renamed = {**json.loads(sound), "outerLoopId": loop_id}
    data = {
        "torn": sound[: len(sound) // 2],
        "empty": b"",
        "foreign": b'{"name": "somebody else"}',
        "anothers": sound,
        "cycles": json.dumps({**renamed, "cycles": [{"cycleNumber": 2}]}).encode(),
    }[damage]
    manifest_of(stage, loop_id).write_bytes(data)
    counts = stage.client.count_runs()

    error = stop(stage, "counting", job, "at_once", loop_id)

    assert "outer_loop_manifest_corrupt" == error.code
    assert loop_id in str(error) and "verify --repair" in str(error)
    assert (data, counts) == (manifest_of(stage, loop_id).read_bytes(), stage.client.count_runs())
    manifest_of(stage, loop_id).unlink()
