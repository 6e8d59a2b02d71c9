"""The desk: what clients ask for. Changes go to the kernel as messages; looking is answered here.

An answer goes out after the commit of the round in which it was asked, so that nobody sees a fact
that isn't on disk.
"""

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from planaria.protocol.errors import (
    ConflictError,
    NotFoundError,
    PlanariaError,
    ProtocolError,
    RunNotFoundError,
    SupervisorUnavailableError,
    error_to_wire,
)
from planaria.protocol.events import Event
from planaria.protocol.ids import check_id, derive_id
from planaria.protocol.limits import RUNS_LISTED_MAX
from planaria.protocol.messages import Reply, Request

from .admissions import Admissions
from .blobs import BlobStore
from .blocking import list_blocks
from .decision_requests import DecisionRequests
from .event_log import EventLog
from .kernel import Kernel
from .kernel_messages import Answer, CancelRun, KernelMessage
from .library import BlobLibrary
from .loop_files import LoopFiles
from .outer_loop import ENDED, describe_loop
from .run_state import RunState
from .versions import keep
from .views import (
    describe_event,
    describe_outcome,
    describe_processes,
    describe_row,
    describe_run,
)
from .waiters import Waiters

EVENTS_PER_REPLY_MAX = 1_000
CLIENTS_MAX = 1_000
OUTCOMES_KEPT_MAX = 128  # of at most 256 KiB: 32 MiB; of an earlier one the log is read

# What a field of a wrong type or an absurd number leads to, wherever it is used first.
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)

logger = logging.getLogger(__name__)
Client = tuple[bytes, int]  # identity of the link, id of the request
SendReply = Callable[[bytes, Reply], None]


class Desk:
    """Clients' requests: who waits for what."""

    def __init__(
        self,
        kernel: Kernel,
        log: EventLog,
        library: BlobLibrary,
        blobs: BlobStore,
        loops: LoopFiles,
        facts: dict[str, Any],
    ) -> None:
        self._kernel = kernel
        self._log = log
        self._library = library
        self._blobs = blobs
        self._facts = facts
        self._waiters = Waiters(kernel.system, self._describe_outcome)
        self._followers: dict[str, dict[bytes, tuple[int, dict[str, Any]]]] = {}
        self._replies: list[tuple[Client, Any, PlanariaError | None]] = []
        self._later: list[tuple[Client, Callable[[], Any]]] = []
        self._admissions = Admissions(kernel, library, blobs, self._load)
        self._decisions = DecisionRequests(blobs, self._load)
        self._loops = loops
        self._loop_waiters: dict[str, dict[bytes, int]] = {}
        self._outcomes: dict[str, dict[str, Any]] = {}  # of the runs that ended last
        self.attached: dict[bytes, int] = {}  # a client's link -> pidfd of its process
        self.is_stop_asked = False

    # -- requests --------------------------------------------------------------------------

    def take(self, identity: bytes, request: Request) -> KernelMessage | None:
        """Returns the kernel message that a request means, or None if the desk answers it."""
        client = (identity, request.id)
        handler = self._OPERATIONS.get(request.operation)
        try:
            if handler is None:
                raise ProtocolError(message=f"unknown operation {request.operation[:60]!r}")
            return handler(self, client, request.arguments)
        except PlanariaError as error:
            self._replies.append((client, None, error))
        except _MALFORMED as error:
            self._replies.append((client, None, _refuse_malformed(request.operation, error)))
        return None

    def _start_run(self, client: Client, arguments: dict[str, Any]) -> KernelMessage:
        self._refuse_if_stopping()
        return self._admissions.read_run(client, arguments)

    def _retry_run(self, client: Client, arguments: dict[str, Any]) -> KernelMessage:
        self._refuse_if_stopping()
        return self._admissions.read_retry(client, arguments)

    def _fork_run(self, client: Client, arguments: dict[str, Any]) -> KernelMessage:
        self._refuse_if_stopping()
        return self._admissions.read_fork(client, arguments)

    def _start_loop(self, client: Client, arguments: dict[str, Any]) -> KernelMessage:
        self._refuse_if_stopping()
        loop_id = check_id(arguments["outerLoopId"], "outer loop id")
        self._loops.load(loop_id)
        return self._admissions.read_loop(client, loop_id, arguments)

    def _wait_loop(self, client: Client, arguments: dict[str, Any]) -> None:
        loop_id = check_id(arguments["outerLoopId"], "outer loop id")
        loop = self._loops.load(loop_id)
        if loop is None:
            raise NotFoundError(message=f"no outer loop {loop_id!r} in this data directory")
        if loop.phase in ENDED:
            self._reply_later(client, lambda: self._describe_loop(loop_id))
        else:
            link, number = client
            self._loop_waiters.setdefault(loop_id, {})[link] = number

    def _describe_loop(self, loop_id: str) -> dict[str, Any]:
        return describe_loop(self._kernel.system.loops[loop_id], self._library.cost)

    def _cancel_run(self, client: Client, arguments: dict[str, Any]) -> KernelMessage:
        run_id = check_id(arguments["runId"], "run id")
        self._load(run_id)
        request_id = derive_id("req_", run_id, "cancel")
        return CancelRun(client, run_id, request_id, arguments.get("reason"))

    def _wait_run(self, client: Client, arguments: dict[str, Any]) -> None:
        run_id = check_id(arguments["runId"], "run id")
        outcome = self._outcomes.get(run_id)
        if outcome is not None and run_id not in self._kernel.system.runs:
            self._reply_later(client, lambda: outcome)
            return
        run = self._find(run_id)
        until_blocked = bool(arguments.get("untilBlocked"))
        answer = self._waiters.answer(run, until_blocked=until_blocked)
        if answer is not None:
            self._reply_later(client, lambda: answer)
        else:
            self._waiters.add(run_id, client, until_blocked=until_blocked)

    def _describe_outcome(self, run: RunState) -> dict[str, Any]:
        return describe_outcome(run, self._library.cost)

    def _decide_approval(self, client: Client, arguments: dict[str, Any]) -> KernelMessage:
        return self._decisions.read_approval(client, arguments)

    def _signal_run(self, client: Client, arguments: dict[str, Any]) -> KernelMessage:
        return self._decisions.read_signal(client, arguments)

    def _pause_run(self, client: Client, arguments: dict[str, Any]) -> KernelMessage:
        return self._decisions.read_pause(client, arguments)

    def _resolve_effects(self, client: Client, arguments: dict[str, Any]) -> KernelMessage:
        return self._decisions.read_resolution(client, arguments)

    def _list_blocks(self, client: Client, arguments: dict[str, Any]) -> None:
        """Answers with all that waits for people: of every open run, or of one."""
        wanted = arguments.get("runId")
        if wanted is not None:
            runs = [self._find(check_id(wanted, "run id"))]
        else:
            runs = [run for run in self._kernel.system.runs.values() if not run.is_ended]
        self._reply_later(client, lambda: [block for run in runs for block in list_blocks(run)])

    def _get_run(self, client: Client, arguments: dict[str, Any]) -> None:
        run = self._find(check_id(arguments["runId"], "run id"))
        self._reply_later(
            client, lambda: describe_run(run, self._kernel.system, cost=self._library.cost)
        )

    def _list_runs(self, client: Client, arguments: dict[str, Any]) -> None:
        limit = max(1, min(int(arguments.get("limit") or 50), RUNS_LISTED_MAX))
        status = arguments.get("status")
        self._reply_later(
            client,
            lambda: [describe_row(row) for row in self._log.list_runs(limit, status)],
        )

    def _count_runs(self, client: Client, arguments: dict[str, Any]) -> None:
        self._reply_later(client, self._log.count_runs)

    def _read_events(self, client: Client, arguments: dict[str, Any]) -> None:
        """Answers at once if there are events after `after`, else when the run has more."""
        run_id = check_id(arguments["runId"], "run id")
        if not self._log.run_exists(run_id) and run_id not in self._kernel.system.runs:
            raise RunNotFoundError(run_id=run_id)
        wanted = {
            "after": int(arguments.get("after", 0)),
            "limit": max(1, min(int(arguments.get("limit", 200)), EVENTS_PER_REPLY_MAX)),
        }
        run = self._kernel.system.runs.get(run_id)
        is_quiet = run is not None and not run.is_ended and run.sequence <= wanted["after"]
        if not arguments.get("follow") or not is_quiet:
            self._reply_later(client, lambda: self._page(run_id, wanted))
        else:
            link, number = client
            self._followers.setdefault(run_id, {})[link] = number, wanted

    def _page(self, run_id: str, wanted: dict[str, Any]) -> dict[str, Any]:
        rows = list(self._log.read_run(run_id, after=wanted["after"], limit=wanted["limit"]))
        run = self._kernel.system.runs.get(run_id)
        return {
            "events": [describe_event(position, event) for position, event in rows],
            "isEnded": run is None or run.is_ended,
        }

    def _list_processes(self, client: Client, arguments: dict[str, Any]) -> None:
        self._reply_later(client, lambda: describe_processes(self._kernel.system))

    def _ping(self, client: Client, arguments: dict[str, Any]) -> None:
        def answer() -> dict[str, Any]:
            open_runs = [r for r in self._kernel.system.runs.values() if not r.is_ended]
            return {
                **self._facts,
                "openRuns": len(open_runs),
                "processes": len(self._kernel.system.processes),
                "isStopping": self._kernel.system.is_stopping,
            }

        self._reply_later(client, answer)

    def _attach(self, client: Client, arguments: dict[str, Any]) -> None:
        """Notes a client whose death or detachment may end a supervisor started for a call."""
        self._refuse_if_stopping()
        pid = int(arguments["pid"])
        link = client[0]
        if link not in self.attached:
            if len(self.attached) >= CLIENTS_MAX:
                raise ConflictError(message=f"{CLIENTS_MAX} clients are attached already")
            try:
                self.attached[link] = os.pidfd_open(pid)
            except OSError as error:
                raise NotFoundError(message=f"no process {pid} to attach") from error
        self._reply_later(client, lambda: {"attached": True})

    def _detach(self, client: Client, arguments: dict[str, Any]) -> None:
        """Lets a client go; says whether that was the last one, for which this process ran."""
        self.forget_client(client[0])
        self._reply_later(client, lambda: {"isEnding": self._kernel.system.is_stopping})

    def _refuse_if_stopping(self) -> None:
        """Sends a client on to the next supervisor, which starts when this one has ended."""
        if self._kernel.system.is_stopping:
            raise SupervisorUnavailableError(message=f"pid {os.getpid()} is stopping")

    def _stop(self, client: Client, arguments: dict[str, Any]) -> None:
        self.is_stop_asked = True
        self._reply_later(client, lambda: {"stopping": True})

    _OPERATIONS: dict[str, Callable[..., KernelMessage | None]] = {
        "start_run": _start_run,
        "retry_run": _retry_run,
        "fork_run": _fork_run,
        "start_loop": _start_loop,
        "wait_loop": _wait_loop,
        "cancel_run": _cancel_run,
        "decide_approval": _decide_approval,
        "signal_run": _signal_run,
        "pause_run": _pause_run,
        "resolve_effects": _resolve_effects,
        "list_blocks": _list_blocks,
        "wait_run": _wait_run,
        "get_run": _get_run,
        "list_runs": _list_runs,
        "count_runs": _count_runs,
        "read_events": _read_events,
        "list_processes": _list_processes,
        "ping": _ping,
        "attach": _attach,
        "detach": _detach,
        "stop": _stop,
    }

    # -- answers ---------------------------------------------------------------------------

    def note_events(self, events: list[Event]) -> None:
        """Answers those who waited for what has just been committed."""
        self._replies += [
            (client, told, None) for client, told in self._waiters.note_events(events)
        ]
        for event in events:
            for link, (number, wanted) in self._followers.pop(event.run_id, {}).items():
                client = link, number
                self._reply_later(client, functools.partial(self._page, event.run_id, wanted))

    def note_loop(self, loop_id: str) -> None:
        """Answers those who waited for an outer loop that has ended or stopped."""
        for client in self._loop_waiters.pop(loop_id, {}).items():
            self._reply_later(client, functools.partial(self._describe_loop, loop_id))

    def note_answer(self, answer: Answer) -> None:
        """Takes an answer of the kernel."""
        self._replies.append((answer.client, answer.result, answer.error))

    def flush(self, send: SendReply) -> None:
        """Sends what is owed to clients; called after the round's commit."""
        for client, make in self._later:
            try:
                self._replies.append((client, make(), None))
            except PlanariaError as error:
                self._replies.append((client, None, error))
            except _MALFORMED as error:  # an argument that the log can't be asked with
                self._replies.append((client, None, _refuse_malformed("request", error)))
        self._later.clear()
        for (identity, number), result, refusal in self._replies:
            wire = error_to_wire(refusal) if refusal is not None else None
            send(identity, Reply(number, result, wire, True))
        self._replies.clear()

    def evict(self) -> None:
        """Drops ended runs from memory: they stand in the log."""
        system = self._kernel.system
        for run_id in system.ended:
            run = system.runs.get(run_id)
            if run is not None and run.is_ended:  # it may have been opened again
                del system.runs[run_id]
                keep(
                    self._outcomes,
                    run_id,
                    self._describe_outcome(run),
                    OUTCOMES_KEPT_MAX,
                )
        system.ended.clear()
        self._loops.evict(set(self._loop_waiters))

    def forget_client(self, link: bytes) -> None:
        """Notes that a client is gone."""
        descriptor = self.attached.pop(link, None)
        if descriptor is not None:
            os.close(descriptor)
        self._waiters.forget(link)
        for waiting in self._loop_waiters.values():
            waiting.pop(link, None)
        for following in self._followers.values():
            following.pop(link, None)

    def _reply_later(self, client: Client, make: Callable[[], Any]) -> None:
        self._later.append((client, make))

    def _find(self, run_id: str) -> RunState:
        run = self._kernel.system.runs.get(run_id) or self._library.run(run_id)
        if run is None:
            raise RunNotFoundError(run_id=run_id)
        return run

    def _load(self, run_id: str) -> None:
        """Brings an ended run back into memory for one decision about it."""
        if run_id not in self._kernel.system.runs:
            run = self._library.run(run_id)
            if run is not None:
                self._kernel.system.runs[run_id] = run
                self._kernel.system.ended.append(run_id)


def _refuse_malformed(what: str, error: Exception) -> ProtocolError:
    logger.warning("a malformed %r request: %r", what[:60], error)
    return ProtocolError(message=f"malformed {what[:60]!r}: {error!r}"[:500])
