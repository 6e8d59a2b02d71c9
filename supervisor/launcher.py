"""Get new processes from fork servers, and replace a server that fails or keeps us waiting.

Nothing here waits: requests go out at once, answers and deadlines come through Readiness. That
is why no thread is needed, and the kernel's parent-death signal, which follows the thread that
started a server, follows the supervisor's main thread.
"""

import functools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .fork_server import ForkServer, Preload, read_status, send_start
from .preload import BASE_MODULES
from .process_tree import kill_tree, read_stat
from .readiness import Readiness

SOCKET_PREFIX = "fork-"  # of fork servers' sockets; no other file there begins so
LAUNCH_SECONDS = 2.0  # from request to pid; 1-6 ms are usual
LOADING_SECONDS = 20.0  # a cold heavy fork server needs up to 2.2 s on an idle machine
ATTEMPTS_MAX = 2  # of one launch; a server that failed twice in a row fails a third time
BARE_AFTER_FAILURES = 2  # then a server is started that loads nothing beforehand
FAILURES_MAX = 4  # then everything that waits for the server is reported as failed
SETTLED_SECONDS = 5.0  # a server that lived for less has failed at its start

Trace = Callable[[str, Mapping[str, object]], None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ForkedProcess:
    """A new process that has been told what it is."""

    pid: int
    start_time: int
    descriptor: int  # pidfd
    status: int  # gives its exit code, some 0.2 ms after the pidfd is readable
    alive: int  # the end of a pipe at whose other end the child sees the supervisor end


@dataclass(slots=True)
class _Launch:
    process_id: str
    start: bytes
    attempts: int = 0


@dataclass(slots=True)
class _Request:
    launch: _Launch
    status: int
    start: int
    deadline: float


@dataclass(slots=True)
class _Lane:
    """One kind of process: its fork server and the launches that wait for it, oldest first."""

    kind: str
    contents: Preload
    queue: deque[_Launch] = field(default_factory=deque)
    server: ForkServer | None = None
    request: _Request | None = None  # one at a time: the server forks one at a time
    failures: int = 0  # of its server in a row


class Launcher:
    """Turns launches into processes, in the order of each kind."""

    def __init__(
        self,
        preloads: Mapping[str, Preload],
        environment: Mapping[str, str],
        socket_directory: Path,
        readiness: Readiness,
        on_started: Callable[[str, ForkedProcess], None],
        on_failed: Callable[[str, str], None],
        trace: Trace,
        launch_seconds: float = LAUNCH_SECONDS,
        loading_seconds: float = LOADING_SECONDS,
    ) -> None:
        self._lanes = {kind: _Lane(kind, contents) for kind, contents in preloads.items()}
        self._environment = environment
        self._socket_directory = socket_directory
        self._readiness = readiness
        self._on_started = on_started
        self._on_failed = on_failed
        self._trace = trace
        self._launch_seconds = launch_seconds
        self._loading_seconds = loading_seconds
        self._servers: dict[int, ForkServer] = {}  # by pid, until reaped
        self._servers_started = 0

    @property
    def server_pids(self) -> set[int]:
        return set(self._servers)

    def warm(self, kind: str) -> None:
        """Start the fork server of a kind if it isn't there; it loads in the background."""
        lane = self._lanes[kind]
        if lane.server is None:
            self._start_server(lane)

    def submit(self, process_id: str, kind: str, start: bytes) -> None:
        """Queue a launch; its result comes by `on_started` or `on_failed`."""
        lane = self._lanes[kind]
        lane.queue.append(_Launch(process_id, start))
        self._advance(lane)

    def withdraw(self, process_id: str) -> bool:
        """Take back a launch that hasn't been sent yet; False when it has been, or is unknown."""
        for lane in self._lanes.values():
            for launch in lane.queue:
                if launch.process_id == process_id:
                    lane.queue.remove(launch)
                    return True
        return False

    def next_deadline(self) -> float | None:
        """Return the instant at which `expire` has something to do."""
        instants = [self._deadline(lane) for lane in self._lanes.values()]
        return min((instant for instant in instants if instant is not None), default=None)

    def expire(self, now: float) -> None:
        """Replace each server that has kept us waiting for too long."""
        for lane in self._lanes.values():
            deadline = self._deadline(lane)
            if deadline is not None and now >= deadline:
                waited = self._loading_seconds if lane.request is None else self._launch_seconds
                self._lose_server(lane, f"did not answer within {waited} s")

    def stop(self) -> None:
        """Drop what is queued and kill the servers with everything below them."""
        for lane in self._lanes.values():
            lane.queue.clear()
            self._drop_request(lane)
            lane.server = None
        for server in self._servers.values():
            stat = read_stat(server.pid)
            if stat is not None:
                kill_tree(server.pid, stat.start_time)

    def _deadline(self, lane: _Lane) -> float | None:
        if lane.request is not None:
            return lane.request.deadline
        if lane.server is not None and not lane.server.ready:
            return lane.server.started_at + self._loading_seconds
        return None

    def _start_server(self, lane: _Lane) -> None:
        bare = lane.failures >= BARE_AFTER_FAILURES
        contents = Preload(BASE_MODULES) if bare else lane.contents
        self._servers_started += 1
        address = self._socket_directory / f"{SOCKET_PREFIX}{lane.kind}-{self._servers_started}"
        server = ForkServer(lane.kind, contents, self._environment, address)
        lane.server = self._servers[server.pid] = server
        self._readiness.watch(server.descriptor, functools.partial(self._end_server, server))
        self._readiness.watch(
            server.report_descriptor, functools.partial(self._take_report, lane, server)
        )
        self._trace("server_started", {"kind": lane.kind, "pid": server.pid, "bare": bare})

    def _take_report(self, lane: _Lane, server: ForkServer) -> None:
        self._readiness.forget(server.report_descriptor)
        if server is not lane.server:
            return
        try:
            report = server.read_report()
        except EOFError:
            self._lose_server(lane, "ended while it was loading")
            return
        for name, problem in report.problems.items():
            _log.warning("fork server %r could not load %s: %s", lane.kind, name, problem)
        if report.threads > 1:
            # A fork would leave those threads out, and whatever they had locked stays locked.
            _log.warning(
                "a module loaded by fork server %r started a thread; its processes start "
                "without preloaded modules and more slowly. Modules: %s",
                lane.kind,
                ", ".join(lane.contents.modules),
            )
            lane.contents = Preload(BASE_MODULES)
            self._lose_server(lane, "had threads", failed=False)
            return
        facts = {"kind": lane.kind, "pid": server.pid, "seconds": report.seconds}
        self._trace("server_ready", facts)
        self._advance(lane)

    def _advance(self, lane: _Lane) -> None:
        if lane.server is None and lane.queue:
            self._start_server(lane)
        if lane.server is None or not lane.server.ready or lane.request or not lane.queue:
            return
        launch = lane.queue.popleft()
        launch.attempts += 1
        try:
            status, start = lane.server.request_process()
        except OSError as error:
            self._retry(lane, launch, f"refused a request: {error}")
            self._lose_server(lane, f"refused a request: {error}")
            return
        deadline = time.monotonic() + self._launch_seconds
        lane.request = _Request(launch, status, start, deadline)
        self._readiness.watch(status, functools.partial(self._take_pid, lane, lane.request))
        self._trace("launch_sent", {"process_id": launch.process_id})

    def _take_pid(self, lane: _Lane, request: _Request) -> None:
        assert lane.server is not None and lane.request is request, "requests end with servers"
        try:
            pid = read_status(request.status)
        except EOFError:
            self._lose_server(lane, "ended while it was starting a process")
            return
        if pid is None:
            return
        self._readiness.forget(request.status)
        lane.request = None
        try:
            forked = _introduce(pid, lane.server.pid, request)
        except OSError as error:  # somebody killed it before it could begin
            os.close(request.status)
            os.close(request.start)
            self._retry(lane, request.launch, f"gave a process that ended at once: {error}")
        else:
            lane.failures = 0
            self._on_started(request.launch.process_id, forked)
        self._advance(lane)

    def _end_server(self, server: ForkServer) -> None:
        for lane in self._lanes.values():
            if lane.server is server:
                self._lose_server(lane, "ended unexpectedly")
        self._readiness.forget(server.descriptor)
        self._readiness.forget(server.report_descriptor)
        server.reap()
        del self._servers[server.pid]

    def _lose_server(self, lane: _Lane, what: str, failed: bool = True) -> None:
        """Kill a lane's server, settle its request, and start another where one is wanted."""
        server = lane.server
        assert server is not None, "a server is lost once"
        lane.server = None
        server.kill()
        settled = time.monotonic() - server.started_at >= SETTLED_SECONDS
        if failed:
            lane.failures = 1 if server.ready and settled else lane.failures + 1
            _log.warning("fork server %r (pid %d) %s; replaced", lane.kind, server.pid, what)
        self._trace("server_lost", {"kind": lane.kind, "pid": server.pid, "reason": what})
        request = self._drop_request(lane)
        if request is not None:
            self._retry(lane, request.launch, what)
        if lane.failures >= FAILURES_MAX:
            lane.failures = 0
            while lane.queue:
                self._fail(lane, lane.queue.popleft(), what)
        if lane.queue or settled or not failed:
            self._start_server(lane)

    def _drop_request(self, lane: _Lane) -> _Request | None:
        request, lane.request = lane.request, None
        if request is not None:
            # A process that is forked later finds the end of its pipe and exits.
            self._readiness.forget(request.status)
            os.close(request.status)
            os.close(request.start)
        return request

    def _retry(self, lane: _Lane, launch: _Launch, what: str) -> None:
        if launch.attempts < ATTEMPTS_MAX:
            lane.queue.appendleft(launch)
        else:
            self._fail(lane, launch, what)

    def _fail(self, lane: _Lane, launch: _Launch, what: str) -> None:
        self._on_failed(launch.process_id, f"fork server {lane.kind!r} {what}")


def _introduce(pid: int, server_pid: int, request: _Request) -> ForkedProcess:
    # The process waits for its start, so it can't have ended by itself, and its pid is its own.
    descriptor = os.pidfd_open(pid)
    try:
        stat = read_stat(pid)
        if stat is None or stat.parent != server_pid:
            raise ProcessLookupError(f"pid {pid} is no child of the fork server {server_pid}")
        send_start(request.start, request.launch.start)
    except OSError:
        os.close(descriptor)
        raise
    return ForkedProcess(pid, stat.start_time, descriptor, request.status, request.start)
