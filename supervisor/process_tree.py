"""Find, freeze and kill process trees, and say who a process is. Only this module uses psutil.

A process is named by its pid and its start time (clock ticks since boot), because pids are used
again. Every signal goes through a pidfd whose start time was compared after it was opened.
"""

import ctypes
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MARKER_VARIABLE = "PLANARIA_MARKER"  # which data directory a process works for
PROCESS_VARIABLE = "PLANARIA_PROCESS"  # which child a process descends from

FREEZE_PASSES_MAX = 64  # a frozen process can't fork: a pass finds news only after a race
KILL_ROUNDS_MAX = 20  # rounds of looking for marked processes
KILL_WAIT_SECONDS = 5.0  # SIGKILL takes 0.1 ms; longer means uninterruptible sleep (state D)
ENVIRONMENT_BYTES_MAX = 4 << 20  # the kernel lets argv and environment have 2 MiB

_PR_SET_PDEATHSIG = 1  # the numbers are those of <linux/prctl.h>
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_NAME_BYTES_MAX = 15  # TASK_COMM_LEN less its NUL

_libc = ctypes.CDLL(None, use_errno=True)
_lists_children = os.path.exists("/proc/thread-self/children")  # CONFIG_PROC_CHILDREN


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One process as the kernel tells it."""

    pid: int
    parent: int
    session: int
    state: str  # one letter: R S D T Z ...
    start_time: int  # clock ticks since boot


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What `planaria ps` shows of a process."""

    pid: int
    parent: int
    session: int
    state: str
    start_time: int
    name: str
    command: tuple[str, ...]
    memory_bytes: int  # resident; shared pages are counted in full
    cpu_seconds: float
    threads: int


def read_stat(pid: int) -> ProcessStat | None:
    """Return what /proc says of a process, zombies included; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in brackets and may hold anything, brackets too: count from the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        state=fields[0].decode(),
        start_time=int(fields[19]),
    )


def list_children(pid: int) -> list[int]:
    """Return the pids of a process's direct children, zombies included."""
    if not _lists_children:
        return _list_children_by_scan(pid)
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return found
    for thread in threads:
        try:
            text = Path(f"/proc/{pid}/task/{thread}/children").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # this thread ended
        found.extend(map(int, text.split()))
    return found


def descendants(pid: int) -> list[ProcessStat]:
    """Return every process below this one, nearest first."""
    found: dict[int, ProcessStat] = {}
    level = [pid]
    while level:
        below = _read_children(level, known=found)
        found.update((stat.pid, stat) for stat in below)
        level = [stat.pid for stat in below]
    return list(found.values())


def signal_process(pid: int, start_time: int, signum: int) -> bool:
    """Send a signal to exactly this process; False when it is gone or another has its pid."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        stat = read_stat(pid)
        if stat is None or stat.start_time != start_time:
            return False
        signal.pidfd_send_signal(descriptor, signum)
    except (ProcessLookupError, PermissionError):  # permission: it changed its user
        return False
    finally:
        os.close(descriptor)
    return True


def freeze_tree(pid: int, start_time: int) -> list[ProcessStat]:
    """Stop a process and all its descendants, whatever session they are in; root first."""
    root = read_stat(pid)
    if root is None or root.start_time != start_time:
        return []
    signal_process(pid, start_time, signal.SIGSTOP)
    tree = {pid: root}
    for _ in range(FREEZE_PASSES_MAX):
        level = list(tree)
        before = len(tree)
        while level:
            below = _read_children(level, known=tree)
            for stat in below:
                signal_process(stat.pid, stat.start_time, signal.SIGSTOP)
                tree[stat.pid] = stat
            level = [stat.pid for stat in below]
        if len(tree) == before:
            break
    return list(tree.values())


def kill_tree(pid: int, start_time: int, wait_seconds: float = 0.0) -> list[ProcessStat]:
    """Freeze a tree, then kill all of it, and return who was in it.

    Freezing comes first so that nothing can fork past the list. With `wait_seconds` it returns
    when all are dead or the time is over; without, the kernel ends them right after.
    """
    tree = freeze_tree(pid, start_time)
    for stat in reversed(tree):
        signal_process(stat.pid, stat.start_time, signal.SIGKILL)
    if wait_seconds > 0:
        wait_gone(tree, time.monotonic() + wait_seconds)
    return tree


def wait_gone(processes: Iterable[ProcessStat], deadline: float) -> list[ProcessStat]:
    """Wait until all have exited (a zombie has), and return those alive at the deadline."""
    remaining: list[ProcessStat] = []
    for stat in processes:
        try:
            descriptor = os.pidfd_open(stat.pid)
        except ProcessLookupError:
            continue
        try:
            now = read_stat(stat.pid)
            if now is None or now.start_time != stat.start_time:
                continue
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1_000):
                remaining.append(stat)
        finally:
            os.close(descriptor)
    return remaining


def read_environment(pid: int) -> dict[bytes, bytes]:
    """Return the environment that a process was executed with; {} when it can't be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read(ENVIRONMENT_BYTES_MAX)
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in text.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def find_marked(marker: str) -> Iterator[ProcessStat]:
    """Yield the living processes that carry the marker; not this one and not its ancestors."""
    spared = _own_line()
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) in spared:
            continue
        environment = read_environment(int(entry))  # that of a zombie is empty
        if environment.get(MARKER_VARIABLE.encode()) != marker.encode():
            continue
        stat = read_stat(int(entry))
        if stat is not None and stat.state not in "ZX":
            yield stat


def kill_marked(marker: str, wait_seconds: float = KILL_WAIT_SECONDS) -> list[ProcessStat]:
    """Kill whatever carries the marker in its environment; return what is still alive.

    This process and its ancestors are spared. The caller holds the data directory's lock:
    otherwise the children of a living supervisor would be hit.
    """
    deadline = time.monotonic() + wait_seconds
    alive: list[ProcessStat] = []
    for _ in range(KILL_ROUNDS_MAX):
        marked = list(find_marked(marker))
        if not marked:
            return []
        killed = {one.pid: one for head in marked for one in kill_tree(head.pid, head.start_time)}
        alive = wait_gone(killed.values(), deadline)
        if time.monotonic() >= deadline:
            break
    return alive


def process_facts(pid: int) -> ProcessFacts | None:
    """Return what is known of a process; None when there is none."""
    import psutil  # here, so that fork servers, which use this module, don't carry it

    stat = read_stat(pid)
    if stat is None:
        return None
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return ProcessFacts(
                pid=pid,
                parent=stat.parent,
                session=stat.session,
                state=stat.state,
                start_time=stat.start_time,
                name=process.name(),
                command=tuple(process.cmdline()),
                memory_bytes=process.memory_info().rss,
                cpu_seconds=times.user + times.system,
                threads=process.num_threads(),
            )
    except psutil.Error:
        return None


def boot_id() -> str:
    """Return the id of this boot of the machine; pids and start times mean nothing beyond it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def set_parent_death_signal(signum: int) -> None:
    """Ask the kernel for a signal when the thread that started this process ends.

    A parent that ended before this call sends nothing: check getppid() afterwards.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)


def forbid_tracing() -> None:
    """Keeps other processes of this user from reading this one's memory and environment."""
    _prctl(_PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Make this process the parent of every orphan among its descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Set the name that ps and top show, cut at 15 bytes."""
    text = ctypes.create_string_buffer(name.encode()[:_NAME_BYTES_MAX])
    _prctl(_PR_SET_NAME, ctypes.addressof(text))


def _prctl(option: int, argument: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(argument), zero, zero, zero) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}) failed: {os.strerror(code)}")


def _read_children(parents: Iterable[int], known: dict[int, ProcessStat]) -> list[ProcessStat]:
    # The parent is compared again after the stat was read: a pid that was listed may by now
    # belong to a stranger. One that lost its parent meanwhile is the subreaper's to find.
    found = []
    for parent in parents:
        for pid in list_children(parent):
            stat = read_stat(pid) if pid not in known else None
            if stat is not None and stat.parent == parent:
                found.append(stat)
    return found


def _list_children_by_scan(pid: int) -> list[int]:
    import psutil  # see process_facts

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def _own_line() -> set[int]:
    line: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        stat = read_stat(pid)
        pid = stat.parent if stat is not None else 0
    return line
