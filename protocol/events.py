"""Events: the past facts of which everything else is a fold. Their envelope, types and payloads.

An event's stored form is a msgpack array of its envelope and payload (see `encode_event`); its
hash, kept beside it, is sha256 over the previous hash of the same run and those bytes.
"""

from dataclasses import dataclass
from typing import Any

from .codec import pack, unpack
from .errors import IntegrityError, ProtocolError
from .limits import FRAME_BYTES_MAX

SCHEMA_VERSION = 1
# The roles that sessions have, and the task of each.
TASKS = {
    "planner": "plan",
    "orchestrator": "orchestrate",
    "worker": "execute_step",
    "fixer": "fix_step",
}


@dataclass(slots=True, frozen=True)
class Draft:
    """An event before it has a place in the log: what `decide` and `advance` answer."""

    run_id: str
    type: str
    payload: dict[str, Any]
    session_id: str | None = None
    incarnation: int | None = None
    blobs: tuple[bytes, ...] = ()  # what has to be stored before it, besides its own large values


@dataclass(slots=True)
class Event:
    """One committed fact of a run.

    `sequence` counts from 1 without gaps in each run; `at` is UTC in µs and only for people;
    `mono` is the writer's monotonic clock in µs and never falls within an `epoch`.
    `session_id` and `incarnation` are set on what a session's process reported.
    """

    run_id: str
    sequence: int
    type: str
    at: int
    mono: int
    epoch: int
    session_id: str | None
    incarnation: int | None
    payload: dict[str, Any]
    schema_version: int = SCHEMA_VERSION


def encode_event(event: Event) -> bytes:
    """Returns the bytes that are stored and hashed: an array of the envelope and the payload.

    The payload's keys stand in the order that `split_payload` has given them.
    """
    return pack(
        [
            event.schema_version,
            event.run_id,
            event.sequence,
            event.type,
            event.at,
            event.mono,
            event.epoch,
            event.session_id,
            event.incarnation,
            event.payload,
        ]
    )


def decode_event(body: bytes) -> Event:
    """Returns the event stored as `body`.

    Raises:
        IntegrityError: the bytes are no event, or one of a newer schema version or unknown type.
    """
    try:
        fields = unpack(body, bytes_max=2 * FRAME_BYTES_MAX)
    except ProtocolError as error:
        raise IntegrityError(message=f"a stored event is unreadable: {error}") from error
    if not isinstance(fields, list) or len(fields) != 10:
        raise IntegrityError(message="a stored event doesn't have the ten fields of its envelope")
    version, run_id, sequence, kind, at, mono, epoch, session_id, incarnation, payload = fields
    if version != SCHEMA_VERSION or kind not in PAYLOADS:
        raise IntegrityError(
            message=f"run {run_id!r} has an event of type {kind!r}, schema version {version}, "
            f"which this planaria doesn't know (it reads version {SCHEMA_VERSION}); the run is "
            "left untouched. Use a newer planaria"
        )
    return Event(run_id, sequence, kind, at, mono, epoch, session_id, incarnation, payload, version)


def check_payload(kind: str, payload: object) -> None:
    """Refuses a payload that lacks a field of its type or has one that its type doesn't know.

    A field's blob form (`outputRef` for `output`) stands for it.

    Raises:
        ProtocolError: which names type and field.
    """
    fields = PAYLOADS.get(kind)
    if fields is None:
        raise ProtocolError(message=f"unknown event type {kind!r}")
    if not isinstance(payload, dict):
        raise ProtocolError(message=f"the payload of {kind} is no map")
    required, allowed = fields
    if required <= payload.keys() <= allowed:
        return
    for name in sorted(required):
        if name not in payload and f"{name}Ref" not in payload:
            raise ProtocolError(message=f"{kind} lacks {name!r}")
    for name in sorted(payload):
        if name not in allowed:
            raise ProtocolError(message=f"{kind} has an unknown field {name!r}")


# Fields that may grow: where one is over the inline limit, its blob form `<name>Ref` stands there.
VALUE_FIELDS = frozenset("input output result args response messages cycle data".split())


def _fields(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Reads "a b? c": required names, and all names including the blob forms of value fields."""
    required: set[str] = set()
    allowed: set[str] = set()
    for word in text.split():
        name = word.removesuffix("?")
        allowed.add(name)
        if name in VALUE_FIELDS:
            allowed.add(f"{name}Ref")
        if name == word:
            required.add(name)
    return frozenset(required), frozenset(allowed)


# type -> (required fields, allowed fields). "x?" may be missing.
PAYLOADS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    kind: _fields(text)
    for kind, text in {
        # Layer A: the run and its steps
        "RunAdmitted": "workflowId workflowDefinitionHash trigger input inputHash source "
        "definitionRef? planOnly? parentRunId? parentCallId? parentStepPath? callPath? "
        "outerLoopId? cycleNumber? cycle? supervise? budget? onInterrupted? deadlineMs? labels?",
        "WorkflowVersionRegistered": "workflowVersionId lwirHash lockRef lockHash",
        "RunStarted": "workflowVersionId inputHash deadline?",
        "StepSkipped": "stepPath stepId because",
        "StepAttemptStarted": "stepPath branchPath? stepId visitIndex uses attempt fixAttempt? "
        "isInherited? sessionId?",
        "StepRetryScheduled": "stepPath nextAttempt dueAt",
        "StepRepairAttempted": "stepPath attempt findings",
        "StepCompleted": "stepPath branchPath? stepId visitIndex attempt output? chosen? metadata?",
        "StepFailed": "stepPath branchPath? stepId visitIndex attempt error",
        "ParallelGroupStarted": "stepPath attempt itemKeys",
        "ParallelBranchScheduled": "stepPath branchPath itemKey branchIndex",
        "ParallelBranchCompleted": "stepPath branchPath itemKey branchIndex output",
        "ParallelBranchFailed": "stepPath branchPath itemKey branchIndex error",
        "ParallelGroupCompleted": "stepPath attempt",
        "ParallelGroupFailed": "stepPath attempt error",
        "ParallelGroupTimedOut": "stepPath attempt",
        "ApprovalRequested": "approvalId stepPath? sessionId? callId? prompt data? dataHash "
        "expiresAt? onTimeout",
        "ApprovalResolved": "approvalId decision source by? note? decidedAt",
        "WaitStarted": "stepPath name? dueAt?",
        "SignalReceived": "signalId name data by?",
        "WaitCompleted": "stepPath outcome signalId?",
        "RunPaused": "by",
        "RunUnpaused": "by",
        "EffectResolved": "callId sessionId resolution by result? message?",
        "SubRunRequested": "subRunId workflowId wait planOnly? stepPath? sessionId? callId?",
        "SubRunSettled": "subRunId status output? error? usage spent?",
        "RunReopened": "by reason fromSequence source? deadline?",
        "RunForked": "fromRunId atSequence by changes inheritedRef",
        "BudgetReserved": "sessionId callId calls tokens costUsd",
        "BudgetSettled": "sessionId callId calls tokens costUsd",
        "BudgetExhausted": "sessionId callId error",
        "CancellationRequested": "requestId reason?",
        "RunInterrupted": "sessionId callId effect idempotencyKey toolName stepPath dispatchedAt",
        "RunCompleted": "output terminalStepPath?",
        "RunFailed": "error failedStepPath?",
        "RunCancelled": "requestId",
        # Layer C: sessions
        "harness.session.started": "role task stepPath attempt manifest manifestHash",
        "harness.session.resumed": "incarnation manifestHash replayedEvents digest",
        "harness.session.completed": "usage",
        "harness.session.failed": "error usage?",
        "harness.model.called": "callId position turn requestHash messages settings reserve?",
        "harness.model.repeated": "callId reserve",
        "harness.model.responded": "callId turn response usage model",
        "harness.model.failed": "callId turn error",
        "harness.tool_call.started": "callId position caller toolName args input? turn? callIndex? "
        "effect idempotencyKey",
        "harness.tool_call.succeeded": "callId result",
        "harness.tool_call.failed": "callId error",
        "harness.tool_call.unknown": "callId since evidence",
        "harness.tool_call.reattached": "callId answer",
        "harness.operation.started": "callId position name",
        "harness.operation.succeeded": "callId result",
        "harness.operation.failed": "callId error",
        "harness.warning": "text",
        "harness.memory.written": "store path sha256",
        **{f"harness.{task}.succeeded": "output metadata?" for task in TASKS.values()},
        **{f"harness.{task}.failed": "error metadata?" for task in TASKS.values()},
        # Processes
        "ProcessStarted": "sessionId incarnation pid startTime bootId",
        "ProcessExited": "sessionId incarnation reason exitCode? signal?",
        "SupervisorStarted": "supervisorId pid epoch version",
        "SupervisorStopped": "epoch reason",
        # Outer loops: the first one in the system's run, the other after a cycle's run has ended
        "OuterLoopStarted": "outerLoopId goal maxCycles inputHash supervise",
        "OuterLoopCycleCompleted": "outerLoopId cycleNumber supervise output?",
        "RunRecorded": "admittedRunId admissionHash",
        "RunPruned": "prunedRunId lastHash events firstPosition lastPosition outerLoopId? "
        "workflowVersionId? lockRef? definitionRef?",
    }.items()
}

_OF_TASKS = frozenset(
    f"harness.{t}.{end}" for t in TASKS.values() for end in ("succeeded", "failed")
)
_OF_ALL_ROLES = frozenset(kind for kind in PAYLOADS if kind.startswith("harness.")) - _OF_TASKS - {
    "harness.session.started",
    "harness.session.completed",
    "harness.session.failed",
    "harness.tool_call.unknown",
} | {"StepRepairAttempted", "ApprovalRequested"}
# What a session's process may report, by role (a closed list).
ROLE_EVENTS: dict[str, frozenset[str]] = {
    role: _OF_ALL_ROLES | {f"harness.{task}.succeeded", f"harness.{task}.failed"}
    for role, task in TASKS.items()
}

RUN_TERMINAL = frozenset({"RunCompleted", "RunFailed", "RunCancelled"})
