"""What becomes of a call that an earlier process has dispatched and whose outcome isn't on record.

A `read` and an `idempotent` one are performed again. One that a person has said never happened is
performed too. A `managed` one is looked up first, and only a clear answer counts: a lookup that
fails must never let the effect happen twice. A `once` one never gets here: the supervisor holds its
session until somebody decides.
"""

import asyncio
import contextvars
import inspect
import sys
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from planaria.lookups import NeverHappened, Reattach, Succeeded, Unknown
from planaria.protocol.codec import Json
from planaria.protocol.values import check_json

from .failures import describe_call_error
from .outcomes import Body
from .records import History, Record

FAIL_CLOSED = frozenset({"once", "managed"})


@dataclass(frozen=True, slots=True)
class Lookup:
    """How one tool is looked up, and how a result of it is checked and written for its caller."""

    ask: Reattach
    encode: Callable[[Any], Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class Found:
    """The body of a call that has happened already: it only gives what the lookup found."""

    result: Json

    async def __call__(self) -> Json:
        return self.result


class Reporter(Protocol):
    """What a session's journal does for a lookup; see workers/journal.py."""

    async def wait_open(self) -> None: ...
    def report(self, kind: str, payload: dict[str, Any]) -> None: ...
    async def wait_reported(self) -> None: ...


def needs_lookup(record: Record, history: History) -> bool:
    """Says whether an open call has to be looked up before anything else happens to it."""
    # As recorded: the supervisor has decided by that class, too, what the call's loss means.
    effect, call = record.started["effect"], record.started["callId"]
    if effect not in FAIL_CLOSED or call in history.cleared:
        return False
    assert effect == "managed", f"call {call} of class {effect} is on its way already"
    return True


async def reattach(
    record: Record, lookup: Lookup | None, body: Body, journal: Reporter, *, quiet: bool
) -> Body:
    """Returns what the call goes on with, the answer on disk; of an unknown one, never.

    The supervisor then marks the call and puts the session away. A process that dies before the
    found result is recorded leaves the call open, and the next one looks again.
    """
    await journal.wait_open()
    answer, found = await look_up(record, lookup, quiet=quiet)
    await journal.wait_open()  # a put-away session performs nothing more
    number = {"callId": record.started["callId"], "answer": answer}
    journal.report("harness.tool_call.reattached", number)
    await journal.wait_reported()
    if answer == "unknown":
        await asyncio.get_running_loop().create_future()
    return body if found is None else found


async def look_up(
    record: Record, lookup: Lookup | None, *, quiet: bool
) -> tuple[str, Found | None]:
    """Returns one of LOOKUP_ANSWERS, and the result of a call that has succeeded.

    Whatever makes the answer unknown is printed; `quiet` leaves out what may quote values.
    """
    if lookup is None:
        return _give_up(record, "has no lookup")
    try:
        answer = await _ask(lookup.ask, str(record.started["idempotencyKey"]))
        match answer:
            case Succeeded():
                result = await lookup.encode(answer.result)
                check_json(result)
                return "succeeded", Found(result)
            case NeverHappened():
                return "never_happened", None
            case Unknown():
                reason = "" if quiet else str(answer.reason)
                return _give_up(record, "can't be looked up", reason)
    except BaseException as error:
        # Also SystemExit and the like: as of a tool, they are its own failure and no answer.
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        described = describe_call_error(error)
        reason = "" if quiet else described["message"]
        if not quiet:
            traceback.print_exception(error)
        return _give_up(record, f"has a lookup that failed with {described['name']}", reason)
    told = "Succeeded, NeverHappened or Unknown was expected"
    return _give_up(record, f"has a lookup that returned a {type(answer).__name__}", told)


def _give_up(record: Record, what: str, reason: str = "") -> tuple[str, None]:
    name, key = record.started["toolName"], record.started["idempotencyKey"]
    why = f": {reason}" if reason else ""
    text = f"planaria: tool {name!r} (idempotency key {key}) {what}{why}; whether it has happened"
    print(f"{text} is unknown, and a person has to say", file=sys.stderr)
    return "unknown", None


async def _ask(ask: Reattach, key: str) -> Any:
    """Returns what the lookup says; a synchronous one is called in a thread of its own.

    Not in the loop's own executor, whose end the process would wait for: it may hang.
    """
    if inspect.iscoroutinefunction(ask):
        return await ask(key)
    context = contextvars.copy_context()
    threads = ThreadPoolExecutor(1, thread_name_prefix="planaria-lookup")
    try:
        answer, raised = await asyncio.get_running_loop().run_in_executor(
            threads, lambda: context.run(_call, ask, key)
        )
    finally:
        threads.shutdown(wait=False)
    if raised is not None:
        raise raised
    return await answer if inspect.isawaitable(answer) else answer


def _call(ask: Reattach, key: str) -> tuple[Any, BaseException | None]:
    """Returns what the lookup gave or raised: some exceptions can't leave a thread's future."""
    try:
        return ask(key), None
    except BaseException as error:
        return None, error
