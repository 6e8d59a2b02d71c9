"""The journal of a session: what is recorded is not done again, what isn't is recorded.

For each call: intent on record, body, outcome on record, and only then the outcome goes to whoever
asked. What is released is always the value as recorded, so the first run and every replay see the
same. Calls are found by their position, whatever the order in which they arrive.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from planaria.blobstore import BlobStore
from planaria.calls import CURRENT_CALL, CallContext
from planaria.protocol.codec import Json, hash_value, sort_keys
from planaria.protocol.effects import make_idempotency_key
from planaria.protocol.errors import ProtocolError, RecordedError, shorten
from planaria.protocol.ids import call_id
from planaria.protocol.limits import INLINE_BYTES_MAX
from planaria.protocol.payloads import Ref, load_value, read_field, split_payload
from planaria.protocol.values import check_json

from . import trace
from .comparison import check_call, describe_difference, is_same, read_args, refuse_args
from .failures import describe_call_error
from .link import Link, Report, Reports
from .outcomes import (
    HIDDEN,
    NOT_BEGUN,
    Body,
    Outcome,
    describe_call,
    make_outcome,
    make_tool_intent,
    run_body,
)
from .records import History, Record, resume_session
from .session import Session

# What ends the session together with the outcome of a call, in one append.
Ending = Callable[[Json, dict[str, Any] | None], Report]

FAIL_CLOSED = frozenset({"once", "managed"})


class Journal:
    """One process's view of a session's log."""

    def __init__(
        self,
        session: Session,
        reports: Reports,
        blobs: BlobStore,
        scratch: str,
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
        body: Body,
        ending: Ending | None = None,
        details: Mapping[str, Json] | None = None,
    ) -> Json:
        """Returns the outcome of a tool call, recorded or performed now.

        `details` are further fields of its intent, for people; nothing is compared with them.

        Raises:
            RecordedError: the tool raised, now or in an earlier process.
            ReplayMismatchError: another call stands at this position.
            ValueRefusedError: the arguments can't be recorded.
        """
        check_json(args, path="$.args")
        call = trace.alter_call_id(call_id(self._session.id, position))
        record = self._history.calls.get(call)
        if record is not None:
            check_call(self._session.id, position, record, "tool_call", tool_name)
            self._check_args(record, position, tool_name, args)
            if record.outcome is not None:
                return self._release(record)
            key = str(record.started["idempotencyKey"])
            assert effect not in FAIL_CLOSED, f"call {call} of class {effect} is on its way already"
        else:
            args = sort_keys(args)
            key = self._make_key(tool_name, args)
            started = make_tool_intent(call, position, caller, tool_name, args, effect, key)
            started.update(details or {})
            await self._wait_open()
            inherited = None if effect == "read" else self._session.inherited.get(key)
            if inherited is not None:
                return await self._inherit(call, started, inherited, ending)
            self._open("harness.tool_call.started", started, linger=effect == "read")
        context = describe_call(self._session, call, key, self._scratch)
        return await self._perform("tool_call", call, body, effect, ending=ending, context=context)

    async def request_model(
        self, *, position: str, turn: int, request: Json, settings: Json, body: Body
    ) -> Json:
        """Returns a model's response, recorded or asked for now.

        Raises:
            RecordedError: the model failed, now or in an earlier process.
            ReplayMismatchError: another kind of call stands at this position.
        """
        call = trace.alter_call_id(call_id(self._session.id, position))
        record = self._history.calls.get(call)
        check_json([request, settings], path="$.request")
        request_hash = hash_value(request)
        if record is not None:
            check_call(self._session.id, position, record, "model")
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
        call = trace.alter_call_id(call_id(self._session.id, position))
        record = self._history.calls.get(call)
        if record is not None:
            check_call(self._session.id, position, record, "operation", name)
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

    @property
    def is_settled(self) -> bool:
        """Says whether the end of the step is on disk."""
        return self._ended_at is not None and self._reports.is_committed(self._ended_at)

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
            split, data = split_payload(payload, inline_bytes_max=inline_bytes_max)
            for blob in data:
                self._blobs.write(blob)
            ready.append((kind, split))
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
            error = dict(NOT_BEGUN)
        else:
            if context is not None:
                CURRENT_CALL.set(context)
            value, error = await run_body(body)
        if error is not None and self._session.sensitive:
            error["message"] = HIDDEN  # errors stand inline, and their texts quote values
        reports = [make_outcome(kind, call, value, error, turn)]
        if ending is not None and self._ended_at is None and not self._is_cancelled:
            reports.append(ending(value, error))
        trace.hit("C9")
        try:
            number = self._append(reports)
        except ProtocolError as refused:
            # Larger than a blob may be: the tool has done its work all the same.
            value, error = None, describe_call_error(refused)
            reports = [make_outcome(kind, call, value, error, turn)]
            number = self._append(reports)
        if len(reports) == 2:
            self._ended_at = number
            self._reports.flush()  # nothing follows that could travel with it
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

    def _note(self, recorded_as: str, kind: str, payload: dict[str, Any]) -> None:
        if self._history.notes[recorded_as] > 0:
            self._history.notes[recorded_as] -= 1
        elif not self._is_closed and self._ended_at is None:
            self._append([(kind, payload)])

    def _check_args(self, record: Record, position: str, tool_name: str, args: Json) -> None:
        recorded = read_args(record)
        if not is_same(recorded, args):
            difference = self._describe_difference(recorded, args)
            refuse_args(self._session.id, position, tool_name, difference)

    def _describe_difference(self, recorded: Json | Ref, asked: Json) -> str:
        sensitive = self._session.sensitive
        return describe_difference(self._load(recorded), asked, sensitive=sensitive)

    def _warn_of_request(self, position: str, record: Record, request: Json) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        recorded = read_field(record.started, "messages")
        self.warn(
            f"the model request at {position} differs from the recorded one, whose response is "
            f"used: {self._describe_difference(recorded, request)}. A prompt that changes by "
            "itself (a clock, an unordered set) also loses the provider's prompt cache"
        )


async def open_journal(session: Session, link: Link, blobs: BlobStore, scratch: str) -> Journal:
    """Returns the journal of a delivered session, with what its earlier processes recorded."""
    reports = link.open_reports(session.id, session.incarnation, session.reported)
    history = await resume_session(session, link, reports) if session.has_history else None
    return Journal(session, reports, blobs, scratch, history)
