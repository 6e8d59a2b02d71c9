"""Kills with SIGKILL, at moments that a seed chooses, and never a process that is another's."""

import os
import random
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ledger import LedgerReader
from watch import SessionView, Watch

from planaria import Client

END_SECONDS = 10.0  # a process that got SIGKILL and isn't gone by then hangs in the kernel
EVENTS_WAITED_MAX = 10  # for a process inside of a call to come by
KILLS_PER_SESSION_MAX = 2  # planaria's restart intensity gives up after more than five a minute


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that was killed: what it was, and after how many events of the run."""

    kind: str  # "child" or "supervisor"
    pid: int
    start_time: int
    event: int
    path: str = ""
    session: str = ""
    was_in_call: bool = False


@dataclass(slots=True)
class Killer:
    """Kills what is planned for the moments at which the event count reaches them."""

    client: Client
    watch: Watch
    ledger: LedgerReader
    chance: random.Random
    plan: list[tuple[int, str]]
    tell: Callable[[Kill], None]
    done: list[Kill] = field(default_factory=list)

    def act(self) -> None:
        """Carries out what is due; a kill that finds no living process waits for the next one."""
        while self.plan and self.watch.events >= self.plan[0][0]:
            killed = self._kill_child() if self.plan[0][1] == "child" else self._kill_supervisor()
            if killed is None:
                return
            self.plan.pop(0)
            self.done.append(killed)
            self.tell(killed)

    def _kill_child(self) -> Kill | None:
        """Kills a session's process, one that is inside of a call if there is any."""
        self.ledger.read()
        in_call = self.ledger.pids_in_flight()
        killed = [kill.session for kill in self.done]
        living = [
            session
            for session in self.watch.living()
            if killed.count(session.id) < KILLS_PER_SESSION_MAX
        ]
        self.chance.shuffle(living)
        # Every third one anyhow, so that kills also meet a start, a replay or a wait for a commit.
        is_late = self.watch.events >= self.plan[0][0] + EVENTS_WAITED_MAX
        if len(self.done) % 3 != 2 and not is_late:
            living = [session for session in living if session.pid in in_call]
        for session in living:
            if kill_process(session.pid, session.start_time):
                return self._note_child(session, session.pid in in_call)
        return None

    def _note_child(self, session: SessionView, was_in_call: bool) -> Kill:
        return Kill(
            kind="child",
            pid=session.pid,
            start_time=session.start_time,
            event=self.watch.events,
            path=session.path,
            session=session.id,
            was_in_call=was_in_call,
        )

    def _kill_supervisor(self) -> Kill | None:
        pid = int(self.client.ping()["pid"])
        start_time = read_start_time(pid)
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert os.fsencode(self.client.directory) in command, f"pid {pid} is no supervisor of ours"
        if start_time is None or not kill_process(pid, start_time):
            return None
        return Kill("supervisor", pid, start_time, self.watch.events)


def make_plan(chance: random.Random, events: int, children: int) -> list[tuple[int, str]]:
    """Returns the event counts at which to kill: children all along, the supervisor twice."""
    first, last = max(3, events // 20), events * 9 // 10
    planned = [(chance.randint(first, last), "child") for _ in range(children)]
    planned.append((chance.randint(events * 2 // 10, events * 4 // 10), "supervisor"))
    planned.append((chance.randint(events * 5 // 10, events * 7 // 10), "supervisor"))
    return sorted(planned)


def kill_process(pid: int, start_time: int) -> bool:
    """Kills the process that has this pid and start time, and waits until it is dead.

    Says False if it has ended by itself. The pidfd is taken before the comparison: from then on
    it stands for one process, whoever gets the pid afterwards.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if read_start_time(pid) != start_time:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        ended, _, _ = select.select([descriptor], [], [], END_SECONDS)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    assert ended, f"process {pid} still lives {END_SECONDS:.0f} s after SIGKILL"
    return True


def read_start_time(pid: int) -> int | None:
    """Returns a living process's start in clock ticks since boot; None if it has ended.

    Source: proc_pid_stat(5), field 22; field 3 is Z for a process that nobody has waited for yet.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
