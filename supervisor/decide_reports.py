"""Reports of sessions: fencing, repetition, legality; only then are they events. Pure."""

import copy
from collections.abc import Container
from typing import Any

from planaria.protocol.effects import EFFECTS, LOOKUP_ANSWERS, SUB_RUN_TOOLS
from planaria.protocol.errors import ProtocolError
from planaria.protocol.events import ROLE_EVENTS, TASKS, Draft, check_payload
from planaria.protocol.ids import is_id
from planaria.protocol.limits import ERROR_TEXT_CHARS_MAX, SESSION_EVENTS_MAX
from planaria.protocol.lwir_fields import ON_TIMEOUT
from planaria.protocol.messages import Committed, Refused
from planaria.protocol.usage import UNNAMED

from .budgets import MODEL_INTENTS, Limits, estimate_tokens, find_excess, used_tokens
from .decision import Decision
from .kernel_messages import Kill, Send, SessionReported
from .run_state import Library, RunState, SessionState
from .spending import list_limits
from .system_state import SystemState

_OPENING = frozenset(
    {"harness.model.called", "harness.tool_call.started", "harness.operation.started"}
)
_SUB_RUN = "sub_run"  # the outcome of such a call is the supervisor's to say
_RESERVE_FIELDS = frozenset({"model", "provider", "inputTokens", "outputTokens"})
_ERROR_FIELDS = frozenset({"name", "message", "causeCode", "retriable"})
USAGE_NAMES_MAX = 100  # counts of one model response; providers report a dozen
COUNT_MAX = 1 << 53  # what a JSON number holds exactly
_SUCCEEDING = frozenset(f"harness.{task}.succeeded" for task in TASKS.values())
_FAILING = frozenset(f"harness.{task}.failed" for task in TASKS.values())
_ENDING = _SUCCEEDING | _FAILING
_CLOSING = frozenset(
    f"harness.{kind}"
    for kind in "model.responded model.failed tool_call.succeeded tool_call.failed "
    "operation.succeeded operation.failed".split()
)


def decide_report(system: SystemState, message: SessionReported, library: Library) -> Decision:
    """Fencing, repetition, legality: only then are a child's reports events."""
    process = system.processes.get(message.process_id)
    if process is None:
        return Decision()
    session = system.find_session(process)
    is_bound = (process.session_id, process.incarnation) == (
        message.session_id,
        message.incarnation,
    )
    if not is_bound and "no_incarnation_check" not in system.bugs:
        return _refuse(message, "stale_incarnation", "another process carries this session now")
    if session is None:
        known = process.reported
        if message.after + len(message.events) <= known:
            return _acknowledge(message, known)
        return _refuse(message, "session_ended", "the session has ended")
    if message.after > session.reported:
        return _acknowledge(message, session.reported)  # one got lost: send again from there
    fresh = message.events[session.reported - message.after :]
    if not fresh:
        return _acknowledge(message, session.reported)
    assert process.run_id is not None
    try:
        if session.reported + len(fresh) > SESSION_EVENTS_MAX:
            raise ProtocolError(message=f"a session reports at most {SESSION_EVENTS_MAX} events")
        _check_reports(system.runs[process.run_id], session, fresh)
    except ProtocolError as error:
        return _refuse(message, "protocol", str(error))
    run = system.runs[process.run_id]
    drafts = [
        Draft(run.run_id, kind, payload, message.session_id, message.incarnation)
        for kind, payload in fresh
    ]
    if run.budget is not None:
        limits = list_limits(system, run)
        drafts, is_exhausted = _charge(run, limits, session, drafts, library)
        if is_exhausted:
            return Decision(drafts, [Kill(process.id, "budget_exceeded")])
    answer = _acknowledge(message, session.reported + len(fresh))
    return Decision(drafts, answer.actions)


def _charge(
    run: RunState,
    limits: list[Limits],
    session: SessionState,
    drafts: list[Draft],
    library: Library,
) -> tuple[list[Draft], bool]:
    """Puts reservations and settlements beside model calls; says whether the budget is used up.

    What came before the call that it has no room for is recorded, for it has happened.
    """
    charged: list[Draft] = []
    spent = copy.deepcopy(run.spent)
    for draft in drafts:
        payload = draft.payload
        number = {"sessionId": session.id, "callId": payload.get("callId")}
        if draft.type in MODEL_INTENTS:
            reserve = payload.get("reserve")
            if reserve is None:
                raise AssertionError("checked before")
            tokens = estimate_tokens(reserve)
            inputs, outputs = reserve["inputTokens"], reserve["outputTokens"]
            cost = library.price(reserve["model"], reserve["provider"], inputs, outputs)
            excesses = (find_excess(x, spent, tokens, cost, reserve["model"]) for x in limits)
            error = next(filter(None, excesses), None)
            if error is not None:
                exhausted = {**number, "error": error}
                charged.append(Draft(run.run_id, "BudgetExhausted", exhausted, session.id))
                return charged, True
            spent.reserve(payload["callId"], 1, tokens, cost)
            amount = {"calls": 1, "tokens": tokens, "costUsd": cost}
            charged.append(draft)
            charged.append(Draft(run.run_id, "BudgetReserved", {**number, **amount}, session.id))
            continue
        charged.append(draft)
        if draft.type == "harness.model.responded":
            tokens = used_tokens(payload)
            cost = library.cost({payload["model"] or UNNAMED: payload["usage"]})
            spent.settle(payload["callId"], tokens, cost)
            amount = {"calls": 1, "tokens": tokens, "costUsd": cost}
            charged.append(Draft(run.run_id, "BudgetSettled", {**number, **amount}, session.id))
    return charged, False


def _check_reports(run: RunState, session: SessionState, events: list[Any]) -> None:
    """Refuses reports that the fold would refuse, before the first of them is folded."""
    open_calls = {
        call.call_id: call.kind if call.sub_run_id is None else _SUB_RUN
        for call in session.open_calls.values()
    }
    # Effects that an earlier process may have left open.
    managed = {
        call.call_id
        for call in session.open_calls.values()
        if call.effect == "managed" and call.sub_run_id is None
    }
    approvals: set[str] = set()  # asked for here
    is_ended = session.finish is not None
    for item in events:
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)):
            raise ProtocolError(message="an event of an append is a list of its type and payload")
        kind, payload = item
        if kind not in ROLE_EVENTS[session.role]:
            raise ProtocolError(message=f"a {session.role} may not report {kind[:60]!r}")
        check_payload(kind, payload)
        _check_fields(kind, payload)
        if kind in MODEL_INTENTS:
            _check_reserve(kind, payload.get("reserve"), is_required=run.budget is not None)
        if is_ended:
            raise ProtocolError(message=f"{kind} after the end of the session's step")
        if kind == "harness.model.repeated" and open_calls.get(str(payload["callId"])) != "model":
            raise ProtocolError(message=f"{kind} for a call that isn't open")
        if kind == "harness.tool_call.reattached" and payload["callId"] not in managed:
            raise ProtocolError(message=f"{kind} for a call that no process has left open")
        if kind == "ApprovalRequested":
            known: tuple[Container[str], ...] = (run.approvals, run.decided, approvals)
            is_known = any(payload["approvalId"] in ids for ids in known)
            if is_known or payload.get("sessionId") != session.id:
                raise ProtocolError(message=f"{kind} twice, or for another session")
            approvals.add(payload["approvalId"])
        if kind in _OPENING or kind in _CLOSING:
            call_id, opened = payload["callId"], kind.split(".")[1]
            is_legal = isinstance(call_id, str) and (
                call_id not in open_calls if kind in _OPENING else open_calls.get(call_id) == opened
            )
            if not is_legal:
                raise ProtocolError(message=f"{kind} for call {str(call_id)[:60]!r} can't come now")
            if kind in _OPENING:
                starts_run = session.role == "orchestrator" and payload.get("toolName") in (
                    SUB_RUN_TOOLS
                )
                open_calls[call_id] = _SUB_RUN if starts_run else opened
            else:
                del open_calls[call_id]
                managed.discard(call_id)
        is_ended = kind in _ENDING


def _check_fields(kind: str, payload: dict[str, Any]) -> None:
    """Refuses what the fold reads of a report and can't use; its sender may be hostile.

    The error of a step is never a blob: the kernel itself looks into it.
    """
    match kind:
        case "harness.tool_call.started":
            texts = (payload["toolName"], payload["idempotencyKey"])
            is_sound = payload["effect"] in EFFECTS and all(isinstance(t, str) for t in texts)
        case "harness.model.responded":
            usage = payload["usage"]
            is_sound = isinstance(usage, dict) and len(usage) <= USAGE_NAMES_MAX
            is_sound = is_sound and all(
                type(count) is int and 0 <= count <= COUNT_MAX for count in usage.values()
            )
        case "harness.tool_call.reattached":
            is_sound = payload["answer"] in LOOKUP_ANSWERS and isinstance(payload["callId"], str)
        case "ApprovalRequested":
            names = ("approvalId", "callId", "prompt", "dataHash")
            is_sound = (
                all(isinstance(payload.get(name), str) for name in names)
                and is_id(payload["approvalId"])
                and payload["onTimeout"] in ON_TIMEOUT
                and "stepPath" not in payload
                and type(payload.get("expiresAt", 0)) is int
            )
        case _ if kind in _SUCCEEDING:
            is_sound = _is_metadata(payload.get("metadata"))
        case _ if kind in _FAILING:
            error = payload.get("error")
            is_sound = (
                _is_metadata(payload.get("metadata"))
                and isinstance(error, dict)
                and error.keys() == _ERROR_FIELDS
                and all(
                    isinstance(value, bool)
                    if name == "retriable"
                    else isinstance(value, str) and len(value) <= ERROR_TEXT_CHARS_MAX
                    for name, value in error.items()
                )
            )
        case _:
            is_sound = True
    if not is_sound:
        raise ProtocolError(message=f"{kind} has a field of a wrong type or size")


def _check_reserve(kind: str, reserve: object, *, is_required: bool) -> None:
    if reserve is None and not is_required:
        return
    is_sound = (
        isinstance(reserve, dict)
        and reserve.keys() == _RESERVE_FIELDS
        and isinstance(reserve["model"], str)
        and isinstance(reserve["provider"], str | None)
        and all(
            type(reserve[name]) is int and 0 <= reserve[name] <= COUNT_MAX
            for name in ("inputTokens", "outputTokens")
        )
    )
    if not is_sound:
        raise ProtocolError(message=f"{kind} of a run with a budget lacks a sound 'reserve'")


def _is_metadata(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, dict) and isinstance(value.get("fixedSource"), str | None)


def _acknowledge(message: SessionReported, upto: int) -> Decision:
    answer = Committed(message.session_id, message.incarnation, upto)
    return Decision([], [Send(message.process_id, answer)])


def _refuse(message: SessionReported, code: str, text: str) -> Decision:
    refusal = Refused(message.session_id, code, text)
    return Decision([], [Send(message.process_id, refusal), Kill(message.process_id, code)])
