"""Planner, orchestrator, nested workflows, fixer and memory, end to end in real processes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria import Continue, Done

from .cli_stage import Command
from .run_stage import Stage, open_stage, read_stored

SECRET, KEY, INNER = "environment-canary-1", "key-canary-2", "inner-canary-3"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    variables = {"ROLE_SECRET": SECRET, "OPENAI_API_KEY": KEY, "ROLE_INNER": INNER}
    with open_stage(tmp_path_factory, "call_flows", "role_flows", **variables) as stage:
        (stage.project / "cooking.md").write_text("Boil it.")
        yield stage


@pytest.fixture
def command(stage: Stage, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(stage.data, capfd)


def prompt_of(stage: Stage, run_id: str) -> str:
    """Returns all that a run's planner was sent at first."""
    first = next(
        event
        for event in stage.events(run_id, "harness.model.called")
        if event["sessionId"] == planning_session(stage, run_id)
    )
    return json.dumps(first["payload"], ensure_ascii=False)


def planning_session(stage: Stage, run_id: str) -> str:
    started = stage.events(run_id, "harness.session.started")
    return str(next(e["sessionId"] for e in started if e["payload"]["role"] == "planner"))


# -- planned --------------------------------------------------------------------------------


def test_planner_is_told_what_is_wrong_until_its_draft_is_sound(stage: Stage) -> None:
    result = stage.run("mended", {"x": 3})

    assert 6 == result.output
    repairs = stage.payloads(result.run_id, "StepRepairAttempted")
    assert [".plan", ".plan"] == [repair["stepPath"] for repair in repairs]
    codes = [finding["code"] for repair in repairs for finding in repair["findings"]]
    assert ["lwir.unknown_kind", "lwir.unknown_tool"] == codes
    types = [event["type"] for event in stage.events(result.run_id)]
    order = ["StepCompleted", "WorkflowVersionRegistered", "RunStarted", "StepCompleted"]
    assert order == [found for found in types if found in order]
    assert result.usage["requests"] == types.count("harness.model.responded") == 3
    planned = stage.client.status(result.run_id)["planningUsage"]
    assert [counts["requests"] for counts in planned.values()] == [3]


def test_last_revision_may_still_succeed(stage: Stage) -> None:
    assert 2 == stage.run("last_chance", {"x": 1}).output


def test_planner_without_a_sound_draft_fails_the_run_with_its_findings(
    stage: Stage, command: Command
) -> None:
    words = ["role_flows.py:stubborn", "--input", '{"x": 1}', "--run-id", "stubborn"]
    code, document = command.json("run", *words)

    assert 1 == code
    error = document["error"]
    assert "planner_validation_exhausted" == error["cause_code"]
    assert "RunFailedError" == error["class"]
    assert "no draft was valid after 3 revision(s)" in error["message"]
    assert "lwir.unknown_kind at $.steps[0].uses: 'nonsense' is no kind" in error["message"]
    assert 4 == len(stage.events("stubborn", "harness.model.responded"))
    assert [] == stage.events("stubborn", "WorkflowVersionRegistered", "RunStarted")
    assert (1, "RunFailedError", error["message"]) == command.error("result", "stubborn")


def test_planner_sees_the_definition_and_nothing_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planaria.providers._is_installed", lambda module: True)
    result = stage.run("secretive", {"x": 271828})

    assert len(SECRET) == result.output  # a worker has the variable
    prompt = prompt_of(stage, result.run_id)
    for canary in "GOAL INPUT OUTPUT INSTRUCTIONS DESCRIPTION".split():
        assert f"{canary}-CANARY" in prompt
    for name in ("slot_canary", "openai:gpt-canary", "count_secret", '\\"effect\\": \\"read\\"'):
        assert name in prompt
    assert "271828" not in prompt
    stored = read_stored(stage.data)
    assert b"DESCRIPTION-CANARY" in stored
    for canary in (SECRET, KEY, "SOURCE-CANARY"):
        assert canary.encode() not in stored


def test_planner_of_a_later_cycle_sees_the_earlier_ones_and_the_note(stage: Stage) -> None:
    def supervise(state: dict[str, Any]) -> Done | Continue:
        if len(state["cycles"]) == 1:
            return Continue("NOTE-CANARY")
        return Done(state["cycles"][-1]["output"])

    loop_id = stage.client.start_loop(
        stage.get("planned"), {"x": 4}, max_outer_cycles=3, supervise=supervise
    )
    result = stage.client.wait_loop(loop_id)

    first, second = result.cycles
    assert (8, 8, "NOTE-CANARY") == (result.output, first["output"], first["summary"])
    prompts = [prompt_of(stage, cycle["runId"]) for cycle in result.cycles]
    assert ["NOTE-CANARY" in prompt for prompt in prompts] == [False, True]
    assert [first["runId"] in prompt for prompt in prompts] == [False, True]
    assert '\\"output\\": 8' in prompts[1] and "earlier cycles" in prompts[1]
    assert second["workflowVersionId"] == first["workflowVersionId"]


# -- orchestrated ---------------------------------------------------------------------------


def test_orchestrator_plans_once_and_runs_side_by_side(stage: Stage, command: Command) -> None:
    words = ["run", "role_flows.py:boss", "--input", "3", "--run-id", "boss"]
    code, document = command.json(*words)

    assert 0 == code, document
    output = document["output"]
    assert ([0, 2, 4], ["failed", "no such row"]) == (output["outputs"], output["failures"])
    nobody, unfit, unplanned = output["refusals"]
    assert "there is no workflow 'nobody'; there are: failing, planned" == nobody
    assert "$.x: expected integer, got string" in unfit
    assert "no version 'wv_0' was planned; there are: none" in unplanned

    asked = stage.payloads("boss", "harness.tool_call.started")
    assert ["plan_workflow", *["run_workflow"] * 3, "start_workflow"] == [
        call["toolName"] for call in asked
    ]
    ids = [call["args"]["subRunId"] for call in asked]
    assert 5 == len(set(ids))
    requests = stage.payloads("boss", "SubRunRequested")
    assert ids == [request["subRunId"] for request in requests]
    before = len(stage.events("boss"))
    assert (0, document) == command.json(*words)
    assert (0, document) == (0, {**command.json("result", "boss")[1]})
    assert (4, "RunInputMismatchError") == command.error(*words[:3], "4", *words[4:])[:2]
    assert before == len(stage.events("boss"))
    typed = stage.client.result("boss", workflow=stage.get("boss"))
    assert ([0, 2, 4], "Totals") == (typed.output.outputs, type(typed.output).__name__)


def test_family_of_an_orchestrator_can_be_looked_at(stage: Stage, command: Command) -> None:
    stage.run("boss", 3, run_id="boss")  # done already, unless this test runs alone
    calls = stage.payloads("boss", "harness.tool_call.started")
    ids = [call["args"]["subRunId"] for call in calls]
    listed = {row["runId"]: row for row in command.json("runs")[1]}
    family = [listed[run_id] for run_id in ids]

    assert [*["planned"] * 4, "failing"] == [row["workflowId"] for row in family]
    assert [*["completed"] * 4, "failed"] == [row["status"] for row in family]
    shown = [command.json("show", run_id)[1] for run_id in ids]
    assert {"boss"} == {run["parentRunId"] for run in shown}
    assert [call["callId"] for call in calls] == [run["parentCallId"] for run in shown]
    assert [0, 2, 4] == [run["output"] for run in shown[1:4]]
    assert 1 == len({run["versionId"] for run in shown[1:4]})
    planners = [len(stage.events(i, "harness.plan.succeeded")) for i in ids]
    assert [1, 0, 0, 0, 0] == planners
    text = command.succeed("show", "boss")
    assert "boss" in text and "completed" in text


def test_orchestrator_and_planned_workflow_are_checked(stage: Stage, command: Command) -> None:
    for name in ("boss", "planned"):
        code, document = command.json("check", f"role_flows.py:{name}")

        assert (0, True, []) == (code, document["isValid"], document["findings"])
        assert name == document["workflow"]


# -- nested ---------------------------------------------------------------------------------


def test_workflow_called_two_deep_has_its_own_environment_and_skills(stage: Stage) -> None:
    result = stage.run("outer")

    assert json.dumps(["Boil it.", INNER]) == result.output[1]
    [called] = stage.payloads(result.run_id, "SubRunRequested")
    [again] = stage.payloads(called["subRunId"], "SubRunRequested")
    [admitted] = stage.payloads(again["subRunId"], "RunAdmitted")
    assert ["middle", "inner"] == admitted["source"]["within"]
    assert called["subRunId"] == admitted["parentRunId"]
    [step] = stage.payloads(called["subRunId"], "StepCompleted")
    assert {"subRunId": again["subRunId"]} == step["metadata"]
    assert result.usage["requests"] == 2  # its family's


def test_sub_run_that_is_not_waited_for_outlives_its_parent(stage: Stage, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    result = stage.run("forgetful", str(gate))

    sub_run_id = result.output["subRunId"]
    assert stage.client.status(sub_run_id)["status"] in ("admitted", "running")
    gate.touch()
    assert "passed" == stage.client.wait(sub_run_id, timeout=60).output


def test_sub_run_that_takes_too_long_is_cancelled_with_its_step(
    stage: Stage, tmp_path: Path
) -> None:
    error = stage.fail("impatient", str(tmp_path / "never"))

    assert ("step_timeout", "call") == (error.cause_code, error.failed_step_path)
    [asked] = stage.payloads(error.run_id, "SubRunRequested")
    assert "cancelled" == stage.client.status(asked["subRunId"])["status"]


def test_failure_of_a_sub_run_reaches_its_caller(stage: Stage) -> None:
    error = stage.fail("relying")

    assert ("step_failed", "call") == (error.cause_code, error.failed_step_path)
    [asked] = stage.payloads(error.run_id, "SubRunRequested")
    assert asked["subRunId"] in str(error) and "no such row" in str(error)


# -- fixed ----------------------------------------------------------------------------------


def test_code_is_repaired_at_the_second_try(stage: Stage) -> None:
    result = stage.run("repaired", 3)

    assert 5 == result.output
    [done] = stage.payloads(result.run_id, "StepCompleted")
    assert {"fixedSource": "input + 2", "fixerAttempts": 2} == done["metadata"]
    assert [None, 1, 2] == [
        started.get("fixAttempt") for started in stage.payloads(result.run_id, "StepAttemptStarted")
    ]
    failed = [f["error"]["message"] for f in stage.payloads(result.run_id, "StepFailed")]
    assert ["nothing" in failed[0], "division by zero" in failed[1]] == [True, True]
    roles = stage.payloads(result.run_id, "harness.session.started")
    assert ["worker", "fixer", "fixer"] == [session["role"] for session in roles]


def test_fixer_that_mends_nothing_leaves_the_first_failure(stage: Stage) -> None:
    error = stage.fail("unmendable", 3)

    assert ("step_failed", "sum") == (error.cause_code, error.failed_step_path)
    assert "name 'nothing' is not defined" in str(error)
    assert "2 fix(es) failed" in str(error) and "division by zero" in str(error)
    assert 3 == len(stage.events(error.run_id, "StepFailed"))


def test_output_that_does_not_fit_its_schema_is_repaired(stage: Stage) -> None:
    result = stage.run("mistyped", 3)

    assert 30 == result.output
    [failed] = stage.payloads(result.run_id, "StepFailed")
    assert "step_schema_error" == failed["error"]["causeCode"]
    [done] = stage.payloads(result.run_id, "StepCompleted")
    assert {"fixedSource": "input * 10", "fixerAttempts": 1} == done["metadata"]


# -- remembering ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def remembered(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two runs with one memory said, with links out of it that somebody has planted."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.txt").write_text("outside")
    store = stage.data / "memory" / "workflows" / "remembering"
    store.mkdir(parents=True)
    os.symlink(outside / "secret.txt", store / "link.txt")
    os.symlink(outside, store / "away")
    said = []
    for number in range(2):
        result = stage.run("remembering", run_id=f"memory_{number}")
        said.append(json.loads(result.output))
    assert {"secret.txt"} == set(os.listdir(outside))
    assert "outside" == (outside / "secret.txt").read_text()
    return said


def test_memory_is_written_by_planners_and_kept_over_runs(
    stage: Stage, remembered: list[dict[str, Any]]
) -> None:
    assert ["é.", "é.é."] == [said["worker"][0] for said in remembered]
    file = stage.data / "memory" / "workflows" / "remembering" / "deep" / "notes.md"
    assert "é.é." == file.read_text()
    [event] = stage.events("memory_1", "harness.memory.written")
    assert planning_session(stage, "memory_1") == event["sessionId"]
    assert ("workflow", "deep/notes.md") == (event["payload"]["store"], event["payload"]["path"])
    assert event["payload"]["sha256"].startswith("sha256:")


def test_worker_reads_memory_and_writes_to_its_scratch_only(
    remembered: list[dict[str, Any]],
) -> None:
    _, refused, written, listed, *_, back = remembered[1]["worker"]

    assert "this folder is read only for you" in refused
    assert ("written", "mine") == (written, back)
    assert [{"path": "memory/"}, {"path": "scratch/"}] == listed["files"]


def test_no_path_leads_out_of_memory(stage: Stage, remembered: list[dict[str, Any]]) -> None:
    answers = remembered[0]["worker"][4:-1]
    reasons = ["no '..'", "relative", "symbolic link", "no folder", "NUL", "255 bytes", "4096 are",
        "none of your folders", "none of your folders"]  # fmt: skip

    for path, reason, answer in zip(stage.get("ESCAPES"), reasons, answers, strict=True):
        assert reason in answer, path
    _, link, folder = json.loads(remembered[0]["planner"])
    assert "symbolic link" in link and "no folder" in folder
    assert "outside" not in json.dumps(answers)
