"""End and reap the processes that this one adopted: descendants of children, left alone by them.

A subreaper becomes the parent of every orphan below it. An orphan belongs to a child by the
variable that the child's environment carried, or by the session that the child had opened.
A daemon that changes both is out of reach while other children live; it ends at the next start.
"""

import os
import time
from collections.abc import Iterable, Set

from .process_tree import (
    MARKER_VARIABLE,
    PROCESS_VARIABLE,
    ProcessStat,
    kill_tree,
    list_children,
    read_environment,
    read_stat,
    wait_gone,
)

ROUNDS_MAX = 10  # an orphan that dies leaves its own children to us
SESSIONS_MAX = 4_096  # how many sessions are remembered, living ones and the last ended
ZOMBIE_SECONDS = 1.0  # whoever else in this process started one has waited for it by then


class Orphans:
    """Adopted processes of one marker."""

    def __init__(self, marker: str) -> None:
        self._marker = marker.encode()
        self._sessions: dict[int, str] = {}  # session id -> process id, oldest first
        self._condemned: dict[tuple[int, int], ProcessStat] = {}  # by pid and start time
        self._zombies: dict[int, float] = {}  # pid -> when it was first seen dead

    def note_session(self, session: int, process_id: str) -> None:
        """Remember whose session this is; a child's pid is its session's id."""
        self._sessions.pop(session, None)
        self._sessions[session] = process_id
        if len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]

    def condemn(self, killed: Iterable[ProcessStat]) -> None:
        """Remember that these were killed, so that they are reaped at once if they come here."""
        self._condemned.update(((stat.pid, stat.start_time), stat) for stat in killed)

    def end_strays(self, living: Set[str], servers: Set[int]) -> None:
        """Kill the trees of all orphans whose child isn't among the living; spare the servers."""
        for _ in range(ROUNDS_MAX):
            adopted = [stat for stat in _list_own() if stat.pid not in servers]
            strays = [stat for stat in adopted if self._is_stray(stat, living)]
            if not strays:
                return
            for stat in strays:
                self.condemn(kill_tree(stat.pid, stat.start_time))

    def wait_end(self, deadline: float) -> None:
        """Wait until all that were killed are dead, so that `reap` finds them."""
        wait_gone(self._condemned.values(), deadline)

    def reap(self, known: Set[int]) -> None:
        """Take the exit status of dead orphans, never that of a known process."""
        if not _has_zombie():
            self._zombies.clear()
            for identity in list(self._condemned):
                stat = read_stat(identity[0])
                if stat is None or stat.start_time != identity[1]:
                    del self._condemned[identity]
            return
        dead = [stat for stat in _list_own() if stat.state in "ZX" and stat.pid not in known]
        now = time.monotonic()
        self._zombies = {stat.pid: self._zombies.get(stat.pid, now) for stat in dead}
        for stat in dead:
            patience = now - self._zombies[stat.pid] >= ZOMBIE_SECONDS
            foreign = stat.session == os.getsid(0)  # children have sessions of their own
            identity = (stat.pid, stat.start_time)
            ours = identity in self._condemned or stat.session in self._sessions
            if ours or (patience and not foreign):
                _reap_one(stat.pid)
                self._condemned.pop(identity, None)

    def _is_stray(self, stat: ProcessStat, living: Set[str]) -> bool:
        if stat.state in "ZX" or (stat.pid, stat.start_time) in self._condemned:
            return False
        environment = read_environment(stat.pid)
        owner = environment.get(PROCESS_VARIABLE.encode(), b"").decode(errors="replace")
        if not owner or environment.get(MARKER_VARIABLE.encode()) != self._marker:
            owner = self._sessions.get(stat.session, "")
        return owner != "" and owner not in living


def _list_own() -> list[ProcessStat]:
    stats = (read_stat(pid) for pid in list_children(os.getpid()))
    return [stat for stat in stats if stat is not None]


def _has_zombie() -> bool:
    # One system call that takes nothing away, against reading /proc at every turn of the loop.
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return found is not None


def _reap_one(pid: int) -> None:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        pass  # it was reaped meanwhile
