"""The journal of a session: what is recorded is not done again, what isn't is recorded.

For each call: intent on record, body, outcome on record, and only then the outcome goes to whoever
asked. What is released is always the value as recorded, so the first run and every replay see the
same. Calls are found by their position, whatever the order in which they arrive.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from planaria.blobstore import BlobStore
from planaria.calls import CURRENT_CALL, CallContext
from planaria.protocol.codec import Json, hash_value, sort_keys
from planaria.protocol.errors import ProtocolError, RecordedError
from planaria.protocol.ids import call_id, sub_run_id
from planaria.protocol.payloads import Ref, read_field
from planaria.protocol.values import check_json

from . import trace
from .comparison import check_call, describe_difference, is_same, read_args, refuse_args
from .effect_keys import EffectKeys
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
from .reattaching import Found, Lookup, needs_lookup, reattach
from .records import History, Record, resume_session
from .session import Session
from .session_reports import SessionReports
from .settlements import Settlements

# What ends the session together with the outcome of a call, in one append.
Ending = Callable[[Json, dict[str, Any] | None], Report]
T = TypeVar("T")

COMPOUND = "compound"  # what makes calls itself, or looks one up: it may be given up


class Journal(SessionReports):
    """One process's view of a session's log."""

    def __init__(
        self,
        session: Session,
        reports: Reports,
        blobs: BlobStore,
        scratch: str,
        history: History | None = None,
        settlements: Settlements | None = None,
    ) -> None:
        super().__init__(session, reports, blobs, history)
        self._scratch = scratch
        self._settlements = settlements or Settlements()
        self.keys = EffectKeys(session, self._history)
        self._running: dict[asyncio.Task[Any], str] = {}
        self._has_warned = False
        self._is_cancelled = False

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
        lookup: Lookup | None = None,
        ending: Ending | None = None,
        details: Mapping[str, Json] | None = None,
        is_compound: bool = False,
        is_local: bool = False,
    ) -> Json:
        """Returns the outcome of a tool call, recorded, looked up, or performed now.

        `details` are further fields of its intent, for people; nothing is compared with them. A
        compound body is class `read` and makes calls of its own. A local effect concerns the
        session alone: what another attempt did of the kind doesn't count.

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
            if needs_lookup(record, self._history):
                asking = reattach(record, lookup, body, self, quiet=self._session.sensitive)
                body = await self._start(asking, COMPOUND)
        else:
            args = sort_keys(args)
            key = self.keys.take(position, tool_name, args, is_local=is_local)
            started = make_tool_intent(call, position, caller, tool_name, args, effect, key)
            started.update(details or {})
            await self.wait_open()
            inherited = None if effect == "read" else self.keys.find_success(key)
            if inherited is not None:
                return await self._inherit(call, started, inherited, ending)
            self._open("harness.tool_call.started", started, linger=effect == "read")
        context = describe_call(self._session, call, key, self._scratch)
        kind = COMPOUND if is_compound else effect
        value = await self._perform("tool_call", call, body, kind, ending=ending, context=context)
        if effect != "read":
            self.keys.keep_success(key, value)
        return value

    async def request_sub_run(
        self, *, position: str, tool_name: str, args: dict[str, Json], details: Mapping[str, Json]
    ) -> Json:
        """Returns the outcome of a call that the supervisor carries out, as a run of its own.

        Nothing is performed here: the intent reserves the run's id, and the outcome comes from the
        log or by a Settled message. A session may be put away while it waits.

        Raises:
            RecordedError: the supervisor recorded a failure.
            ReplayMismatchError: another call stands at this position.
        """
        call = trace.alter_call_id(call_id(self._session.id, position))
        args = {"subRunId": sub_run_id(self._session.run_id, call), **args}
        check_json(args, path="$.args")
        record = self._history.calls.get(call)
        if record is not None:
            check_call(self._session.id, position, record, "tool_call", tool_name)
            self._check_args(record, position, tool_name, args)
            if record.outcome is not None:
                return self._release(record)
        else:
            args = sort_keys(args)
            key = self.keys.take(position, tool_name, args)
            started = make_tool_intent(call, position, "model", tool_name, args, "managed", key)
            started.update(details)
            await self.wait_open()
            self._open("harness.tool_call.started", started, linger=False)
        return self._release(await self._settlements.wait(call))

    @property
    def is_budgeted(self) -> bool:
        """Says whether model requests have to reserve what they may use."""
        return self._session.budget is not None

    async def request_model(
        self,
        *,
        position: str,
        turn: int,
        request: Json,
        settings: Json,
        body: Body,
        reserve: dict[str, Json] | None = None,
    ) -> Json:
        """Returns a model's response, recorded or asked for now.

        With `reserve`, what the request may use, nothing is asked before that is on disk.

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
            if reserve is not None:
                await self.wait_open()
                self._append([("harness.model.repeated", {"callId": call, "reserve": reserve})])
        else:
            started = {
                "callId": call,
                "position": position,
                "turn": turn,
                "requestHash": request_hash,
                "messages": request,
                "settings": settings,
            }
            if reserve is not None:
                started["reserve"] = reserve
            await self.wait_open()
            self._open("harness.model.called", started, linger=reserve is None)
        waits = reserve is not None
        return await self._perform("model", call, body, "read", turn=turn, waits=waits)

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
            await self.wait_open()
            self._open("harness.operation.started", started, linger=True)
        return await self._perform("operation", call, body, "read")

    def has_outcome(self, position: str) -> bool:
        """Says whether the call at a position has its outcome on record."""
        record = self._history.calls.get(call_id(self._session.id, position))
        return record is not None and record.outcome is not None

    # -- stopping --------------------------------------------------------------------------

    async def drain(self, seconds: float | None = None) -> None:
        """Waits for every body that was started and its outcome's commit, as a session must.

        Not for compound ones, which may be waiting for a call that nobody begins any more.
        """
        while running := [task for task, kind in self._running.items() if kind != COMPOUND]:
            done, _ = await asyncio.wait(running, timeout=seconds)
            if not done:
                return

    def cancel(self) -> None:
        """Begins nothing any more, and gives up what changes nothing."""
        self._is_closed = self._is_cancelled = True
        self._settlements.cancel()
        for task, effect in self._running.items():
            if effect in ("read", COMPOUND):
                task.cancel()

    def close(self) -> None:
        """Begins nothing any more: who asks for a new call waits for ever."""
        self._is_closed = True

    async def wait_open(self) -> None:
        """Waits for ever once the journal is closed."""
        if self._is_closed:
            await asyncio.get_running_loop().create_future()

    # -- inside ----------------------------------------------------------------------------

    def _open(self, kind: str, started: dict[str, Any], *, linger: bool) -> None:
        trace.hit("C3")
        self._append([(kind, started)], linger=linger)

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
        waits: bool = False,
    ) -> Json:
        """Returns what a body gives, once that is on disk; goes on with it if the caller stops."""
        intent = self._reports.last if waits or effect not in ("read", COMPOUND) else 0
        work = self._work(kind, call, body, intent, turn, ending, context)
        value, error = await asyncio.shield(self._start(work, effect))
        if error is not None:
            raise RecordedError(**error)
        return value

    def _start(self, work: Coroutine[Any, Any, T], effect: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = effect
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
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
        if self._is_cancelled and not isinstance(body, Found):
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
    settlements = Settlements()
    reports = link.open_reports(
        session.id,
        session.incarnation,
        session.reported,
        on_settled=lambda settled: settlements.take(settled.kind, settled.payload),
    )
    history = await resume_session(session, link, reports) if session.has_history else None
    return Journal(session, reports, blobs, scratch, history, settlements)
