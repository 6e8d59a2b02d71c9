"""The kernel's edge to child processes: start, signal, kill, and hear of their end.

A child is named by a process id that its user chooses. Nothing here waits, `start` and `close`
excepted. What happened comes from `poll` as reports; `fds` tells when there is something. Death
is proven by a pidfd alone; the exit code is the fork server's word and may be unknown.
"""

import functools
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .fork_server import Preload, encode_start, read_status
from .launcher import (
    LAUNCH_SECONDS,
    LOADING_SECONDS,
    SOCKET_PREFIX,
    ForkedProcess,
    Launcher,
    Trace,
)
from .orphans import Orphans
from .preload import HEAVY_MODULES, HEAVY_WARM_UP, LIGHT_MODULES
from .process_tree import (
    KILL_WAIT_SECONDS,
    MARKER_VARIABLE,
    PROCESS_VARIABLE,
    become_subreaper,
    kill_marked,
    kill_tree,
)
from .readiness import Readiness

TOKEN_BYTES = 32
CHILDREN_KNOWN_MAX = 1_024  # far above max_children: a caller that doesn't count shows here
EXIT_STATUS_SECONDS = 0.05  # the code comes 0.15-0.35 ms after death, or not at all
UNKNOWN_EXIT_CODE = 255  # what multiprocess says when it doesn't know

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launched:
    """A process exists and was told what it is; ready is for it to say."""

    process_id: str
    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class Exited:
    """A process has ended, proven. Both None: nobody knows how."""

    process_id: str
    pid: int
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """There is no process and there will be none for this launch."""

    process_id: str
    reason: str


ChildReport = Launched | Exited | LaunchFailed


@dataclass(slots=True)
class _Child:
    process_id: str
    forked: ForkedProcess
    status_deadline: float | None = None  # set at its death


class Children:
    """All child processes of one supervisor.

    Use it from the main thread only: the fork servers end with the thread that started them.
    """

    def __init__(
        self,
        *,
        target: str,
        marker: str,
        environment: Mapping[str, str],
        on_trace: Trace | None = None,
        socket_directory: Path | None = None,
        preloads: Mapping[str, Preload] | None = None,
        launch_seconds: float = LAUNCH_SECONDS,
        loading_seconds: float = LOADING_SECONDS,
    ) -> None:
        """Prepare; nothing is started yet.

        `target` is "package.module:function", called as function(spec, token) in each child.
        `marker` names the data directory in the environment of everything started.
        `environment` is that of the fork servers. /proc shows it for their children too, so it
        must hold no secret; what a child gets is spec["environment"].
        """
        self._target = target
        self._marker = marker
        self._environment = {**environment, MARKER_VARIABLE: marker}
        self._environment.pop(PROCESS_VARIABLE, None)  # of a supervisor that a tool started
        self._trace: Trace = on_trace or (lambda _point, _facts: None)
        self._socket_directory = socket_directory
        self._own_directory: Path | None = None
        self._preloads = preloads or default_preloads(target)
        self._launch_seconds = launch_seconds
        self._loading_seconds = loading_seconds
        self._readiness = Readiness()
        self._children: dict[str, _Child] = {}
        self._launching: set[str] = set()
        self._doomed: set[str] = set()  # to be killed as soon as they exist
        self._reports: list[ChildReport] = []
        self._launcher: Launcher | None = None
        self._orphans = Orphans(marker)

    def start(self) -> None:
        """End what a predecessor left behind, then start the light fork server.

        The caller holds the data directory's lock. The heavy server starts at `warm("heavy")`
        or at the first launch that needs it.
        """
        assert self._launcher is None, "start is called once"
        become_subreaper()
        for stat in kill_marked(self._marker):
            _log.warning("process %d of an earlier supervisor can't be ended", stat.pid)
        directory = self._socket_directory
        if directory is None:
            directory = self._own_directory = Path(tempfile.mkdtemp(prefix="planaria-"))
        for path in directory.glob(f"{SOCKET_PREFIX}*"):
            path.unlink(missing_ok=True)  # of servers that were killed: they couldn't themselves
        self._launcher = Launcher(
            self._preloads,
            self._environment,
            directory,
            self._readiness,
            self._add_child,
            self._report_failure,
            self._trace,
            self._launch_seconds,
            self._loading_seconds,
        )
        self._launcher.warm("light")
        self._set_deadline()

    def warm(self, kind: str) -> None:
        """Let the fork server of a kind load in the background, ahead of its first launch."""
        self._running_launcher().warm(kind)
        self._set_deadline()

    def launch(
        self, process_id: str, *, kind: str, token: bytes, spec: Mapping[str, object]
    ) -> None:
        """Ask for a process; Launched or LaunchFailed follows.

        `spec` is JSON. Read here: environment, cwd, log_path, limits (nofile, memory_bytes,
        cpu_seconds, file_bytes) and title. The child gets it whole, with process_id and
        alive_fd added; that descriptor is at its end when the supervisor has ended.

        Raises:
            ValueError: the spec is too large.
        """
        assert len(token) == TOKEN_BYTES, f"a token of {len(token)} bytes"
        assert process_id not in self._children, f"{process_id!r} exists"
        assert process_id not in self._launching, f"{process_id!r} is being launched"
        assert len(self._children) + len(self._launching) < CHILDREN_KNOWN_MAX, "too many"
        start = encode_start(process_id, self._target, spec, token)
        self._launching.add(process_id)
        self._running_launcher().submit(process_id, kind, start)
        self._set_deadline()

    def kill(self, process_id: str) -> None:
        """Kill a child and all its descendants, also those in sessions of their own.

        Exited follows, or LaunchFailed when it didn't exist yet. Unknown ids are ignored: the
        child may have ended meanwhile.
        """
        child = self._children.get(process_id)
        if child is not None:
            self._trace("killed", {"process_id": process_id, "pid": child.forked.pid})
            self._orphans.condemn(kill_tree(child.forked.pid, child.forked.start_time))
            self._doomed.add(process_id)
            self._end_strays()
        elif process_id in self._launching:
            if self._running_launcher().withdraw(process_id):
                self._report_failure(process_id, "killed before it was started")
            else:
                self._doomed.add(process_id)
        self._set_deadline()

    def terminate(self, process_id: str) -> None:
        """Send SIGTERM to a child, not to its descendants; ignored when it doesn't exist."""
        child = self._children.get(process_id)
        if child is None or child.status_deadline is not None:
            return
        try:
            signal.pidfd_send_signal(child.forked.descriptor, signal.SIGTERM)
        except ProcessLookupError:
            pass  # its end is about to be reported

    def fds(self) -> list[int]:
        """Return the descriptors whose readability means that `poll` has work; never changes."""
        return [self._readiness.fileno()]

    def poll(self) -> list[ChildReport]:
        """Do what is due and return what happened since the last call, oldest first."""
        self._readiness.run()
        self._expire(time.monotonic())
        self._orphans.reap(self._known_pids())
        reports, self._reports = self._reports, []
        self._set_deadline()
        return reports

    def close(self, deadline_seconds: float = KILL_WAIT_SECONDS) -> None:
        """Kill everything, wait for it for so long, and free all; no reports follow."""
        if self._launcher is None:
            self._readiness.close()
            return
        deadline = time.monotonic() + deadline_seconds
        for child in list(self._children.values()):
            kill_tree(child.forked.pid, child.forked.start_time)
        self._launching.clear()
        self._doomed.update(self._children)
        self._launcher.stop()
        self._end_strays()
        for stat in kill_marked(self._marker, deadline_seconds):
            _log.warning("process %d can't be ended, it is in state %s", stat.pid, stat.state)
        while self._children or self._launcher.server_pids:
            self._reports.clear()
            self._set_deadline()
            self._readiness.wait(deadline)
            self._readiness.run()
            self._expire(time.monotonic())
            if time.monotonic() >= deadline:
                break
        self._orphans.wait_end(deadline)
        self._orphans.reap(self._known_pids())
        for child in list(self._children.values()):
            self._forget(child)
        self._launcher = None
        self._readiness.close()
        if self._own_directory is not None:
            shutil.rmtree(self._own_directory, ignore_errors=True)

    def _running_launcher(self) -> Launcher:
        assert self._launcher is not None, "start comes first, and nothing after close"
        return self._launcher

    def _living(self) -> set[str]:
        alive = {key for key, child in self._children.items() if child.status_deadline is None}
        return (alive | self._launching) - self._doomed

    def _end_strays(self) -> None:
        self._orphans.end_strays(self._living(), self._running_launcher().server_pids)

    def _known_pids(self) -> set[int]:
        # A child becomes ours when its fork server dies; its status is taken in _conclude.
        pids = {child.forked.pid for child in self._children.values()}
        return pids | self._running_launcher().server_pids

    def _add_child(self, process_id: str, forked: ForkedProcess) -> None:
        self._launching.remove(process_id)
        child = self._children[process_id] = _Child(process_id, forked)
        self._orphans.note_session(forked.pid, process_id)
        self._readiness.watch(forked.descriptor, functools.partial(self._take_death, child))
        self._reports.append(Launched(process_id, forked.pid, forked.start_time))
        self._trace("launched", {"process_id": process_id, "pid": forked.pid})
        if process_id in self._doomed:
            self.kill(process_id)

    def _report_failure(self, process_id: str, reason: str) -> None:
        self._launching.discard(process_id)
        self._doomed.discard(process_id)
        self._reports.append(LaunchFailed(process_id, reason))

    def _take_death(self, child: _Child) -> None:
        self._readiness.forget(child.forked.descriptor)
        child.status_deadline = time.monotonic() + EXIT_STATUS_SECONDS
        # Its descendants have become ours by now, and end before its end is reported.
        self._end_strays()
        self._readiness.watch(child.forked.status, functools.partial(self._take_status, child))

    def _take_status(self, child: _Child) -> None:
        try:
            code = read_status(child.forked.status)
        except EOFError:
            self._conclude(child, None)
        else:
            if code is not None:
                self._conclude(child, None if code == UNKNOWN_EXIT_CODE else code)

    def _conclude(self, child: _Child, code: int | None) -> None:
        if code is None:
            code = _take_exit_code(child.forked.pid)
        self._forget(child)
        exit_code = code if code is not None and code >= 0 else None
        signum = -code if code is not None and code < 0 else None
        self._reports.append(Exited(child.process_id, child.forked.pid, exit_code, signum))

    def _forget(self, child: _Child) -> None:
        forked = child.forked
        for descriptor in (forked.descriptor, forked.status, forked.alive):
            self._readiness.forget(descriptor)
            os.close(descriptor)
        del self._children[child.process_id]
        self._doomed.discard(child.process_id)

    def _expire(self, now: float) -> None:
        self._running_launcher().expire(now)
        for child in list(self._children.values()):
            if child.status_deadline is not None and now >= child.status_deadline:
                self._conclude(child, None)

    def _set_deadline(self) -> None:
        instants = [child.status_deadline for child in self._children.values()]
        instants.append(self._running_launcher().next_deadline())
        deadline = min((one for one in instants if one is not None), default=None)
        # Reports that came outside of poll are due at once.
        self._readiness.set_deadline(0.0 if self._reports else deadline)


def default_preloads(target: str) -> dict[str, Preload]:
    """Return what the two fork servers load: the target's module, and for "heavy" the agents."""
    module = target.partition(":")[0]
    return {
        "light": Preload((*LIGHT_MODULES, module)),
        "heavy": Preload((*HEAVY_MODULES, module), HEAVY_WARM_UP),
    }


def _take_exit_code(pid: int) -> int | None:
    """Return the exit code of a process whose fork server died, for it is ours then."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
