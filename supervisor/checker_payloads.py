"""What the payload of each event type holds, and the limits of its values (I3, I32).

This table stands beside protocol/events.py on purpose: whoever changes the format changes both
(test_checker_knows_the_fields_of_every_event_type), and this one knows the types of the fields.
"""

from collections.abc import Iterator
from typing import Any

from planaria.protocol.limits import ERROR_TEXT_CHARS_MAX, FRAME_BYTES_MAX, INLINE_BYTES_MAX

from .checker_facts import Fact, pack_value

EVENT_BYTES_MAX = 2 * FRAME_BYTES_MAX  # a batch of a child is one frame; the envelope is beside it
EFFECTS = frozenset({"read", "idempotent", "managed", "once"})
# The roles that sessions have, and the task of each.
TASKS = {
    "planner": "plan",
    "orchestrator": "orchestrate",
    "worker": "execute_step",
    "fixer": "fix_step",
}

# name:type, "?" after the name if it may be missing (or null). Types: s text, S text or null,
# n number from 0, b boolean, c cost from 0 or null, m map, l list, a anything, v a value (which may
# stand in the blob store as <name>Ref), e an error, r a blob reference.
_TEXTS = {
    "RunAdmitted": "workflowId:s workflowDefinitionHash:s trigger:a input:v inputHash:s source:m "
    "definitionRef?:r planOnly?:b parentRunId?:s parentCallId?:s parentStepPath?:s callPath?:l "
    "outerLoopId?:s cycleNumber?:n cycle?:v supervise?:a budget?:m onInterrupted?:a deadlineMs?:n "
    "labels?:a",
    "WorkflowVersionRegistered": "workflowVersionId:s lwirHash:s lockRef:r lockHash:s",
    "RunStarted": "workflowVersionId:s inputHash:s deadline?:n",
    "StepSkipped": "stepPath:s stepId:s because:s",
    "StepAttemptStarted": "stepPath:s branchPath?:s stepId:s visitIndex:n uses:s attempt:n "
    "fixAttempt?:n isInherited?:b sessionId?:s",
    "StepRetryScheduled": "stepPath:s nextAttempt:n dueAt:n",
    "StepRepairAttempted": "stepPath:s attempt:n findings:a",
    "StepCompleted": "stepPath:s branchPath?:s stepId:s visitIndex:n attempt:n output?:v "
    "chosen?:s metadata?:a",
    "StepFailed": "stepPath:s branchPath?:s stepId:s visitIndex:n attempt:n error:e",
    "ParallelGroupStarted": "stepPath:s attempt:n itemKeys:l",
    "ParallelBranchScheduled": "stepPath:s branchPath:s itemKey:s branchIndex:n",
    "ParallelBranchCompleted": "stepPath:s branchPath:s itemKey:s branchIndex:n output:v",
    "ParallelBranchFailed": "stepPath:s branchPath:s itemKey:s branchIndex:n error:e",
    "ParallelGroupCompleted": "stepPath:s attempt:n",
    "ParallelGroupFailed": "stepPath:s attempt:n error:e",
    "ParallelGroupTimedOut": "stepPath:s attempt:n",
    "ApprovalRequested": "approvalId:s stepPath?:s sessionId?:s callId?:s prompt:s data?:v "
    "dataHash:s expiresAt?:n onTimeout:s",
    "ApprovalResolved": "approvalId:s decision:s source:s by?:s note?:s decidedAt:n",
    "WaitStarted": "stepPath:s name?:s dueAt?:n",
    "SignalReceived": "signalId:s name:s data:v by?:s",
    "WaitCompleted": "stepPath:s outcome:s signalId?:s",
    "RunPaused": "by:s",
    "RunUnpaused": "by:s",
    "EffectResolved": "callId:s sessionId:s resolution:s by:s result?:v message?:s",
    "SubRunRequested": "subRunId:s workflowId:s wait:b planOnly?:b stepPath?:s sessionId?:s "
    "callId?:s",
    "SubRunSettled": "subRunId:s status:s output?:v error?:e usage:m spent?:m",
    "RunReopened": "by:s reason:a fromSequence:n source?:m deadline?:n",
    "RunForked": "fromRunId:s atSequence:n by:s changes:m inheritedRef:r",
    "BudgetReserved": "sessionId:s callId:s calls:n tokens:n costUsd:c",
    "BudgetSettled": "sessionId:s callId:s calls:n tokens:n costUsd:c",
    "BudgetExhausted": "sessionId:s callId:s error:e",
    "CancellationRequested": "requestId:s reason?:s",
    "RunInterrupted": "sessionId:s callId:s effect:s idempotencyKey:s toolName:s stepPath:s "
    "dispatchedAt:n",
    "RunCompleted": "output:v terminalStepPath?:S",
    "RunFailed": "error:e failedStepPath?:S",
    "RunCancelled": "requestId:s",
    "harness.session.started": "role:s task:s stepPath:s attempt:n manifest:m manifestHash:s",
    "harness.session.resumed": "incarnation:n manifestHash:s replayedEvents:n digest:s",
    "harness.session.completed": "usage:m",
    "harness.session.failed": "error:e usage?:m",
    "harness.model.called": "callId:s position:s turn:n requestHash:s messages:v settings:a "
    "reserve?:a",
    "harness.model.repeated": "callId:s reserve:a",
    "harness.model.responded": "callId:s turn:n response:v usage:m model:a",
    "harness.model.failed": "callId:s turn:n error:e",
    "harness.tool_call.started": "callId:s position:s caller:s toolName:s args:v input?:v turn?:n "
    "callIndex?:n effect:s idempotencyKey:s",
    "harness.tool_call.succeeded": "callId:s result:v",
    "harness.tool_call.failed": "callId:s error:e",
    "harness.tool_call.unknown": "callId:s since:n evidence:s",
    "harness.tool_call.reattached": "callId:s answer:s",
    "harness.operation.started": "callId:s position:s name:s",
    "harness.operation.succeeded": "callId:s result:v",
    "harness.operation.failed": "callId:s error:e",
    "harness.warning": "text:s",
    "harness.memory.written": "store:s path:s sha256:s",
    **{f"harness.{task}.succeeded": "output:v metadata?:a" for task in TASKS.values()},
    **{f"harness.{task}.failed": "error:e metadata?:a" for task in TASKS.values()},
    "ProcessStarted": "sessionId:s incarnation:n pid:n startTime:n bootId:s",
    "ProcessExited": "sessionId:s incarnation:n reason:s exitCode?:n signal?:n",
    "SupervisorStarted": "supervisorId:s pid:n epoch:n version:s",
    "SupervisorStopped": "epoch:n reason:s",
    "OuterLoopStarted": "outerLoopId:s goal:m maxCycles:n inputHash:s supervise:a",
    "OuterLoopCycleCompleted": "outerLoopId:s cycleNumber:n supervise:m output?:v",
    "RunRecorded": "admittedRunId:s admissionHash:s",
    "RunPruned": "prunedRunId:s lastHash:s events:n firstPosition:n lastPosition:n outerLoopId?:s "
    "workflowVersionId?:s lockRef?:r definitionRef?:r",
}


def _read_fields(text: str) -> dict[str, tuple[str, bool]]:
    fields: dict[str, tuple[str, bool]] = {}
    for word in text.split():
        name, _, kind = word.partition(":")
        fields[name.removesuffix("?")] = (kind, not name.endswith("?"))
    return fields


# type -> field -> (type of the field, whether it must be there)
FIELDS = {kind: _read_fields(text) for kind, text in _TEXTS.items()}


def find_payload_problems(fact: Fact) -> Iterator[tuple[str, str]]:
    """Yields (invariant, message) for each field that doesn't fit, and each exceeded limit."""
    fields = FIELDS.get(fact.type)
    if fields is None:
        yield "I3", f"its type {fact.type[:80]!r} is unknown"
        return
    payload = fact.payload
    known = 0
    for name, (kind, is_required) in fields.items():
        if name in payload:
            known += 1
            problem = _check_field(kind, payload[name], is_required)
            if problem is not None:
                yield "I3", f"{fact.type}: {name!r} is {problem}"
        elif kind == "v" and f"{name}Ref" in payload:
            known += 1
            if not is_blob_ref(payload[f"{name}Ref"]):
                yield "I3", f"{fact.type}: '{name}Ref' is no blob reference"
        elif is_required:
            yield "I3", f"{fact.type} lacks {name!r}"
    if known != len(payload):
        allowed = fields.keys() | {f"{n}Ref" for n, (kind, _) in fields.items() if kind == "v"}
        extra = ", ".join(sorted(str(name)[:40] for name in payload.keys() - allowed))
        yield "I3", f"{fact.type} has fields that don't belong there: {extra or 'twice'}"
    if fact.type == "harness.tool_call.started" and payload.get("effect") not in EFFECTS:
        yield "I3", f"effect {payload.get('effect')!r} is none of the four classes"
    yield from _find_excess(fact, fields)


def _check_field(kind: str, value: Any, is_required: bool) -> str | None:
    """Returns what is wrong with a field's value, or None."""
    if value is None and (kind in "avcS" or not is_required):
        return None
    match kind:
        case "s" | "S":
            fits = isinstance(value, str)
        case "n":
            fits = type(value) is int and value >= 0
        case "b":
            fits = isinstance(value, bool)
        case "c":
            fits = (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and 0 <= value < _INFINITE
            )
        case "m":
            fits = isinstance(value, dict)
        case "l":
            fits = isinstance(value, list)
        case "r":
            fits = is_blob_ref(value)
        case "e":
            fits = isinstance(value, dict) and all(
                isinstance(value.get(name), str) for name in ("name", "message")
            )
        case _:
            fits = True
    return None if fits else f"a {type(value).__name__} that doesn't fit there"


def is_blob_ref(value: Any) -> bool:
    """Says whether a value has the form of a reference into the blob store."""
    if not isinstance(value, dict) or value.keys() != {"ref", "sha256", "size"}:
        return False
    digest = value["sha256"]
    if not isinstance(digest, str) or type(value["size"]) is not int or value["size"] < 0:
        return False
    name = digest.removeprefix("sha256:")
    is_hash = digest.startswith("sha256:") and len(name) == 64 and set(name) <= _HEX
    return is_hash and value["ref"] == f"sha256/{name[:2]}/{name}"


_HEX = frozenset("0123456789abcdef")
_INFINITE = float("inf")


def _find_excess(fact: Fact, fields: dict[str, tuple[str, bool]]) -> Iterator[tuple[str, str]]:
    size = len(fact.body)
    if size > EVENT_BYTES_MAX:
        yield "I32", f"it has {size} bytes; at most {EVENT_BYTES_MAX} are allowed"
    for name, (kind, _) in fields.items():
        value = fact.payload.get(name)
        if kind == "e" and isinstance(value, dict):
            text = value.get("message")
            if isinstance(text, str) and len(text) > ERROR_TEXT_CHARS_MAX:
                yield "I32", f"its error text has {len(text)} characters"
        if kind in "ve" and size > INLINE_BYTES_MAX and value is not None:
            inline = len(pack_value(value))
            if inline > INLINE_BYTES_MAX:
                yield "I32", f"{name!r} stands inline with {inline} bytes; its place is a blob"


def find_refs(fact: Fact) -> list[tuple[str, dict[str, Any]]]:
    """Returns (field, reference) of every well-formed blob reference of a fact."""
    return [
        (name, value)
        for name, value in fact.payload.items()
        if name.endswith("Ref") and is_blob_ref(value)
    ]
