"""How a call begins and ends: its body's value or error, and the events that record both."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from planaria.calls import CallContext
from planaria.protocol.codec import Json, sort_keys
from planaria.protocol.values import check_json

from . import trace
from .failures import describe_call_error
from .link import Report
from .session import Session

Body = Callable[[], Awaitable[Json]]
Outcome = tuple[Json, dict[str, Any] | None]  # the value; or None, and the error

HIDDEN = "the step is sensitive: what its errors say is not recorded"
NOT_BEGUN = {
    "name": "Cancelled",
    "message": "the session was cancelled before the call began",
}


async def run_body(body: Body) -> Outcome:
    """Returns the value that a body gave, checked and in key order, or the error that it raised.

    A tool may raise anything, its own SystemExit or CancelledError too; only a cancellation of
    the task that runs it goes on.
    """
    try:
        trace.hit("C7")
        value = await body()
        trace.hit("C8")
        check_json(value)
        return sort_keys(value), None
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        return None, describe_call_error(error)


def make_tool_intent(
    call: str,
    position: str,
    caller: str,
    tool_name: str,
    args: Json,
    effect: str,
    key: str,
) -> dict[str, Any]:
    """Returns the payload of the event that opens a tool call."""
    return {
        "callId": call,
        "position": position,
        "caller": caller,
        "toolName": tool_name,
        "args": args,
        "effect": effect,
        "idempotencyKey": key,
    }


def describe_call(session: Session, call: str, key: str, scratch: str) -> CallContext:
    """Returns what the tool may ask about its call."""
    return CallContext(
        idempotency_key=key,
        run_id=session.run_id,
        session_id=session.id,
        step_path=session.step_path,
        attempt=session.attempt,
        call_id=call,
        scratch_directory=scratch,
    )


def make_outcome(
    kind: str, call: str, value: Json, error: dict[str, Any] | None, turn: int | None
) -> Report:
    """Returns the event that closes a call of this kind."""
    payload: dict[str, Any] = {"callId": call}
    if kind == "model":
        payload["turn"] = turn
    if error is not None:
        return f"harness.{kind}.failed", {**payload, "error": error}
    if kind != "model":
        return f"harness.{kind}.succeeded", {**payload, "result": value}
    facts = value if isinstance(value, dict) else {}
    counts = facts.get("usage") or {}
    usage = {name: count for name, count in counts.items() if type(count) is int}
    payload.update(response=value, usage={"requests": 1, **usage}, model=facts.get("model_name"))
    return "harness.model.responded", payload
