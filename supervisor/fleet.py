"""The fleet: which process serves which session. Pure, and kept in memory only.

A process is launched blank. It is bound to (run, session, incarnation) by the committed event
ProcessStarted, and gets its session only after that commit; so what it may do is always on record
before it does it. A process of a step without a model goes on to the next such session of its run
(`isolation="role"`); one that ran an agent is used once. A few blank ones are kept ready, so that
a successor is bound within one round of the loop.
"""

from collections import Counter
from typing import Any

from planaria.protocol.effects import strip_attempts
from planaria.protocol.events import Draft
from planaria.protocol.limits import GRACE_MS
from planaria.protocol.messages import Deliver, Stop

from .context import pack_context, wrap_value
from .kernel_messages import Action, Kill, Launch, Send
from .run_state import Now, RunState, SessionState, StepState
from .system_state import (
    BLANK,
    BOUND,
    DYING,
    IDLE,
    LAUNCHING,
    ProcessState,
    SystemState,
)

Dying = set[tuple[str | None, str]]  # (run id, step path) of processes that are being ended

STOP_MS = 2_000  # how long a process that has nothing to do may take to end by itself


def assign(system: SystemState, now: Now) -> tuple[list[Draft], list[tuple[str, str, str]]]:
    """Returns ProcessStarted events and, for each, (process id, run id, session id).

    One session of each waiting run in turn, the run with the fewest processes first, so that a
    wide run starves nobody.
    """
    drafts: list[Draft] = []
    bindings: list[tuple[str, str, str]] = []
    taken: set[str] = set()
    free = sum(1 for p in system.processes.values() if p.status in (BLANK, IDLE))
    if system.is_stopping or not system.queue or free == 0:
        return drafts, bindings
    dying = {(p.run_id, p.step_path) for p in system.processes.values() if p.status == DYING}
    held = Counter(p.run_id for p in system.processes.values() if p.status in (BOUND, IDLE))
    chosen: set[str] = set()
    kinds = {p.kind for p in system.processes.values() if p.status in (BLANK, IDLE)}
    progress = True
    while progress and len(taken) < free:
        progress = False
        for run_id in sorted(system.queue, key=lambda run_id: _rank(system, run_id, held)):
            run = system.runs[run_id]
            may_keep = not _owes_a_process(system, run_id, held, dying, now)
            # A session of the other kind doesn't wait behind one for which there is no process.
            left = set(kinds)
            for session in run.waiting.values():
                if not left:
                    break
                kind = session.kind
                if session.id in chosen or kind not in left:
                    continue
                if not _may_start(system, run_id, session, dying, now):
                    continue
                process = _find_process(system, run_id, session, taken, may_keep)
                if process is None:
                    left.discard(kind)
                    continue
                taken.add(process.id)
                held[run_id] += process.status == BLANK
                chosen.add(session.id)
                payload = {
                    "sessionId": session.id,
                    "incarnation": session.incarnation + 1,
                    "pid": process.pid,
                    "startTime": process.start_time,
                    "bootId": system.boot_id,
                }
                drafts.append(Draft(run_id, "ProcessStarted", payload, session.id))
                bindings.append((process.id, run_id, session.id))
                progress = True
                break
    return drafts, bindings


def _rank(system: SystemState, run_id: str, held: Counter[str | None]) -> tuple[int, bool]:
    """Runs with few processes come first, and of those the ones that have open sub-runs.

    Else those sub-runs could take every slot, and what they answer would wait for one of them.
    """
    return held[run_id], not system.runs[run_id].sub_runs


def assign_errands(system: SystemState) -> list[Action]:
    """Gives errands to blank processes."""
    actions: list[Action] = []
    for errand in system.errands.values():
        if errand.process_id is not None or system.is_stopping:
            continue
        for process in system.processes.values():
            if process.status == BLANK and process.kind == errand.kind:
                process.status, process.errand_id = BOUND, errand.id
                process.run_id = errand.body["runId"]
                errand.process_id = process.id
                actions.append(Send(process.id, Deliver({"errandId": errand.id, **errand.body})))
                break
    return actions


def _may_start(
    system: SystemState, run_id: str, session: SessionState, dying: Dying, now: Now
) -> bool:
    epoch, mono = session.not_before
    if epoch == system.epoch and mono > now.mono:
        return False
    # No successor of a step while a process that carried it may still act.
    return not dying or (run_id, session.step.path) not in dying


def _owes_a_process(
    system: SystemState, run_id: str, held: Counter[str | None], dying: Dying, now: Now
) -> bool:
    """Says whether a run must leave a slot to one that waits with at least two fewer.

    With one fewer they would take it from each other for ever.
    """
    if len(system.processes) < system.children_max or held[run_id] < 2:
        return False
    return any(
        held[other] < held[run_id] - 1
        and any(_may_start(system, other, s, dying, now) for s in waiting.values())
        for other in system.queue
        if (waiting := system.runs[other].waiting)
    )


def _find_process(
    system: SystemState, run_id: str, session: SessionState, taken: set[str], may_keep: bool
) -> ProcessState | None:
    kind = session.kind
    blank: ProcessState | None = None
    for process in system.processes.values():
        if process.kind != kind or process.id in taken:
            continue
        if process.status == IDLE and process.run_id == run_id and may_keep:
            return process
        if process.status == BLANK and blank is None:
            blank = process
    return blank


def bind(system: SystemState, process_id: str, run_id: str, session: SessionState) -> None:
    """Notes that a process carries a session now."""
    process = system.processes[process_id]
    process.status = BOUND
    process.run_id, process.session_id = run_id, session.id
    process.incarnation = session.incarnation
    process.step_path = session.step.path
    process.had_agent = session.needs_agent
    system.bound[session.id] = process_id
    system.launch_failures = 0


def make_delivery(run: RunState, session: SessionState) -> Deliver:
    """Returns everything that a process needs to carry the session."""
    step = session.step
    assert run.plan is not None
    return Deliver(
        {
            "sessionId": session.id,
            "incarnation": session.incarnation,
            "role": session.role,
            "task": session.task,
            "runId": run.run_id,
            "workflowId": run.admission["workflowId"],
            "versionId": run.plan.version_id,
            "stepPath": step.path,
            "attempt": session.attempt,
            "startedAt": step.attempt_started_at,
            "step": step.plan.document,
            "context": pack_context(run, step),
            "tools": run.plan.lock.get("tools", {}),
            "models": run.plan.lock.get("models", {}),
            "source": run.admission["source"],
            "manifestHash": session.manifest_hash,
            "firstSequence": session.first_sequence,
            "lastSequence": session.last_sequence,
            "reported": session.reported,
            "hasHistory": session.incarnation > 1,
            "inherited": _pack_performed(run, session),
            "sensitive": step.plan.sensitive,
            "definition": run.plan.summary,
            "memory": run.plan.lock.get("memory", []),
            "skills": run.plan.lock.get("skills", []),
            "fix": _pack_fix(step),
            "budget": run.budget,
            "origins": [list(origin) for origin in run.inherited.origins] if run.inherited else [],
            "definitionHash": run.admission["workflowDefinitionHash"],
        }
    )


def _pack_fix(step: StepState) -> dict[str, Any] | None:
    """Returns what a fixer is told: the failure, and the fixes that have failed."""
    if not step.fix_attempt:
        return None
    return {
        "number": step.fix_attempt,
        "source": step.plan.document["with"]["source"],
        "error": step.error,
        "earlier": step.fixes,
        "fixer": step.plan.fixer,
    }


def _pack_performed(run: RunState, session: SessionState) -> dict[str, Any]:
    """Returns the results that earlier attempts recorded under their keys, wrapped as a context's.

    Also for a resumed session: what it has itself recorded it finds by position before by key.
    """
    performed = run.performed.get(strip_attempts(session.step.path), {})
    return {key: wrap_value(value) for key, value in performed.items()}


def release(system: SystemState, session_id: str, reported: int, failed: bool, now: Now) -> None:
    """Frees the process of a session that has ended: for the next one, or to end itself."""
    process_id = system.bound.pop(session_id, None)
    process = system.processes.get(process_id) if process_id else None
    if process is None or process.session_id != session_id or process.status == DYING:
        return
    process.reported = reported
    process.status = IDLE
    if failed or process.had_agent:
        retire(process, now)


def retire(process: ProcessState, now: Now) -> None:
    """Asks a process that has nothing to do any more to end by itself, for a while."""
    process.status = DYING
    process.kill_reason = "done"
    process.kill_at = now.mono + STOP_MS * 1_000


def tend(system: SystemState, now: Now, *, may_spare: bool = True) -> list[Action]:
    """Returns launches for what waits, and the retirement of processes that nobody needs.

    Without `may_spare` no spare is launched: it would compete with a process that is just bound.
    """
    actions: list[Action] = []
    for process in system.processes.values():
        if process.status != IDLE:
            continue
        run = system.runs.get(process.run_id or "")
        if run is None or run.is_ended or not run.sessions:
            retire(process, now)
        elif _is_crowded_out(system, process):
            retire(process, now)
    actions.extend(
        Send(p.id, Stop("done"))
        for p in system.processes.values()
        if p.status == DYING and p.kill_reason == "done" and not p.seen_stop
    )
    for process in system.processes.values():
        if process.status == DYING and process.kill_reason == "done":
            process.seen_stop = True
    if not system.is_stopping and system.launch_not_before <= now.mono:
        actions.extend(_launch(system, now, may_spare))
    return actions


def _is_crowded_out(system: SystemState, process: ProcessState) -> bool:
    """Says whether other runs wait for a process while this one's run has several."""
    if len(system.processes) < system.children_max:
        return False
    mine = sum(1 for p in system.processes.values() if p.run_id == process.run_id)
    others = any(run_id != process.run_id for run_id in system.queue)
    return others and mine > 1


def _launch(system: SystemState, now: Now, may_spare: bool) -> list[Action]:
    wanted = _count_wanted(system)
    for kind in wanted:
        system.kinds_used[kind] = None
    coming = Counter(p.kind for p in system.processes.values() if p.status in (LAUNCHING, BLANK))
    actions: list[Action] = []
    free = system.children_max - len(system.processes)
    # What is waited for comes before spares, and a kind of which none is coming before the other:
    # else the last slots go to spares of one kind, and the other one waits for ever.
    for spares in (0, system.spares) if may_spare else (0,):
        for kind in sorted(system.kinds_used, key=lambda kind: coming[kind] > 0):
            missing = wanted[kind] + spares - coming[kind]
            for _ in range(max(0, min(missing, free))):
                system.processes_made += 1
                process_id = f"p{system.epoch}-{system.processes_made}"
                system.processes[process_id] = ProcessState(
                    process_id, kind, LAUNCHING, launched_at=now.mono, seen_at=now.mono
                )
                actions.append(Launch(process_id, kind))
                coming[kind] += 1
                free -= 1
    if free <= 0 and wanted:
        actions.extend(_make_room(system, wanted, coming, now))
    return actions


def _count_wanted(system: SystemState) -> Counter[str]:
    """Returns how many waiting sessions there are of each kind; it stops at the slots there are."""
    wanted: Counter[str] = Counter()
    left = system.children_max
    for errand in system.errands.values():
        wanted[errand.kind] += errand.process_id is None
    for run_id in system.queue:
        for session in system.runs[run_id].waiting.values():
            wanted[session.kind] += 1
            left -= 1
            if left < 0:
                return wanted
    return wanted


def _make_room(
    system: SystemState, wanted: Counter[str], coming: Counter[str], now: Now
) -> list[Action]:
    """Ends an unused process of one kind when every slot is taken and the other kind has none.

    An idle one too, also if its own run is the one that waits: it waits for the other kind.
    """
    starved = [kind for kind in wanted if coming[kind] == 0]
    if not starved or any(p.status == DYING for p in system.processes.values()):
        return []
    for process in system.processes.values():
        if process.kind in starved:
            continue
        if process.status == BLANK:
            return [Kill(process.id, "put_away")]
        if process.status == IDLE:
            retire(process, now)
            process.seen_stop = True
            return [Send(process.id, Stop("done"))]
    return []


def ask_to_stop(process: ProcessState, now: Now) -> None:
    """Gives a process the grace time to end its session by itself."""
    process.kill_at = now.mono + GRACE_MS * 1_000
    process.kill_reason = "stopped"
