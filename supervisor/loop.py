"""The one loop: drain what has come, decide it, commit once, then act.

    poll ─▶ sockets, children, signals, timer ─▶ kernel.handle for each message
         ─▶ ONE append of all events ─▶ answers, deliveries, launches, kills

Nothing is sent and nobody is started before the round's commit. If the commit fails nobody knows
what is on the disk: the process says so and ends with code 74, without any answer.
"""

import contextlib
import logging
import select
import signal
import socket
from typing import Any

from planaria.protocol.blobs import check_blob_ref
from planaria.protocol.errors import (
    EXIT_COMMIT_IO,
    ProtocolError,
)
from planaria.protocol.limits import GRACE_MS
from planaria.protocol.messages import (
    Append,
    Deliver,
    ErrandDone,
    Heartbeat,
    Hello,
    HistoryPage,
    Message,
    ReadHistory,
    Refused,
    Reply,
    Request,
)

from .children import Children, Exited, Launched
from .children import LaunchFailed as NoProcess
from .clock import read_clock
from .commits import Commits
from .desk import Desk
from .faults import Faults
from .kernel import Kernel, Turn
from .kernel_messages import (
    Action,
    Answer,
    DriveLoop,
    ErrandEnded,
    Feed,
    HistoryAsked,
    KernelMessage,
    Kill,
    Launch,
    LaunchFailed,
    Send,
    SendHistory,
    SessionReported,
    StopLoop,
    StopSystem,
    TellLoop,
    Tick,
    WriteManifest,
)
from .links import Links
from .loop_files import LoopFiles
from .outfit import Outfit
from .run_state import Now
from .sockets import POLLIN, Poller, Received, Sockets
from .storage import Storage
from .system_state import BOUND
from .timers import next_due

_READ_BY_KERNEL = frozenset({"outputRef", "argsRef"})
POLL_MAX_MS = 1_000
FIRST_CLIENT_MS = 60_000  # twice what clients wait for a start (START_SECONDS of discovery.py)

logger = logging.getLogger(__name__)


class Loop:
    """The supervisor's life between its start and its end."""

    def __init__(
        self,
        kernel: Kernel,
        storage: Storage,
        sockets: Sockets,
        children: Children,
        desk: Desk,
        loops: LoopFiles,
        outfit: Outfit,
        faults: Faults,
        *,
        is_ephemeral: bool = False,
    ) -> None:
        self._kernel = kernel
        self._storage = storage
        self._sockets = sockets
        self._children = children
        self._desk = desk
        self._loops = loops
        self._outfit = outfit
        self._faults = faults
        self._is_ephemeral = is_ephemeral
        self._was_attached = False
        self._attach_deadline = read_clock().mono + FIRST_CLIENT_MS * 1_000
        self._links = Links(sockets, storage.blobs)
        self._signals_seen = 0
        self._fed: list[KernelMessage] = [DriveLoop(loop_id) for loop_id in loops.load_open()]
        self._stop_deadline: int | None = None
        self._commits = Commits(kernel.system, storage, loops, desk, faults)
        self._poller = Poller()
        self._wake_read, self._wake_write = socket.socketpair()

    # -- life --------------------------------------------------------------------------------

    def run(self) -> str:
        """Runs until the supervisor is asked to end; returns the reason."""
        self._poller.register(self._sockets.socket, POLLIN)
        self._poller.register(self._wake_read.fileno(), POLLIN)
        for descriptor in self._children.fds():
            self._poller.register(descriptor, POLLIN)
        while True:
            now = read_clock()
            reason = self._reason_to_end(now)
            if reason is not None:
                return reason
            ready = dict(self._poller.poll(self._poll_ms(now)))
            self._round(ready)

    def recover(self, turns: list[Turn]) -> None:
        """Commits and does what the open runs owed at the start."""
        self._commits.commit(turns)
        with contextlib.suppress(OSError):
            for run_id, run in self._kernel.system.runs.items():
                if not run.is_ended:
                    self._storage.lock.write_note(run_id)
        self._act(turns)

    def record(self, event_type: str, payload: dict[str, Any]) -> None:
        """Commits an event of the supervisor itself."""
        self._commits.record(event_type, payload)

    def _round(self, ready: dict[Any, int]) -> None:
        if self._wake_read.fileno() in ready:
            self._wake_read.recv(64)
        reports = self._children.poll()
        messages = self._read_children(reports)
        messages.extend(self._read_sockets())
        now = read_clock()
        messages.extend(self._links.finish_drains(now.mono))
        if self._kernel.system.is_stopping is False and self._must_stop():
            self._stop_deadline = now.mono + GRACE_MS * 1_000
            messages.append(StopSystem())
        due = next_due(self._kernel.system, now)
        if due == 0:
            messages.append(Tick())
        messages.extend(self._fed)
        self._fed.clear()
        turns = [self._kernel.handle(message, now) for message in messages]
        if "acknowledge_before_commit" in self._faults.bugs:
            self._act(turns)
            self._commits.commit(turns)
        else:
            self._commits.commit(turns)
            self._act(turns)
        self._desk.evict()
        self._storage.log.checkpoint_if_due(idle=not messages)

    def _poll_ms(self, now: Now) -> int:
        if self._fed:
            return 0
        waits = [POLL_MAX_MS * 1_000]
        due = next_due(self._kernel.system, now)
        if due is not None:
            waits.append(due)
        drained = self._links.next_due()
        if drained is not None:
            waits.append(drained - now.mono)
        return max(0, -(-min(waits) // 1_000))

    # -- ends --------------------------------------------------------------------------------

    def watch_signals(self) -> None:
        """Takes signals from here on; one that comes before `run` ends it in its first round."""
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)

        def note(number: int, frame: object) -> None:
            self._signals_seen += 1  # nothing else: a handler that writes can meet EIO

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, note)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _must_stop(self) -> bool:
        if self._signals_seen or self._desk.is_stop_asked:
            return True
        for link, descriptor in list(self._desk.attached.items()):
            self._was_attached = True
            if _is_dead(descriptor):
                self._desk.forget_client(link)
        if not self._is_ephemeral or self._desk.attached:
            return False
        # Who started it may have died before it could attach.
        return self._was_attached or read_clock().mono > self._attach_deadline

    def _reason_to_end(self, now: Now) -> str | None:
        if self._signals_seen > 1:
            return "second signal"
        if not self._kernel.system.is_stopping:
            return None
        busy = any(p.status == BOUND for p in self._kernel.system.processes.values())
        if not busy:
            return "stopped"
        if self._stop_deadline is not None and now.mono >= self._stop_deadline:
            return "grace is over"
        return None

    # -- in ----------------------------------------------------------------------------------

    def _read_children(self, reports: list[Any]) -> list[KernelMessage]:
        messages: list[KernelMessage] = []
        mono = read_clock().mono
        for report in reports:
            match report:
                case Launched():
                    messages.extend(self._links.take_launched(report))
                case Exited():
                    if report.exit_code == EXIT_COMMIT_IO:  # it couldn't store a value
                        self._commits.check_disk()
                    self._links.take_exited(report, mono)
                    self._faults.hit("S14")
                case NoProcess():
                    self._links.forget(report.process_id)
                    messages.append(LaunchFailed(report.process_id, report.reason))
        return messages

    def _read_sockets(self) -> list[KernelMessage]:
        messages: list[KernelMessage] = []
        for received in self._sockets.receive():
            for message in received.messages:
                messages.extend(self._take(received, message))
        return messages

    def _take(self, received: Received, message: Message) -> list[KernelMessage]:
        identity = received.identity
        process_id = self._links.find_process(identity)
        if process_id is not None:
            self._links.note_frame(process_id, read_clock().mono)
        match message:
            case Hello():
                return self._links.take_hello(identity, message, received.peer_pid)
            case Heartbeat():
                return self._links.take_heartbeat(message, received.peer_pid)
            case Request():
                asked = self._desk.take(identity, message)
                return [asked] if asked is not None else []
            case ErrandDone() if process_id is not None:
                answer = (message.errandId, message.result, message.error)
                if self._find_bad_blob(message.result or {}) is not None:
                    answer = (message.errandId, {}, None)
                return [ErrandEnded(process_id, *answer)]
            case Append() if process_id is not None:
                refusal = self._check_blobs(message)
                if refusal is not None:
                    refused = Refused(message.sessionId, "blob", refusal)
                    self._links.push(process_id, refused)
                    return []
                return [
                    SessionReported(
                        process_id,
                        message.sessionId,
                        message.incarnation,
                        message.after,
                        message.events,
                    )
                ]
            case ReadHistory() if process_id is not None:
                number = (message.sessionId, message.incarnation, message.after)
                return [HistoryAsked(process_id, *number)]
            case _:
                logger.warning("an unexpected %s from %s", type(message).__name__, identity.hex())
                return []

    def _check_blobs(self, message: Append) -> str | None:
        """Says which blob of a report is missing; an event may name only what is there."""
        for item in message.events:
            if isinstance(item, list) and len(item) == 2 and isinstance(item[1], dict):
                problem = self._find_bad_blob(item[1])
                if problem is not None:
                    return problem
        return None

    def _find_bad_blob(self, payload: dict[str, Any]) -> str | None:
        for name, ref in payload.items():
            if not name.endswith("Ref"):
                continue
            try:
                check_blob_ref(ref)
            except ProtocolError as error:
                return str(error)
            if not self._storage.blobs.exists(ref):
                return f"{name}: blob {ref['sha256']} isn't in the store"
            # Outputs, and the arguments of sub-runs, are values that the kernel itself has to read.
            if name in _READ_BY_KERNEL and not self._kernel.can_read(ref):
                return f"{name}: blob {ref['sha256']} holds no value"
        return None

    # -- out ---------------------------------------------------------------------------------

    def _act(self, turns: list[Turn]) -> None:
        if any(turn.events for turn in turns):
            self._faults.hit("S13")
        for turn in turns:
            for action in turn.actions:
                self._do(action)
        for process_id in self._links.flush():
            logger.info("process %s has ended or takes no frame: it is ended", process_id)
            self._children.kill(process_id)
        self._desk.flush(self._reply)
        self._faults.hit("S7")

    def _do(self, action: Action) -> None:
        match action:
            case Send():
                if isinstance(action.message, Deliver):
                    self._outfit.equip(action.message.session)
                self._links.push(action.process_id, action.message)
            case Launch():
                token = self._links.expect(action.process_id)
                spec = self._outfit.make_spec(action.process_id)
                self._children.launch(action.process_id, kind=action.kind, token=token, spec=spec)
            case Kill():
                self._children.kill(action.process_id)
            case SendHistory():
                self._send_history(action)
            case Answer():
                self._desk.note_answer(action)
            case WriteManifest():
                self._faults.hit("cycle_completed")
                self._commits.write_manifest(action.loop_id)
            case StopLoop() | TellLoop():
                self._desk.note_loop(action.loop_id)
            case Feed():
                self._fed.append(action.message)

    def _send_history(self, action: SendHistory) -> None:
        rows = self._storage.log.read_session(action.run_id, action.session_id, action.after)
        rows = [(sequence, body) for sequence, body in rows if sequence <= action.upto]
        last = rows[-1][0] if rows else action.upto
        page = HistoryPage(
            action.session_id, [body for _, body in rows], last, last < action.upto and bool(rows)
        )
        self._links.push(action.process_id, page)

    def _reply(self, identity: bytes, reply: Reply) -> None:
        self._sockets.send(identity, [reply])


def _is_dead(pidfd: int) -> bool:
    ready, _, _ = select.select([pidfd], [], [], 0)
    return bool(ready)
