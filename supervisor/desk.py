"""The desk: what clients ask for. Changes go to the kernel as messages; looking is answered here.

An answer goes out after the commit of the round in which it was asked, so that nobody sees a fact
that isn't on disk.
"""

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from planaria.protocol.blobs import check_blob_ref
from planaria.protocol.codec import canonical_bytes, hash_bytes, hash_jcs
from planaria.protocol.errors import (
    ConflictError,
    NotFoundError,
    PlanariaError,
    ProtocolError,
    RunNotFoundError,
    SupervisorUnavailableError,
    UsageError,
    WorkflowInvalidError,
    error_to_wire,
)
from planaria.protocol.events import RUN_TERMINAL, Event
from planaria.protocol.ids import check_id, check_workflow_id, derive_id
from planaria.protocol.limits import INLINE_BYTES_MAX, RUNS_LISTED_MAX
from planaria.protocol.lwir import find_not_built, validate_lwir
from planaria.protocol.messages import Reply, Request
from planaria.protocol.providers import find_missing_keys

from .blobs import BlobStore
from .event_log import EventLog
from .fold import fold
from .kernel import Kernel
from .kernel_messages import AdmitRun, Answer, CancelRun, KernelMessage
from .library import BlobLibrary
from .run_state import RunState
from .views import (
    describe_event,
    describe_outcome,
    describe_processes,
    describe_row,
    describe_run,
)

EVENTS_PER_REPLY_MAX = 1_000
CLIENTS_MAX = 1_000

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
        facts: dict[str, Any],
    ) -> None:
        self._kernel = kernel
        self._log = log
        self._library = library
        self._blobs = blobs
        self._facts = facts
        self._waiters: dict[str, list[Client]] = {}
        self._followers: dict[str, list[tuple[Client, dict[str, Any]]]] = {}
        self._replies: list[tuple[Client, Any, PlanariaError | None]] = []
        self._later: list[tuple[Client, Callable[[], Any]]] = []
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
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("a malformed %r request: %r", request.operation, error)
            malformed = ProtocolError(message=f"malformed {request.operation!r}: {error!r}"[:500])
            self._replies.append((client, None, malformed))
        return None

    def _start_run(self, client: Client, arguments: dict[str, Any]) -> KernelMessage:
        self._refuse_if_stopping()
        run_id = check_id(arguments["runId"], "run id")
        lock = arguments["lock"]
        version_id = "wv_" + hash_jcs(lock).removeprefix("sha256:")[:32]
        self._check_document(arguments["workflowId"], lock)
        self._load(run_id)
        if run_id not in self._kernel.system.runs:
            self._check_keys(lock)
        lock_ref = self._blobs.write(canonical_bytes(lock))
        value: dict[str, Any]
        if "inputRef" in arguments:
            ref = check_blob_ref(arguments["inputRef"])
            value, input_hash = {"inputRef": ref}, hash_bytes(self._blobs.read(ref))
        else:
            data = canonical_bytes(arguments["input"])
            input_hash = hash_bytes(data)
            if len(data) > INLINE_BYTES_MAX:
                value = {"inputRef": self._blobs.write(data)}
            else:
                value = {"input": arguments["input"]}
        return AdmitRun(
            client=client,
            run_id=run_id,
            workflow_id=check_workflow_id(arguments["workflowId"]),
            definition_hash=str(arguments["definitionHash"]),
            version_id=version_id,
            lock=lock,
            lock_ref=lock_ref,
            input=value,
            input_hash=input_hash,
            source=dict(arguments["source"]),
            deadline_ms=arguments.get("deadlineMs"),
            labels=arguments.get("labels"),
        )

    def _check_document(self, workflow_id: str, lock: dict[str, Any]) -> None:
        findings = validate_lwir(
            lock["lwir"], tools=list(lock["tools"]), models=list(lock["models"])
        ) or find_not_built(lock["lwir"])
        if findings:
            listed = [{"code": f.code, "path": f.path, "message": f.message} for f in findings]
            raise WorkflowInvalidError(name=workflow_id, findings=listed)

    def _check_keys(self, lock: dict[str, Any]) -> None:
        """Refuses models whose key isn't in this process's environment, where children get it."""
        names = {slot: entry.get("model") for slot, entry in lock["models"].items()}
        missing = find_missing_keys(names, os.environ)
        if missing:
            raise UsageError(
                message="; ".join(missing) + " where the supervisor was started "
                f"(pid {os.getpid()}); nothing was run. Set it there: 'planaria down', then again"
            )

    def _cancel_run(self, client: Client, arguments: dict[str, Any]) -> KernelMessage:
        run_id = check_id(arguments["runId"], "run id")
        self._load(run_id)
        request_id = derive_id("req_", run_id, "cancel")
        return CancelRun(client, run_id, request_id, arguments.get("reason"))

    def _wait_run(self, client: Client, arguments: dict[str, Any]) -> None:
        run = self._find(check_id(arguments["runId"], "run id"))
        if run.is_ended or run.status == "interrupted":
            self._reply_later(client, lambda: describe_outcome(run))
        else:
            self._waiters.setdefault(run.run_id, []).append(client)

    def _get_run(self, client: Client, arguments: dict[str, Any]) -> None:
        run = self._find(check_id(arguments["runId"], "run id"))
        self._reply_later(client, lambda: describe_run(run, self._kernel.system))

    def _list_runs(self, client: Client, arguments: dict[str, Any]) -> None:
        limit = min(int(arguments.get("limit") or 50), RUNS_LISTED_MAX)
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
            "limit": min(int(arguments.get("limit", 200)), EVENTS_PER_REPLY_MAX),
        }
        run = self._kernel.system.runs.get(run_id)
        is_quiet = run is not None and not run.is_ended and run.sequence <= wanted["after"]
        if not arguments.get("follow") or not is_quiet:
            self._reply_later(client, lambda: self._page(run_id, wanted))
        else:
            self._followers.setdefault(run_id, []).append((client, wanted))

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
        "cancel_run": _cancel_run,
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
        for event in events:
            if event.type in RUN_TERMINAL or event.type == "RunInterrupted":
                for client in self._waiters.pop(event.run_id, ()):
                    run = self._find(event.run_id)
                    self._replies.append((client, describe_outcome(run), None))
            for client, wanted in self._followers.pop(event.run_id, ()):
                self._reply_later(client, functools.partial(self._page, event.run_id, wanted))

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
        self._later.clear()
        for (identity, number), result, refusal in self._replies:
            wire = error_to_wire(refusal) if refusal is not None else None
            send(identity, Reply(number, result, wire, True))
        self._replies.clear()

    def evict(self) -> None:
        """Drops ended runs from memory: they stand in the log."""
        system = self._kernel.system
        for run_id in system.ended:
            system.runs.pop(run_id, None)
        system.ended.clear()

    def forget_client(self, link: bytes) -> None:
        """Notes that a client is gone."""
        descriptor = self.attached.pop(link, None)
        if descriptor is not None:
            os.close(descriptor)

    def _reply_later(self, client: Client, make: Callable[[], Any]) -> None:
        self._later.append((client, make))

    def _find(self, run_id: str) -> RunState:
        run = self._kernel.system.runs.get(run_id) or self._read(run_id)
        if run is None:
            raise RunNotFoundError(run_id=run_id)
        return run

    def _load(self, run_id: str) -> None:
        """Brings an ended run back into memory for one decision about it."""
        if run_id not in self._kernel.system.runs:
            run = self._read(run_id)
            if run is not None:
                self._kernel.system.runs[run_id] = run
                self._kernel.system.ended.append(run_id)

    def _read(self, run_id: str) -> RunState | None:
        run = RunState(run_id)
        for _, event in self._log.read_run(run_id):
            fold(run, event, self._library)
        return run if run.sequence else None
