"""What is due: retries, deadlines, timeouts by the wall clock; liveness by the monotonic one.

A due instant itself counts as due, 1 µs before it doesn't.
"""

from planaria.protocol.events import Draft
from planaria.protocol.limits import LAUNCH_TIMEOUT_MS, SUB_RUN_LINGER_MS
from planaria.protocol.messages import Stop
from planaria.protocol.usage import copy_usage

from .advance import start_attempt
from .drafts import make_error
from .fold_waits import expire
from .kernel_messages import Action, Kill, Send
from .owed_sessions import close_calls
from .owed_sub_runs import cancel_sub_runs
from .resolving import resolve
from .run_state import Now, RunState, SessionState, StepState
from .scope_flow import sessions_below
from .system_state import BOUND, DYING, IDLE, LAUNCHING, ProcessState, SystemState


def decide_due(
    system: SystemState, due: tuple[str, ...], now: Now
) -> tuple[list[Draft], list[Action]]:
    """Returns the events and actions of everything that is due."""
    drafts: list[Draft] = []
    actions: list[Action] = []
    for run_id in due:
        run = system.runs.get(run_id)
        if run is not None and not run.is_ended:
            _decide_run(system, run, now, drafts, actions)
    actions.extend(_watch_processes(system, now))
    return drafts, actions


def _decide_run(
    system: SystemState, run: RunState, now: Now, drafts: list[Draft], actions: list[Action]
) -> None:
    passed = run.deadline is not None and run.deadline <= now.at
    if passed and run.cancellation is None:
        payload = {"requestId": "deadline", "reason": "timeout"}
        drafts.append(Draft(run.run_id, "CancellationRequested", payload))
        return
    drafts.extend(_end_waits(run, now))
    for step in run.backoffs.values():
        if step.due_at is not None and step.due_at <= now.at and not run.is_paused:
            drafts.extend(start_attempt(run, step))
    for path, step in run.timed.items():
        assert step.plan.timeout_ms is not None
        if step.attempt_started_at + step.plan.timeout_ms * 1_000 > now.at:
            continue
        if step.group is not None:
            timed_out = {"stepPath": path, "attempt": step.attempt}
            drafts.append(Draft(run.run_id, "ParallelGroupTimedOut", timed_out))
            for session in sessions_below(step.group):
                if session.id in system.bound:
                    actions.append(Kill(system.bound[session.id], "step_timeout"))
        elif step.sub_run_id is not None:
            drafts.extend(cancel_sub_runs(system, [run.sub_runs[step.sub_run_id]], "step_timeout"))
        elif step.session is not None and not step.session.is_held:
            drafts.extend(_time_out(run, step, step.session, now))
            if step.session.id in system.bound:
                actions.append(Kill(system.bound[step.session.id], "step_timeout"))


def _end_waits(run: RunState, now: Now) -> list[Draft]:
    """Ends the waits, approvals and held effects whose time has come."""
    drafts = []
    for wait in run.waits.values():
        if wait.due_at is not None and wait.due_at <= now.at:
            outcome = "timer" if wait.name is None else "expired"
            payload = {"stepPath": wait.path, "outcome": outcome}
            drafts.append(Draft(run.run_id, "WaitCompleted", payload))
    for approval in run.approvals.values():
        if approval.expires_at is not None and approval.expires_at <= now.at:
            drafts.append(expire(run, approval, now))
    patience = run.admission.get("onInterrupted")
    for call in run.unknown_effects.values():
        if type(patience) is not int or call.session_id not in run.sessions:
            continue
        if call.unknown_at + patience * 1_000 <= now.at and call.call_id not in run.resolutions:
            answer = {"callId": call.call_id, "resolution": "given_up"}
            drafts.extend(resolve(run, answer, "timer"))
    return drafts


def _time_out(run: RunState, step: StepState, session: SessionState, now: Now) -> list[Draft]:
    """Ends the attempt as timed out; an effect that can't be repeated holds it instead."""
    message = f"step {step.plan.id!r} ran longer than {step.plan.timeout_ms} ms"
    calls = close_calls(run, session, message, now)
    if any(call.fails_closed for call in session.open_calls.values()):
        return [draft for draft in calls if draft.type == "harness.tool_call.unknown"]
    error = make_error("StepTimeout", message, "step_timeout", retriable=True)
    failed = {"error": error, "usage": copy_usage(session.usage)}
    return [*calls, Draft(run.run_id, "harness.session.failed", failed, session.id)]


def _watch_processes(system: SystemState, now: Now) -> list[Action]:
    actions: list[Action] = []
    for process in system.processes.values():
        if process.kill_at is not None and process.kill_at <= now.mono:
            actions.append(Kill(process.id, process.kill_reason))
        elif process.status == LAUNCHING:
            if process.launched_at + LAUNCH_TIMEOUT_MS * 1_000 <= now.mono:
                actions.append(Kill(process.id, "not_ready"))
        elif process.status != DYING:
            if process.seen_at + system.heartbeat_timeout_ms * 1_000 <= now.mono:
                actions.append(Kill(process.id, "heartbeat_timeout"))
            elif (put_away_at := _put_away_at(system, process)) and put_away_at <= now.mono:
                actions.append(Send(process.id, Stop("shutdown")))
    return actions


def _put_away_at(system: SystemState, process: ProcessState) -> int | None:
    """Returns the monotonic µs at which a process is asked to end that only waits for sub-runs."""
    if not process.had_agent or process.status != BOUND or process.kill_at is not None:
        return None
    session = system.find_session(process)
    if session is None or not session.awaits_others:
        return None
    return process.reported_at + SUB_RUN_LINGER_MS * 1_000


def next_due(system: SystemState, now: Now) -> int | None:
    """Returns the µs from now until the next thing may be due; None: nothing is waited for."""
    waits: list[int] = []
    if system.timers:
        waits.append(system.timers[0][0] - now.at)
    for process in system.processes.values():
        if process.kill_at is not None:
            waits.append(process.kill_at - now.mono)
        elif process.status == LAUNCHING:
            waits.append(process.launched_at + LAUNCH_TIMEOUT_MS * 1_000 - now.mono)
        elif process.status in (BOUND, IDLE):
            waits.append(process.seen_at + system.heartbeat_timeout_ms * 1_000 - now.mono)
            put_away_at = _put_away_at(system, process)
            if put_away_at is not None:
                waits.append(put_away_at - now.mono)
    if system.delays:
        waits.append(system.delays[0] - now.mono)
    if system.launch_not_before > now.mono:
        waits.append(system.launch_not_before - now.mono)
    return max(0, min(waits)) if waits else None


def stop_actions(system: SystemState, run: RunState) -> list[Action]:
    """Returns the request to stop for every process that carries a session of a cancelled run."""
    return [
        Send(system.bound[session.id], Stop("cancel"))
        for session in run.sessions.values()
        if session.is_live and session.id in system.bound
    ]
