"""The supervisor's twin for one child: a log in memory, and a wire that can lose and repeat."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from planaria.protocol.events import TASKS, Event, check_payload, decode_event, encode_event
from planaria.protocol.messages import (
    Append,
    Committed,
    Deliver,
    HistoryPage,
    ReadHistory,
    Refused,
    Settled,
    Stop,
    decode_frame,
    encode_frame,
)
from planaria.protocol.values import ValueType
from planaria.workers.definitions import Definitions
from planaria.workers.worker import Worker

RUN_ID = "run_1"
DEADLINE_SECONDS = 10.0
_OPENING = (".started", ".called")
_CLOSING = (".succeeded", ".failed", ".responded")
TASK_ENDS = {f"harness.{task}.{end}" for task in TASKS.values() for end in ("succeeded", "failed")}


class ProcessExit(BaseException):
    """The child has ended here."""


@dataclass
class SessionLog:
    """One session on disk."""

    delivery: dict[str, Any]
    bodies: list[bytes] = field(default_factory=list)
    reported: int = 0
    incarnation: int = 0
    open_calls: set[str] = field(default_factory=set)
    end: Event | None = None

    def events(self) -> list[Event]:
        return [decode_event(body) for body in self.bodies]

    def own_events(self) -> list[Event]:
        """What its processes reported."""
        return [event for event in self.events() if event.incarnation is not None]

    def kinds(self) -> list[str]:
        return [event.type.removeprefix("harness.") for event in self.own_events()]

    def cut(self, reported: int) -> "SessionLog":
        """Returns the log as it was when so many reports were on disk."""
        log = SessionLog(self.delivery, incarnation=self.incarnation)
        for body in self.bodies:
            event = decode_event(body)
            if event.incarnation is None:
                if event.type in ("harness.tool_call.succeeded", "harness.tool_call.failed"):
                    if event.payload["callId"] not in log.open_calls:
                        continue  # its call isn't on record any more
                    log.open_calls.remove(event.payload["callId"])
                log.bodies.append(body)
            elif log.reported < reported:
                log.bodies.append(body)
                log.note(event)
        return log

    def note(self, event: Event) -> None:
        self.reported += 1
        kind = event.type
        if kind in TASK_ENDS:
            self.end = event
        elif kind.endswith(_OPENING):
            assert event.payload["callId"] not in self.open_calls
            self.open_calls.add(event.payload["callId"])
        elif kind.endswith(_CLOSING):
            self.open_calls.remove(event.payload["callId"])


@dataclass
class Wire:
    """What happens to frames: by default each arrives once."""

    to_supervisor: Callable[[int], int] = lambda n: 1  # n-th one -> how often it arrives
    to_child: Callable[[int], int] = lambda n: 1


class MemorySupervisor:
    """Answers one child; also the sender that the child's link sends through."""

    def __init__(self, *, wire: Wire | None = None, page_events: int = 1_000) -> None:
        self.logs: dict[str, SessionLog] = {}
        self.frames: list[list[Any]] = []  # messages of each frame that the child sent
        self.refusals: list[Refused] = []
        self.take: Callable[[bytes], None] | None = None
        self.is_holding = False  # takes frames without answering
        self.held: list[bytes] = []
        self.on_end: Callable[[SessionLog], None] = lambda log: None
        self.on_recorded: Callable[[SessionLog, str, dict[str, Any]], None] = lambda *_: None
        self._wire = wire or Wire()
        self._page_events = page_events
        self._answers = 0
        self._sequence = 0

    # -- the wire --------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        self.frames.append(decode_frame(frame))
        for _ in range(self._wire.to_supervisor(len(self.frames))):
            if self.is_holding:
                self.held.append(frame)
            else:
                asyncio.get_running_loop().call_soon(self._handle, frame)

    def release(self) -> None:
        self.is_holding = False
        held, self.held = self.held, []
        for frame in held:
            self._handle(frame)

    def answer(self, message: Any) -> None:
        assert self.take is not None
        times = 1
        if not isinstance(message, Deliver | Settled | Stop):  # nobody sends these again
            self._answers += 1
            times = self._wire.to_child(self._answers)
        for _ in range(times):
            asyncio.get_running_loop().call_soon(self.take, encode_frame([message]))

    def _handle(self, frame: bytes) -> None:
        for message in decode_frame(frame):
            match message:
                case Append():
                    self._append(message)
                case ReadHistory():
                    self._send_page(message)
                case _:
                    raise AssertionError(message)

    # -- the log ---------------------------------------------------------------------------

    def _append(self, message: Append) -> None:
        log = self.logs[message.sessionId]
        assert message.incarnation == log.incarnation
        if message.after <= log.reported:
            for kind, payload in message.events[log.reported - message.after :]:
                if log.end is not None:
                    self.refuse(log, "session_ended")
                    return
                check_payload(kind, payload)
                self._record(log, kind, payload, log.incarnation)
                self.on_recorded(log, kind, payload)
        self.answer(Committed(message.sessionId, message.incarnation, log.reported))
        if log.end is not None:
            self.on_end(log)

    def refuse(self, log: SessionLog, code: str) -> None:
        refused = Refused(log.delivery["sessionId"], code, "refused")
        self.refusals.append(refused)
        self.answer(refused)

    def _record(
        self, log: SessionLog, kind: str, payload: dict[str, Any], incarnation: int | None
    ) -> None:
        self._sequence = max(self._sequence, len(log.bodies)) + 1
        session_id = log.delivery["sessionId"]
        event = Event(RUN_ID, self._sequence, kind, 1, 1, 1, session_id, incarnation, payload)
        log.bodies.append(encode_event(event))
        if incarnation is not None:
            log.note(decode_event(log.bodies[-1]))

    def _send_page(self, message: ReadHistory) -> None:
        log = self.logs[message.sessionId]
        bodies = [b for b in log.bodies if decode_event(b).sequence > message.after]
        page = bodies[: self._page_events]
        last = decode_event(page[-1]).sequence if page else message.after
        more = len(page) < len(bodies)
        self.answer(HistoryPage(message.sessionId, page, last, more))

    # -- orders ----------------------------------------------------------------------------

    def deliver(self, log: SessionLog) -> None:
        """Gives a session to the child, as its next incarnation."""
        delivery = log.delivery
        self.logs[delivery["sessionId"]] = log
        log.incarnation += 1
        if not log.bodies:
            manifest = {"role": "worker", "task": "execute_step", "stepPath": "s", "attempt": 1}
            manifest.update({k: delivery[k] for k in ("role", "task") if k in delivery})
            manifest.update(manifest={}, manifestHash="sha256:0")
            self._record(log, "harness.session.started", manifest, None)
        started = {"sessionId": delivery["sessionId"], "incarnation": log.incarnation}
        started.update(pid=1, startTime=1, bootId="boot")
        self._record(log, "ProcessStarted", started, None)
        self.answer(
            Deliver(
                {
                    **delivery,
                    "incarnation": log.incarnation,
                    "reported": log.reported,
                    "hasHistory": log.incarnation > 1,
                    "firstSequence": log.events()[0].sequence,
                    "lastSequence": log.events()[-1].sequence,
                }
            )
        )

    def settle(self, log: SessionLog, call: str, result: Any, *, is_told: bool = True) -> None:
        """Records the outcome of a call that the supervisor carries out, and tells the child."""
        payload = {"callId": call, "result": result}
        kind = "harness.tool_call.succeeded"
        self._record(log, kind, payload, None)
        log.open_calls.remove(call)
        if is_told:
            session_id = log.delivery["sessionId"]
            self.answer(Settled(session_id, log.incarnation, kind, payload))

    def stop(self, reason: str) -> None:
        self.answer(Stop(reason))


def make_delivery(
    step: dict[str, Any],
    *,
    input: Any = None,
    session_id: str = "hs_1",
    step_path: str | None = None,
    attempt: int = 1,
    inherited: dict[str, Any] | None = None,
    sensitive: bool = False,
    context: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    return {
        "sessionId": session_id,
        "runId": RUN_ID,
        "workflowId": "wf",
        "versionId": "wv_1",
        "stepPath": step_path or step["id"],
        "attempt": attempt,
        "startedAt": 1_700_000_000_000_000,
        "step": step,
        "context": {
            "input": {"v": input},
            "item": {"v": None},
            "itemKey": None,
            "inBranch": False,
            "steps": {},
            "workflow": {"id": "wf", "name": "wf", "runId": RUN_ID, "versionId": "wv_1"},
            "cycle": None,
            **(context or {}),
        },
        "tools": {},
        "models": {},
        "source": {"kind": "memory"},
        "manifestHash": "sha256:0",
        "inherited": inherited or {},
        "sensitive": sensitive,
        **more,
    }


@dataclass
class MemoryTool:
    """A tool as the sdk makes it, without its checks."""

    name: str
    function: Callable[..., Any]
    effect: str = "read"
    description: str | None = None
    reattach: Any = None
    returns: ValueType = field(default_factory=ValueType)
    arguments: dict[str, ValueType] = field(default_factory=dict)

    @property
    def is_async(self) -> bool:
        return asyncio.iscoroutinefunction(self.function)

    def load_arguments(self, args: Any) -> dict[str, Any]:
        return {
            name: self.arguments.get(name, ValueType()).load(value, path=f"$.{name}")
            for name, value in args.items()
        }


def make_definition(*tools: MemoryTool, models: dict[str, Any] | None = None) -> Any:
    return SimpleNamespace(tools={tool.name: tool for tool in tools}, models=models or {})


def call_step(tool: str, args: Any = None, **fields: Any) -> dict[str, Any]:
    asked = {"tool": tool} if args is None else {"tool": tool, "args": args}
    return {"id": "s", "uses": "tool.call", "with": asked, **fields}


def code_step(source: str, *tools: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": "s",
        "uses": "code.run",
        "with": {"source": source, "tools": list(tools)},
    } | fields


class Process:
    """One child process in memory, with its supervisor's twin."""

    def __init__(
        self, supervisor: MemorySupervisor, directory: Path, definition: Any, **options: Any
    ) -> None:
        self.supervisor = supervisor
        definitions = Definitions(directory, lambda source: definition)
        self.worker = Worker(supervisor, directory, definitions=definitions, **options)
        supervisor.take = self.worker.link.take

    async def carry(self, log: SessionLog) -> Event:
        """Delivers a session and returns its end once that is on disk."""
        ended = asyncio.get_running_loop().create_future()
        self.supervisor.on_end = lambda log: ended.done() or ended.set_result(log.end)
        self.supervisor.deliver(log)
        waiting = asyncio.ensure_future(self.worker.ended)
        done, _ = await asyncio.wait(
            [ended, asyncio.shield(waiting)],
            timeout=DEADLINE_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if ended in done:
            return ended.result()
        assert done, f"nothing after {DEADLINE_SECONDS} s: {log.kinds()}"
        raise ProcessExit(self.worker.ended.result())

    async def stop(self) -> int:
        """Lets the child end by itself and returns its exit code."""
        if not self.worker.ended.done():
            self.supervisor.stop("done")
        code = await asyncio.wait_for(asyncio.shield(self.worker.ended), DEADLINE_SECONDS)
        await self.worker.steps.close()
        return code


def carry(
    step: dict[str, Any],
    definition: Any,
    directory: Path,
    *,
    log: SessionLog | None = None,
    wire: Wire | None = None,
    page_events: int = 1_000,
    options: dict[str, Any] | None = None,
    on_recorded: Callable[[MemorySupervisor, SessionLog, str, dict[str, Any]], None] | None = None,
    **delivery: Any,
) -> SessionLog:
    """Returns a session's log after a process has carried it to its end."""
    log = log or SessionLog(make_delivery(step, **delivery))

    async def run() -> None:
        supervisor = MemorySupervisor(wire=wire, page_events=page_events)
        if on_recorded is not None:
            supervisor.on_recorded = lambda *event: on_recorded(supervisor, *event)
        process = Process(supervisor, directory, definition, **(options or {}))
        await process.carry(log)
        assert 0 == await process.stop()
        assert [] == supervisor.refusals

    asyncio.run(run())
    return log
