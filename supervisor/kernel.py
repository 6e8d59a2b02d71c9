"""The kernel: one message in; events to commit, then actions to take, out. No I/O, no clock.

    message ─▶ decide ─▶ events ─▶ fold ─▶ advance until nothing is owed ─▶ fleet ─▶ actions

`handle` is called for every message that has arrived; the shell (`loop.py`) then commits the
events of all of them in one transaction, and only after that takes the actions.
"""

from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.errors import PlanariaError
from planaria.protocol.events import Draft, Event
from planaria.protocol.limits import MAX_RESTARTS
from planaria.protocol.messages import Settled, Stop
from planaria.protocol.payloads import Ref, split_payload

from .advance import advance
from .decide import decide
from .fleet import (
    ask_to_stop,
    assign,
    assign_errands,
    bind,
    make_delivery,
    release,
    retire,
    tend,
)
from .fold import fold
from .kernel_messages import (
    Action,
    DriveLoop,
    ErrandEnded,
    Feed,
    KernelMessage,
    Kill,
    LaunchFailed,
    ProcessEnded,
    ProcessReady,
    ProcessSeen,
    Send,
    SessionReported,
    StopLoop,
    StopSystem,
    Tick,
)
from .outer_loop import STOPPED, SUPERVISING, fold_loop_event
from .owed_sub_runs import PARENT_STOPPED, cancel_sub_runs, find_sub_runs, settle_in_parent
from .run_state import Library, Now, RunState
from .scope_flow import sub_runs_below
from .system_state import BLANK, BOUND, DYING, LAUNCHING, Errand, SystemState
from .timers import stop_actions

FOLLOW_UPS_MAX = 1_000_000  # a bug that owes for ever ends here
LAUNCH_PAUSE_US = 200_000  # after a failed launch, doubled up to 64 times it


@dataclass(slots=True)
class Turn:
    """What one message led to: blobs to write before the events, and actions for afterwards."""

    events: list[Event] = field(default_factory=list)
    blobs: list[bytes] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)  # manifests, before the events
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # of the system's run


class Kernel:
    """The state of everything, and the one way to change it."""

    def __init__(self, system: SystemState, library: Library) -> None:
        self.system = system
        self._library = library
        self._touched: dict[str, None] = {}  # runs with new events that aren't followed up yet

    def handle(self, message: KernelMessage, now: Now) -> Turn:
        """Decides, folds and follows up one message."""
        turn = Turn()
        if isinstance(message, Tick):
            message = Tick(self.system.pop_due(now.at))
            self.system.pop_delays(now.mono)
        self._note_process(message, now)
        decision = decide(self.system, message, now, self._library)
        for action in decision.actions:
            self._note_action(action, now)
        turn.actions.extend(decision.actions)
        turn.files.extend(decision.files)
        turn.notes.extend(decision.notes)
        self.system.loops.update({loop.id: loop for loop in decision.loops})
        self._take_errands(message, decision.errands, now)
        self._record(decision.drafts, turn, now)
        self._forget_process(message)
        self._follow_up(turn, now)
        return turn

    def load(self, run: RunState) -> None:
        """Takes an open run, folded from the log; all are there before the first is recovered."""
        self.system.runs[run.run_id] = run

    def recover(self, run_id: str, now: Now) -> Turn:
        """Ends what an earlier supervisor left of a run, and lets it go on."""
        turn = Turn()
        run = self.system.runs[run_id]
        drafts = [
            Draft(
                run.run_id,
                "ProcessExited",
                {
                    "sessionId": session.id,
                    "incarnation": session.incarnation,
                    "reason": "supervisor_lost",
                },
                session.id,
            )
            for session in run.sessions.values()
            if session.is_live
        ]
        self._record(drafts, turn, now)
        self._record(find_sub_runs(self.system, run, self._library), turn, now)
        self._set_timers(run)
        self._touched[run.run_id] = None
        self._follow_up(turn, now)
        return turn

    def can_read(self, ref: dict[str, Any]) -> bool:
        """Says whether a blob holds a value, so that decisions on it can be made."""
        try:
            self._library.value(Ref(ref))
        except PlanariaError:
            return False
        return True

    def _record(self, drafts: list[Draft], turn: Turn, now: Now) -> None:
        for draft in drafts:
            self._touched[draft.run_id] = None
            run = self.system.runs.get(draft.run_id)
            if run is None:
                run = self.system.runs[draft.run_id] = RunState(draft.run_id)
            turn.blobs.extend(draft.blobs)
            payload, blobs = split_payload(draft.payload)
            for blob in blobs:
                self._library.keep(blob)  # a follow-up may read it before the shell has stored it
            turn.blobs.extend(blobs)
            event = Event(
                run_id=draft.run_id,
                sequence=run.sequence + 1,
                type=draft.type,
                at=now.at,
                mono=now.mono,
                epoch=self.system.epoch,
                session_id=draft.session_id,
                incarnation=draft.incarnation,
                payload=payload,
            )
            fold(run, event, self._library)
            fold_loop_event(self.system.loops, run, event)
            turn.events.append(event)
            self._react(run, event, turn, now)

    def _react(self, run: RunState, event: Event, turn: Turn, now: Now) -> None:
        """Keeps the fleet and the timers in step with what was recorded."""
        match event.type:
            case "harness.session.completed" | "harness.session.failed":
                failed = event.type.endswith("failed")
                assert event.session_id is not None
                process_id = self.system.bound.get(event.session_id)
                process = self.system.processes.get(process_id or "")
                reported = process.reported if process else 0
                release(self.system, event.session_id, reported, failed, now)
                left = [s for s in run.sub_runs.values() if s.session_id == event.session_id]
                self._record(cancel_sub_runs(self.system, left, PARENT_STOPPED), turn, now)
            case "harness.tool_call.succeeded" if event.incarnation is None:
                self._tell_session(event, turn)
            case "StepRetryScheduled":
                self.system.set_timer(event.payload["dueAt"], run.run_id)
            case "StepAttemptStarted":
                step = run.steps[event.payload["stepPath"]]
                if step.plan.timeout_ms is not None:
                    due_at = event.at + step.plan.timeout_ms * 1_000
                    self.system.set_timer(due_at, run.run_id)
            case "ApprovalRequested" | "WaitStarted":
                due = event.payload.get("expiresAt", event.payload.get("dueAt"))
                if due is not None:
                    self.system.set_timer(due, run.run_id)
            case "ApprovalResolved" if event.session_id is not None:
                self._tell_session(event, turn)
            case "RunUnpaused":
                self._set_timers(run)
            case "harness.tool_call.unknown":
                patience = run.admission.get("onInterrupted")
                if type(patience) is int:
                    self.system.set_timer(event.at + patience * 1_000, run.run_id)
                process = self.system.processes.get(
                    self.system.bound.get(event.session_id or "", "")
                )
                if process is not None and process.status == BOUND:
                    stop = Send(process.id, Stop("shutdown"))
                    turn.actions.extend(self._noted([stop], now))
            case "RunStarted":
                if run.deadline is not None:
                    self.system.set_timer(run.deadline, run.run_id)
            case "CancellationRequested":
                for action in stop_actions(self.system, run):
                    turn.actions.append(action)
                    assert isinstance(action, Send)
                    ask_to_stop(self.system.processes[action.process_id], now)
                left = list(run.sub_runs.values())
                self._record(cancel_sub_runs(self.system, left, PARENT_STOPPED), turn, now)
            case "ParallelGroupTimedOut":
                left = sub_runs_below(run, run.groups[event.payload["stepPath"]])
                self._record(cancel_sub_runs(self.system, left, PARENT_STOPPED), turn, now)
            case "ProcessExited" | "EffectResolved":
                if event.type == "ProcessExited":
                    self.system.bound.pop(event.session_id or "", None)
                session = run.waiting.get(event.session_id or "")
                if session is not None and session.not_before[1] > now.mono:
                    self.system.set_delay(session.not_before[1])
            case "RunCompleted" | "RunFailed" | "RunCancelled":
                self.system.ended.append(run.run_id)
                if run.admission.get("outerLoopId") in self.system.loops:
                    turn.actions.append(Feed(DriveLoop(run.admission["outerLoopId"])))
                self._record(settle_in_parent(self.system, run, self._library), turn, now)
            case "OuterLoopCycleCompleted":
                self.system.ended.append(run.run_id)
            case _:
                pass

    def _take_errands(self, message: KernelMessage, errands: list[Errand], now: Now) -> None:
        """Notes errands to be done, and frees the process of one that is done."""
        for errand in errands:
            if self.system.errands.setdefault(errand.id, errand) is errand:
                self.system.loops[errand.loop_id].phase = SUPERVISING
        if isinstance(message, ErrandEnded):
            ended = self.system.errands.get(message.errand_id)
            if ended is not None and ended.process_id == message.process_id:
                del self.system.errands[message.errand_id]
                retire(self.system.processes[message.process_id], now)

    def _tell_session(self, event: Event, turn: Turn) -> None:
        """Tells a living session the outcome of a call that it waits for."""
        assert event.session_id is not None
        process_id = self.system.bound.get(event.session_id)
        process = self.system.processes.get(process_id or "")
        if process is not None and process.status == BOUND:
            told = Settled(event.session_id, process.incarnation, event.type, event.payload)
            turn.actions.append(Send(process.id, told))

    def _follow_up(self, turn: Turn, now: Now) -> None:
        while self._touched:
            run_id = next(iter(self._touched))
            del self._touched[run_id]
            self._advance(self.system.runs[run_id], turn, now)
        self._run_fleet(turn, now)
        self._touched.clear()

    def _advance(self, run: RunState, turn: Turn, now: Now) -> None:
        for _ in range(FOLLOW_UPS_MAX):
            drafts = advance(run, now, self._library)
            if not drafts:
                break
            self._record(drafts, turn, now)
        else:
            raise AssertionError(f"run {run.run_id!r} owes without end: {list(run.owed)[:3]}")
        if run.waiting and not run.is_ended and not run.is_paused:
            self.system.queue.setdefault(run.run_id)
        else:
            self.system.queue.pop(run.run_id, None)

    def _run_fleet(self, turn: Turn, now: Now) -> None:
        turn.actions.extend(assign_errands(self.system))
        drafts, bindings = assign(self.system, now)
        self._record(drafts, turn, now)
        for process_id, run_id, session_id in bindings:
            run = self.system.runs[run_id]
            session = run.sessions[session_id]
            bind(self.system, process_id, run_id, session)
            turn.actions.append(Send(process_id, make_delivery(run, session)))
            if not run.waiting:
                self.system.queue.pop(run_id, None)
        turn.actions.extend(self._noted(tend(self.system, now, may_spare=not bindings), now))

    def _noted(self, actions: list[Action], now: Now) -> list[Action]:
        for action in actions:
            self._note_action(action, now)
        return actions

    def _note_action(self, action: Action, now: Now) -> None:
        if isinstance(action, Kill):
            process = self.system.processes.get(action.process_id)
            if process is not None:
                process.status = DYING
                process.kill_reason = action.reason
                process.kill_at = None
        elif isinstance(action, StopLoop):
            loop = self.system.loops[action.loop_id]
            loop.phase, loop.error = STOPPED, action.error
        elif isinstance(action, Send) and isinstance(action.message, Stop):
            process = self.system.processes.get(action.process_id)
            if process is not None and action.message.reason == "shutdown":
                ask_to_stop(process, now)
                process.kill_reason = "put_away"

    def _note_process(self, message: KernelMessage, now: Now) -> None:
        """Updates what is known of a process, before anything is decided on it."""
        if isinstance(message, StopSystem):
            self.system.is_stopping = True
            return
        process_id = getattr(message, "process_id", None)
        process = self.system.processes.get(process_id) if process_id else None
        if process is None:
            return
        match message:
            case ProcessReady():
                if process.status == LAUNCHING:
                    process.status = BLANK
                    process.pid, process.start_time = message.pid, message.start_time
                process.seen_at = now.mono
            case SessionReported():
                process.seen_at = process.reported_at = now.mono
            case ProcessSeen():
                process.seen_at = now.mono
            case LaunchFailed():
                pause = LAUNCH_PAUSE_US * 2 ** min(self.system.launch_failures, 6)
                self.system.launch_failures += 1
                self.system.launch_not_before = now.mono + pause
            case _:
                pass
        session = self.system.find_session(process)
        if isinstance(message, SessionReported) and session is not None:
            process.reported = max(process.reported, message.after + len(message.events))

    def _forget_process(self, message: KernelMessage) -> None:
        if isinstance(message, ProcessEnded | LaunchFailed):
            process = self.system.processes.pop(message.process_id, None)
            errand = self.system.errands.get((process and process.errand_id) or "")
            if errand is not None and errand.process_id == message.process_id:
                errand.process_id = None
                errand.deaths += 1
                if errand.deaths > MAX_RESTARTS:
                    del self.system.errands[errand.id]
            if process is not None and process.session_id is not None:
                if self.system.bound.get(process.session_id) == process.id:
                    del self.system.bound[process.session_id]

    def _set_timers(self, run: RunState) -> None:
        """Sets the timers of a run that was folded from the log."""
        if run.deadline is not None:
            self.system.set_timer(run.deadline, run.run_id)
        for step in run.backoffs.values():
            if step.due_at is not None:
                self.system.set_timer(step.due_at, run.run_id)
        for wait in run.waits.values():
            if wait.due_at is not None:
                self.system.set_timer(wait.due_at, run.run_id)
        for approval in run.approvals.values():
            if approval.expires_at is not None:
                self.system.set_timer(approval.expires_at, run.run_id)
        patience = run.admission.get("onInterrupted")
        for call in run.unknown_effects.values():
            if type(patience) is int:
                self.system.set_timer(call.unknown_at + patience * 1_000, run.run_id)
        for step in run.timed.values():
            assert step.plan.timeout_ms is not None
            due_at = step.attempt_started_at + step.plan.timeout_ms * 1_000
            self.system.set_timer(due_at, run.run_id)
