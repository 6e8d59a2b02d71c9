"""Ends the supervisor that holds a data directory, whatever state it is in."""

import fcntl
import os
import time
from pathlib import Path

from planaria.protocol.errors import DataDirLockedError

from .data_directory import DataDirectory
from .locks import Holder, read_holder
from .process_tree import boot_id, kill_tree, read_stat

KILL_SECONDS = 5.0  # SIGKILL takes 0.1 ms; longer means a process that can't be ended
COMMAND_MARK = b"planaria.supervisor"  # in the arguments of every supervisor
COMMAND_BYTES_MAX = 1 << 16


def end_holder(root: Path) -> int | None:
    """Kills the holder of the lock with all below it; returns its pid, None if nobody holds it.

    Only a process that is certainly the one that wrote itself into the lock file is killed:
    the same boot, start time and command. Everything it had committed is kept.

    Raises:
        DataDirLockedError: the holder isn't known for certain, or can't be ended.
    """
    path = DataDirectory(root).supervisor_lock
    if not _is_held(path):
        return None
    holder = read_holder(path)
    if holder is None or not _is_known(holder):
        raise DataDirLockedError(directory=str(root), pid=holder.pid if holder else 0)
    deadline = time.monotonic() + KILL_SECONDS
    kill_tree(holder.pid, holder.start_time, wait_seconds=KILL_SECONDS)
    if _is_held(path) and time.monotonic() >= deadline:
        raise DataDirLockedError(directory=str(root), pid=holder.pid)
    return holder.pid


def is_held(root: Path) -> bool:
    """Says whether a process holds the lock of a data directory now."""
    return _is_held(DataDirectory(root).supervisor_lock)


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _is_known(holder: Holder) -> bool:
    stat = read_stat(holder.pid)
    if stat is None or stat.start_time != holder.start_time or holder.boot_id != boot_id():
        return False
    try:
        with open(f"/proc/{holder.pid}/cmdline", "rb") as file:
            return COMMAND_MARK in file.read(COMMAND_BYTES_MAX)
    except OSError:
        return False
