"""The state of one run: what its events say, and what they owe.

Only `fold` changes it. Records are mutable for speed (a step costs microseconds), but every
change follows from the event alone: the same events give the same state on any machine.

`owed` is the heart of it: an ordered set of the follow-ups that the events so far call for
("start this step", "end that group"). `advance` turns them into events, and the fold of such an
event takes its entry away. So an event whose follow-up was lost in a crash gets it at the next
start, by the mechanism that gives it in ordinary running.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from planaria.protocol.codec import Json
from planaria.protocol.payloads import Ref
from planaria.protocol.usage import Usage

from .budgets import Spending
from .inheritance import Inheritance
from .plan import Plan, ScopePlan, StepPlan

PENDING = "pending"
READY = "ready"
RUNNING = "running"
BACKOFF = "backoff"
COMPLETED = "completed"
SKIPPED = "skipped"
FAILED = "failed"
SETTLED = frozenset({COMPLETED, SKIPPED})
FAIL_CLOSED = frozenset({"once", "managed"})  # effects whose lost outcome nobody may guess

Value = Json | Ref
Error = dict[str, Any]  # {name, message, causeCode, retriable}
Owed = tuple[Any, ...]
FailureRank = tuple[bool, int]  # the lowest counts, see scope_flow.rank_failure
DECIDED: FailureRank = (False, -1)  # of a failure that no other one takes the place of


@dataclass(frozen=True, slots=True)
class Now:
    """One reading of both clocks, in µs: `at` is UTC, `mono` never falls within an epoch."""

    at: int
    mono: int


class Library(Protocol):
    """What the kernel may look up by hash; content-addressed, so that it stays pure."""

    def plan(self, version_id: str, lock_ref: dict[str, Any]) -> Plan: ...

    def price(
        self, model: str, provider: str | None, input_tokens: int, output_tokens: int
    ) -> float | None: ...

    def cost(self, usage: Usage) -> float | None: ...

    def value(self, value: Value) -> Json: ...

    def keep(self, data: bytes) -> None: ...

    def run(self, run_id: str) -> "RunState | None": ...


@dataclass(slots=True)
class CallState:
    """A model call, tool call or operation of a session that has no outcome yet."""

    call_id: str
    kind: str  # model | tool_call | operation
    effect: str
    tool_name: str
    idempotency_key: str
    started_at: int
    session_id: str = ""
    step_path: str = ""
    unknown_at: int = 0
    evidence: str = ""  # of its unknown outcome
    is_lost: bool = False  # only its outcome is missing, and nobody but a person can say it
    args: Value = None  # of a call that starts a sub-run
    sub_run_id: str | None = None

    @property
    def fails_closed(self) -> bool:
        """Says whether nobody may guess its outcome; that of a sub-run stands in its own log."""
        return self.effect in FAIL_CLOSED and self.sub_run_id is None


@dataclass(slots=True)
class SubRunState:
    """A run that this one has started, and that hasn't ended."""

    id: str
    workflow_id: str
    is_awaited: bool
    is_plan_only: bool
    step_path: str | None = None  # of the workflow.call step that has started it, or ...
    session_id: str | None = None  # ... the orchestrator's session, and its call
    call_id: str | None = None


def choose_kind(source: Mapping[str, Any], *, needs_agent: bool = False) -> str:
    """Returns the kind of process for code that is loaded by `source`: `light` or `heavy`.

    A heavy one has the agent library loaded already, which takes a second of CPU: that also pays
    where no agent works, but the user's modules import the library.
    """
    return "heavy" if needs_agent or source.get("importsAgents") else "light"


@dataclass(slots=True)
class ApprovalState:
    """A question that a person has to answer, or the time."""

    id: str
    step_path: str | None  # of an `approval` step, or ...
    session_id: str | None  # ... the session, one of whose calls asks
    expires_at: int | None  # UTC µs; that instant itself is too late
    on_timeout: str  # reject | fail
    requested: dict[str, Any]  # as it was shown
    requested_at: int


@dataclass(slots=True)
class WaitState:
    """A `wait` step: for a signal, or for an instant."""

    path: str
    name: str | None
    due_at: int | None
    since: int


@dataclass(slots=True)
class SessionState:
    """One attempt of a step, carried by one process at a time."""

    id: str
    step: "StepState"
    role: str
    task: str
    attempt: int
    started_at: int
    manifest_hash: str
    kind: str = "light"  # of the process that it needs: `heavy` has the agent library loaded
    incarnation: int = 0  # of the newest process; 0 before the first
    is_live: bool = False  # a process of this incarnation is bound to it
    reported: int = 0  # events that its processes reported, all incarnations together
    last_sequence: int = 0
    first_sequence: int = 0
    open_calls: dict[str, CallState] = field(default_factory=dict)
    crashes: list[tuple[int, int]] = field(default_factory=list)  # (epoch, mono) of each
    not_before: tuple[int, int] = (0, 0)  # (epoch, mono): the restart's delay
    usage: Usage = field(default_factory=dict)
    finish: tuple[str, Any, dict[str, Any]] | None = None  # (succeeded|failed, value, metadata)
    unknown_calls: list[CallState] = field(default_factory=list)
    approvals: dict[str, None] = field(default_factory=dict)  # open ones of its calls

    @property
    def is_held(self) -> bool:
        """Says whether the outcome of an effect is unknown, so that only a person can go on."""
        return any(call.fails_closed for call in self.unknown_calls)

    @property
    def awaits_others(self) -> bool:
        """Says whether it only waits for sub-runs or decisions, so that it needs no process."""
        calls = self.open_calls.values()
        waits = bool(calls or self.approvals)
        return waits and all(call.sub_run_id is not None for call in calls)

    @property
    def needs_agent(self) -> bool:
        """Says whether an agent works in it."""
        return self.role == "fixer" or self.step.plan.uses_agent


@dataclass(slots=True)
class StepState:
    """One step of a scope: where it is now, and the outputs of its committed visits."""

    scope: "ScopeState"
    plan: StepPlan
    status: str = PENDING
    outputs: list[Value] = field(default_factory=list)
    chosen: str | None = None
    is_called_back: bool = False  # a back edge has chosen it, and it hasn't started since
    attempt: int = 0
    attempt_started_at: int = 0
    error: Error | None = None
    failed_at: int = 0
    due_at: int | None = None
    session: SessionState | None = None
    group: "GroupState | None" = None
    context: tuple[tuple[str, "StepState", int], ...] = ()  # (id, step, visible visits)
    kept: dict[str, tuple[str, Value]] = field(default_factory=dict)  # branches of an attempt
    usage: Usage = field(default_factory=dict)  # of all its sessions
    attempts_before: int = 0  # of earlier openings of the run: the retry policy begins anew
    fix_attempt: int = 0  # 0: not a fixer's
    fixes: list[dict[str, Any]] = field(default_factory=list)  # {source, error} of failed fixes
    sub_run_id: str | None = None

    @property
    def visit_index(self) -> int:
        """Returns the index of the visit that is open, or would be next."""
        return len(self.outputs)

    @property
    def path(self) -> str:
        """Returns the path of the open or next visit."""
        prefix = f"{self.scope.path}." if self.scope.path else ""
        visit = f".visit[{len(self.outputs)}]" if self.plan.multi else ""
        return f"{prefix}{self.plan.id}{visit}"


@dataclass(slots=True)
class GroupState:
    """The branches of one attempt of a `parallel` step."""

    step: StepState
    keys: list[str]
    items: list[Json]
    next_index: int = 0
    results: dict[int, tuple[str, Value]] = field(default_factory=dict)  # completed|failed
    live: dict[int, "ScopeState"] = field(default_factory=dict)
    failure: Error | None = None
    failure_rank: FailureRank = DECIDED
    is_halted: bool = False

    def branch_path(self, index: int) -> str:
        """Returns the path of a branch; a retried group's have another attempt in theirs."""
        attempt = f"@attempt_{self.step.attempt}" if self.step.attempt > 1 else ""
        return f"{self.step.path}{attempt}[{encode_key(self.keys[index])}]"


@dataclass(slots=True)
class ScopeState:
    """The top level of a run (`path` empty), or the inside of one branch."""

    path: str
    plan: ScopePlan
    group: GroupState | None
    branch_index: int = 0
    steps: list[StepState] = field(default_factory=list)
    unsettled: int = 0
    running: int = 0  # steps that are running or in back-off
    failure: tuple[Error, str] | None = None  # and its step path
    failure_rank: FailureRank = DECIDED
    is_halted: bool = False  # no step of it starts any more
    loop_visits: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class RunState:
    """One run, folded from its events."""

    run_id: str
    sequence: int = 0
    status: str = "new"  # new|admitted|running|interrupted|completed|failed|cancelled
    admission: dict[str, Any] = field(default_factory=dict)
    admitted_at: int = 0
    ended_at: int = 0
    input: Value = None
    plan: Plan | None = None
    root: ScopeState | None = None
    deadline: int | None = None
    cancellation: dict[str, Any] | None = None
    output: Value = None
    error: Error | None = None
    failed_step_path: str | None = None
    owed: dict[Owed, Any] = field(default_factory=dict)
    steps: dict[str, StepState] = field(default_factory=dict)  # open visits by their path
    groups: dict[str, GroupState] = field(default_factory=dict)  # by the path of their step
    branches: dict[str, ScopeState] = field(default_factory=dict)
    sessions: dict[str, SessionState] = field(default_factory=dict)  # open ones
    waiting: dict[str, SessionState] = field(default_factory=dict)  # open ones without a process
    backoffs: dict[str, StepState] = field(default_factory=dict)
    timed: dict[str, StepState] = field(default_factory=dict)  # running ones with a timeout
    usage: Usage = field(default_factory=dict)
    budget: dict[str, Any] | None = None
    spent: Spending = field(default_factory=Spending)
    cycle: Value = None  # of an outer loop, as planners and expressions see it
    lock_ref: dict[str, Any] | None = None
    cycle_completed: dict[str, Any] | None = None  # of an outer loop's cycle, once it has ended
    is_planning: bool = False
    planning_usage: Usage = field(default_factory=dict)  # of the planner, once it has drafted
    is_started: bool = False
    approvals: dict[str, ApprovalState] = field(default_factory=dict)  # open ones
    decided: dict[str, dict[str, Any]] = field(default_factory=dict)  # ApprovalResolved by id
    waits: dict[str, WaitState] = field(default_factory=dict)  # open ones, by step path
    signals: dict[str, dict[str, Value]] = field(default_factory=dict)  # by name, then id: kept
    signal_hashes: dict[str, str] = field(default_factory=dict)  # of every signal, by its id
    pause: dict[str, Any] | None = None  # {by, at} while nothing may start
    sub_runs: dict[str, SubRunState] = field(default_factory=dict)  # open ones
    # Versions that a planner has made for this run to start: (workflow id, reference of the lock)
    planned: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    # Recorded successes of effects that aren't `read`, by step path without attempts, then by
    # key: a later attempt, of the step or of a group around it, is handed them.
    performed: dict[str, dict[str, Value]] = field(default_factory=dict)
    # Effects that may or may not have happened when their session was ended from outside.
    unknown_effects: dict[str, CallState] = field(default_factory=dict)
    resolutions: dict[str, dict[str, Any]] = field(default_factory=dict)  # EffectResolved by call
    inherited: Inheritance | None = None  # of a fork
    forked_from: dict[str, Any] | None = None  # {fromRunId, atSequence}

    @property
    def is_ended(self) -> bool:
        """Says whether the run has its terminal event."""
        return self.status in ("completed", "failed", "cancelled")

    @property
    def is_paused(self) -> bool:
        """Says whether it may start nothing until somebody lets it go on."""
        return self.pause is not None

    @property
    def awaits_sub_runs(self) -> bool:
        """Says whether a sub-run that it waits for is open."""
        return any(sub.is_awaited for sub in self.sub_runs.values())

    def owe(self, *what: Any, detail: Any = None) -> None:
        """Notes a follow-up; one that stands there already keeps its place."""
        self.owed.setdefault(what, detail)


_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-~")


def encode_key(key: str) -> str:
    """Returns an item key as it stands in a path: percent-encoded, a dot as `%2E`."""
    if _UNRESERVED.issuperset(key):
        return key
    return "".join(
        c if c in _UNRESERVED else "".join(f"%{byte:02X}" for byte in c.encode()) for c in key
    )


ReadValue = Callable[[Value], Json]


def visible_visits(reader: StepState, step: StepState) -> int:
    """Returns how many visits of `step` a visit of `reader` sees, whatever finished first.

    All of them, if the step comes before the reader or in a scope around it: it is settled then.
    On a common cycle beside the reader: those from before the pass that both are in.
    """
    scope = step.scope
    inner: ScopeState | None = reader.scope
    position = reader.plan.index
    while inner is not None and inner is not scope:
        assert inner.group is not None, "a branch has a group"
        position = inner.group.step.plan.index
        inner = inner.group.step.scope
    target = step.plan.index
    if target in scope.plan.graph.ancestors[position]:
        return len(step.outputs)
    seen = 0
    for loop in scope.plan.graph.loops:
        if position in loop.members and target in loop.members:
            counts = scope.loop_visits.get((loop.decision, loop.target), {})
            seen = max(seen, counts.get(target, 0))
    return seen


def find_step(scope: ScopeState, step_id: str) -> StepState | None:
    """Returns the step that an id means at a place: of the scope itself, else of those around."""
    inner: ScopeState | None = scope
    while inner is not None:
        for step in inner.steps:
            if step.plan.id == step_id:
                return step
        inner = inner.group.step.scope if inner.group else None
    return None
