"""The fold of sub-runs: what a run has started, what it waits for, and what it got."""

from planaria.protocol.events import Event
from planaria.protocol.payloads import read_field
from planaria.protocol.usage import add_usage

from .budgets import Spending
from .fold_sessions import Handler
from .illegal import refuse_unless
from .run_state import RUNNING, Library, RunState, SubRunState
from .scope_flow import check_end


def _request(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    sub_run_id, path, call_id = (payload.get(n) for n in ("subRunId", "stepPath", "callId"))
    refuse_unless(sub_run_id not in run.sub_runs, event, f"twice for {sub_run_id!r}")
    sub_run = SubRunState(
        id=payload["subRunId"],
        workflow_id=payload["workflowId"],
        is_awaited=payload["wait"],
        is_plan_only=payload.get("planOnly", False),
        step_path=path,
        session_id=payload.get("sessionId"),
        call_id=call_id,
    )
    if path is not None:
        step = run.steps.get(path)
        legal = step is not None and step.status == RUNNING and ("call_workflow", path) in run.owed
        refuse_unless(legal, event, f"for {path!r}")
        assert step is not None
        del run.owed[("call_workflow", path)]
        step.sub_run_id = sub_run.id
        if not sub_run.is_awaited:
            step.sub_run_id = None
            run.owe("finish_call", path, detail={"subRunId": sub_run.id, "status": "started"})
    else:
        owed = ("request_sub_run", sub_run.session_id, call_id)
        refuse_unless(owed in run.owed, event, f"for call {call_id!r}")
        del run.owed[owed]
    run.sub_runs[sub_run.id] = sub_run


def _settle(run: RunState, event: Event, library: Library) -> None:
    payload = event.payload
    sub_run = run.sub_runs.get(payload["subRunId"])
    refuse_unless(sub_run is not None, event, f"for {payload['subRunId']!r}")
    assert sub_run is not None
    del run.sub_runs[sub_run.id]
    add_usage(run.usage, payload["usage"])
    if run.budget is not None:
        spent = payload["spent"]
        run.spent.add(Spending(spent["calls"], spent["tokens"], spent["costUsd"]))
    if sub_run.is_plan_only and payload["status"] == "completed":
        made = library.value(read_field(payload, "output"))
        assert isinstance(made, dict)
        run.planned[made["workflowVersionId"]] = (sub_run.workflow_id, made["lockRef"])
    settled = {**payload, "at": event.at, "isPlanOnly": sub_run.is_plan_only}
    if sub_run.step_path is not None and sub_run.is_awaited:
        run.owe("finish_call", sub_run.step_path, detail=settled)
    elif sub_run.session_id in run.sessions:
        if sub_run.call_id in run.sessions[sub_run.session_id or ""].open_calls:
            run.owe("answer_call", sub_run.session_id, sub_run.call_id, detail=settled)
    if run.root is not None:
        check_end(run, run.root)


SUB_RUN_HANDLERS: dict[str, Handler] = {
    "SubRunRequested": _request,
    "SubRunSettled": _settle,
}
