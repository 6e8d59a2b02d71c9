"""The journal of a session: what is recorded is not done again, what isn't is recorded.

For each call: intent on record, body, outcome on record, and only then the outcome goes to whoever
asked. What is released is always the value as recorded, so the first run and every replay see the
same. Calls are found by their position, whatever the order in which they arrive.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, NoReturn

from planaria.calls import CURRENT_CALL, CallContext
from planaria.protocol.codec import Json, canonical_bytes, hash_bytes, hash_value, sort_keys
from planaria.protocol.effects import make_idempotency_key
from planaria.protocol.errors import RecordedError, ReplayMismatchError, shorten
from planaria.protocol.events import decode_event
from planaria.protocol.ids import call_id
from planaria.protocol.limits import INLINE_BYTES_MAX
from planaria.protocol.payloads import Ref, load_value, read_field, split_payload
from planaria.protocol.values import check_json

from . import trace
from .blobs import BlobStore
from .failures import describe_call_error
from .link import Link, Report, Reports
from .records import History, Record, read_history
from .session import Session

Body = Callable[[], Awaitable[Json]]
Outcome = tuple[Json, dict[str, Any] | None]  # the value, or None and the error
# What ends the session together with the outcome of a call, in one append.
Ending = Callable[[Json, dict[str, Any] | None], Report]

FAIL_CLOSED = frozenset({"once", "managed"})
_NOT_BEGUN = {
    "name": "Cancelled",
    "message": "the session was cancelled before the call began",
}


class Journal:
    """One process's view of a session's log."""

    def __init__(
        self,
        session: Session,
        reports: Reports,
        blobs: BlobStore,
        scratch: Path,
        history: History | None = None,
    ) -> None:
        self._session = session
        self._reports = reports
        self._blobs = blobs
        self._scratch = scratch
        self._history = history or History({}, Counter())
        # Keys of calls on record are taken, whichever of several equal calls they were.
        self._keys = {
            record.started["idempotencyKey"]
            for record in self._history.calls.values()
            if record.kind == "tool_call"
        }
        self._equal_calls: Counter[str] = Counter()
        self._running: dict[asyncio.Task[Outcome], str] = {}
        self._ended_at: int | None = reports.last if self._history.is_ended else None
        self._has_warned = False
        self._is_cancelled = False
        self._is_closed = False

    # -- calls -----------------------------------------------------------------------------

    async def call_tool(
        self,
        *,
        position: str,
        caller: str,
        tool_name: str,
        args: Json,
        effect: str,
        turn: int | None = None,
        call_index: int | None = None,
        body: Body,
        ending: Ending | None = None,
    ) -> Json:
        """Returns the outcome of a tool call, recorded or performed now.

        Raises:
            RecordedError: the tool raised, now or in an earlier process.
            ReplayMismatchError: another call stands at this position.
            ValueRefusedError: the arguments can't be recorded.
        """
        check_json(args, path="$.args")
        call = call_id(self._session.id, position)
        record = self._history.calls.get(call)
        if record is not None:
            self._compare(record, "tool_call", position, f"tool {tool_name!r}", tool_name)
            self._compare_args(record, position, tool_name, args)
            if record.outcome is not None:
                return self._release(record)
            key = str(record.started["idempotencyKey"])
            assert effect not in FAIL_CLOSED, f"call {call} of class {effect} is on its way already"
        else:
            args = sort_keys(args)
            key = self._make_key(tool_name, args)
            started: dict[str, Any] = {
                "callId": call,
                "position": position,
                "caller": caller,
                "toolName": tool_name,
                "args": args,
                "effect": effect,
                "idempotencyKey": key,
            }
            if turn is not None:
                started["turn"] = turn
            if call_index is not None:
                started["callIndex"] = call_index
            await self._wait_open()
            inherited = None if effect == "read" else self._session.inherited.get(key)
            if inherited is not None:
                return await self._inherit(call, started, inherited, ending)
            self._open("harness.tool_call.started", started, linger=effect == "read")
        context = self._describe_call(call, key)
        return await self._perform(
            "tool_call", call, body, effect, ending=ending, context=context
        )

    async def request_model(
        self, *, position: str, turn: int, request: Json, settings: Json, body: Body
    ) -> Json:
        """Returns a model's response, recorded or asked for now.

        Raises:
            RecordedError: the model failed, now or in an earlier process.
            ReplayMismatchError: another kind of call stands at this position.
        """
        call = call_id(self._session.id, position)
        record = self._history.calls.get(call)
        request_hash = hash_value(request)
        if record is not None:
            self._compare(record, "model", position, "a model request")
            if record.started["requestHash"] != request_hash:
                self._warn_of_request(position, record, request)
            if record.outcome is not None:
                return self._release(record)
        else:
            started = {
                "callId": call,
                "position": position,
                "turn": turn,
                "requestHash": request_hash,
                "messages": request,
                "settings": settings,
            }
            await self._wait_open()
            self._open("harness.model.called", started, linger=True)
        return await self._perform("model", call, body, "read", turn=turn)

    async def operate(self, *, position: str, name: str, body: Body) -> Json:
        """Returns the result of another operation of the agent loop, recorded or done now.

        Raises:
            RecordedError: it raised, now or in an earlier process.
            ReplayMismatchError: another operation stands at this position.
        """
        call = call_id(self._session.id, position)
        record = self._history.calls.get(call)
        if record is not None:
            self._compare(record, "operation", position, f"operation {name!r}", name)
            if record.outcome is not None:
                return self._release(record)
        else:
            started = {"callId": call, "position": position, "name": name}
            await self._wait_open()
            self._open("harness.operation.started", started, linger=True)
        return await self._perform("operation", call, body, "read")

    def has_outcome(self, position: str) -> bool:
        """Says whether the call at a position has its outcome on record."""
        record = self._history.calls.get(call_id(self._session.id, position))
        return record is not None and record.outcome is not None

    # -- other reports ---------------------------------------------------------------------

    def warn(self, text: str) -> None:
        """Records a warning, once however often it is replayed."""
        self._note(shorten(text), "harness.warning", {"text": shorten(text)})

    def note(self, kind: str, payload: dict[str, Any]) -> None:
        """Records an event that is no call; the n-th of its type, once however often replayed."""
        self._note(kind, kind, payload)

    def end(self, report: Report) -> None:
        """Records the end of the session's step; a second one is not recorded."""
        if self._ended_at is None:
            self._ended_at = self._append([report])

    async def wait_ended(self) -> None:
        """Waits until the end of the step is on disk."""
        assert self._ended_at is not None, "the session has no end yet"
        await self._reports.wait_committed(self._ended_at)

    @property
    def is_ended(self) -> bool:
        """Says whether the end of the step has been reported."""
        return self._ended_at is not None

    # -- stopping --------------------------------------------------------------------------

    async def drain(self, seconds: float | None = None) -> None:
        """Waits for every body that was started and its outcome's commit, as a session must."""
        while self._running:
            done, _ = await asyncio.wait(list(self._running), timeout=seconds)
            if not done:
                return

    def cancel(self) -> None:
        """Begins nothing any more, and gives up what changes nothing."""
        self._is_closed = self._is_cancelled = True
        for task, effect in self._running.items():
            if effect == "read":
                task.cancel()

    def close(self) -> None:
        """Begins nothing any more: who asks for a new call waits for ever."""
        self._is_closed = True

    def leave(self) -> None:
        """Frees the link for the next session."""
        self._reports.close()

    async def wait_reported(self) -> None:
        """Waits until everything that was reported is on disk."""
        await self._reports.wait_committed(self._reports.last)

    # -- inside ----------------------------------------------------------------------------

    async def _wait_open(self) -> None:
        if self._is_closed:
            await asyncio.get_running_loop().create_future()

    def _open(self, kind: str, started: dict[str, Any], *, linger: bool) -> None:
        trace.hit("C3")
        self._append([(kind, started)], linger=linger)

    def _append(self, reports: Iterable[Report], *, linger: bool = False) -> int:
        """Reports events, each with its large values in the blob store before it is sent."""
        inline_bytes_max = -1 if self._session.sensitive else INLINE_BYTES_MAX
        ready: list[Report] = []
        for kind, payload in reports:
            if kind != "harness.execute_step.failed":  # the supervisor reads its error
                payload, data = split_payload(payload, inline_bytes_max=inline_bytes_max)
                for blob in data:
                    self._blobs.write(blob)
            ready.append((kind, payload))
        return self._reports.append(ready, linger=linger)

    async def _perform(
        self,
        kind: str,
        call: str,
        body: Body,
        effect: str,
        *,
        turn: int | None = None,
        ending: Ending | None = None,
        context: CallContext | None = None,
    ) -> Json:
        """Returns what a body gives, once that is on disk; goes on with it if the caller stops."""
        intent = self._reports.last if effect != "read" else 0
        work = self._work(kind, call, body, intent, turn, ending, context)
        value, error = await asyncio.shield(self._start(work, effect))
        if error is not None:
            raise RecordedError(**error)
        return value

    def _start(self, work: Coroutine[Any, Any, Outcome], effect: str) -> asyncio.Task[Outcome]:
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = effect
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Outcome]) -> None:
        del self._running[task]
        if not task.cancelled():
            task.exception()  # its caller may have stopped waiting

    async def _work(
        self,
        kind: str,
        call: str,
        body: Body,
        intent: int,
        turn: int | None,
        ending: Ending | None,
        context: CallContext | None,
    ) -> Outcome:
        await self._reports.wait_committed(intent)
        trace.hit("C6")
        value, error = None, None
        if self._is_cancelled:
            error = dict(_NOT_BEGUN)
        else:
            if context is not None:
                CURRENT_CALL.set(context)
            value, error = await _run(body)
        reports = [_make_outcome(kind, call, value, error, turn)]
        if ending is not None and self._ended_at is None and not self._is_cancelled:
            reports.append(ending(value, error))
        trace.hit("C9")
        number = self._append(reports)
        if len(reports) == 2:
            self._ended_at = number
        await self._reports.wait_committed(number)
        trace.hit("C12")
        return value, error

    async def _inherit(
        self, call: str, started: dict[str, Any], wrapped: dict[str, Any], ending: Ending | None
    ) -> Json:
        """Takes over what an earlier attempt recorded under the same key; nothing is performed."""
        value = wrapped["v"] if "v" in wrapped else self._load(Ref(wrapped["r"]))
        reports = [
            ("harness.tool_call.started", started),
            ("harness.tool_call.succeeded", {"callId": call, "result": value}),
        ]
        if ending is not None:
            reports.append(ending(value, None))
        number = self._append(reports)
        if ending is not None:
            self._ended_at = number
        await self._reports.wait_committed(number)
        return value

    def _release(self, record: Record) -> Json:
        assert record.outcome is not None
        if record.field is not None:
            return self._load(read_field(record.outcome, record.field))
        raise RecordedError(**self._load(read_field(record.outcome, "error")))

    def _load(self, value: Json | Ref) -> Json:
        return load_value(value, self._blobs.read)

    def _make_key(self, tool_name: str, args: Json) -> str:
        equal = hash_value([tool_name, args])
        while True:
            nth = self._equal_calls[equal]
            self._equal_calls[equal] += 1
            key = make_idempotency_key(
                run_id=self._session.run_id,
                version_id=self._session.version_id,
                step_path=self._session.step_path,
                tool_name=tool_name,
                args=args,
                nth=nth,
            )
            if key not in self._keys:
                self._keys.add(key)
                return key

    def _describe_call(self, call: str, key: str) -> CallContext:
        session = self._session
        return CallContext(
            idempotency_key=key,
            run_id=session.run_id,
            session_id=session.id,
            step_path=session.step_path,
            attempt=session.attempt,
            call_id=call,
            scratch_directory=self._scratch,
        )

    def _note(self, recorded_as: str, kind: str, payload: dict[str, Any]) -> None:
        if self._history.notes[recorded_as] > 0:
            self._history.notes[recorded_as] -= 1
        elif not self._is_closed and self._ended_at is None:
            self._append([(kind, payload)])

    # -- replay ----------------------------------------------------------------------------

    def _compare(
        self, record: Record, kind: str, position: str, asked: str, name: str | None = None
    ) -> None:
        known = record.started.get("toolName", record.started.get("name"))
        if record.kind != kind or (name is not None and known != name):
            what = {"tool_call": "tool", "operation": "operation"}.get(record.kind)
            recorded = "a model request" if what is None else f"{what} {known!r}"
            self._refuse(position, recorded, asked)

    def _compare_args(self, record: Record, position: str, tool_name: str, args: Json) -> None:
        recorded = read_field(record.started, "args")
        asked = canonical_bytes(args)
        if isinstance(recorded, Ref):
            if recorded.fields["sha256"] == hash_bytes(asked):
                return
        elif canonical_bytes(recorded) == asked:
            return
        difference = find_difference(self._load(recorded), args)
        self._refuse(position, f"tool {tool_name!r}, {difference[0]}", difference[1])

    def _refuse(self, position: str, recorded: str, asked: str) -> NoReturn:
        raise ReplayMismatchError(
            session_id=self._session.id, position=position, recorded=recorded, asked=asked
        )

    def _warn_of_request(self, position: str, record: Record, request: Json) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        before, now = find_difference(self._load(read_field(record.started, "messages")), request)
        self.warn(
            f"the model request at {position} differs from the recorded one, whose response is "
            f"used: {before}, now {now}. A prompt that changes by itself (a clock, an unordered "
            "set) also loses the provider's prompt cache"
        )


async def open_journal(
    session: Session, link: Link, blobs: BlobStore, scratch: Path
) -> Journal:
    """Returns the journal of a delivered session, with what its earlier processes recorded."""
    reports = link.open_reports(session.id, session.incarnation, session.reported)
    if not session.has_history:
        return Journal(session, reports, blobs, scratch)
    bodies = await link.read_history(
        session.id, session.incarnation, session.first_sequence - 1
    )
    resumed = {
        "incarnation": session.incarnation,
        "manifestHash": session.manifest_hash,
        "replayedEvents": len(bodies),
        "digest": hash_bytes(b"".join(bodies)),
    }
    reports.append([("harness.session.resumed", resumed)])
    history = read_history(decode_event(body) for body in bodies)
    return Journal(session, reports, blobs, scratch, history)


async def _run(body: Body) -> Outcome:
    """Returns what a body gave or raised; whatever it raised, for a tool may raise anything.

    Only a cancellation of this task itself goes on.
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


def _make_outcome(
    kind: str, call: str, value: Json, error: dict[str, Any] | None, turn: int | None
) -> Report:
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


def find_difference(recorded: Json, asked: Json, path: str = "$") -> tuple[str, str]:
    """Returns the first place at which two values differ, as text: in the one, in the other."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for key in sorted(recorded.keys() | asked.keys()):
            where = f"{path}.{key}"
            if key not in recorded:
                return f"{where} missing", f"{where} = {_show(asked[key])}"
            if key not in asked:
                return f"{where} = {_show(recorded[key])}", f"{where} missing"
            if canonical_bytes(recorded[key]) != canonical_bytes(asked[key]):
                return find_difference(recorded[key], asked[key], where)
    if isinstance(recorded, list) and isinstance(asked, list):
        for index, (one, other) in enumerate(zip(recorded, asked, strict=False)):
            if canonical_bytes(one) != canonical_bytes(other):
                return find_difference(one, other, f"{path}[{index}]")
        if len(recorded) != len(asked):
            return f"{path} has {len(recorded)} items", f"{path} has {len(asked)}"
    return f"{path} = {_show(recorded)}", f"{path} = {_show(asked)}"


def _show(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
