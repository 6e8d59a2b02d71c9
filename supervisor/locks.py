"""The lock of a data directory: one supervisor owns every run and outer loop of it.

Only the flock decides: it ends with its process however that ends, and can't be mistaken for that
of another process with the same pid. What is written in the files is for people.
"""

import fcntl
import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from planaria.protocol.errors import DataDirectoryError, DataDirLockedError
from planaria.protocol.ids import check_id

_ATTEMPTS = 100  # each means that somebody removed the lock file between our open and our flock
_HOLDER_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, for people; `start_time` is in clock ticks since boot."""

    pid: int
    start_time: int
    boot_id: str
    host: str
    token: str


class DirectoryLock:
    """The held lock; closing its descriptor, also by dying, gives it up."""

    def __init__(self, descriptor: int, path: Path, holder: Holder) -> None:
        self._descriptor = descriptor
        self.path = path
        self.holder = holder

    @classmethod
    def acquire(cls, path: Path, token: str = "") -> "DirectoryLock":
        """Takes the lock file `path` (`locks/supervisor`) without waiting for it.

        Raises:
            DataDirLockedError: another process holds it; `pid` is what that one wrote, or 0.
            DataDirectoryError: the file can't be opened or written.
        """
        try:
            for _ in range(_ATTEMPTS):
                descriptor = _open_locked(path)
                if descriptor is not None:
                    break
            else:
                raise DataDirectoryError(message=f"lock file {str(path)!r} is removed ever again")
            holder = this_process(token)
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, _describe(holder), 0)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            raise DataDirectoryError(
                message=f"the lock file {str(path)!r} can't be used: {error.strerror}"
            ) from error
        return cls(descriptor, path, holder)

    def release(self) -> None:
        """Gives the lock up. The file stays: to remove it would let two hold "the" lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def write_note(self, name: str) -> None:
        """Says in `locks/<name>.json`, for people, that this process drives that run or loop."""
        path = self.path.with_name(f"{check_id(name, 'run id')}.json")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            os.write(descriptor, _describe(self.holder))
        finally:
            os.close(descriptor)

    def remove_note(self, name: str) -> None:
        """Removes the note of a run or outer loop that is no longer driven."""
        self.path.with_name(f"{check_id(name, 'run id')}.json").unlink(missing_ok=True)


def read_holder(path: Path) -> Holder | None:
    """Returns what the last holder wrote into a lock file; it may be long dead."""
    try:
        with open(path, "rb") as file:
            fields = json.loads(file.read(_HOLDER_BYTES_MAX))
        holder = Holder(**fields)
        return holder if type(holder.pid) is int else None
    except (OSError, ValueError, TypeError):
        return None


def this_process(token: str) -> Holder:
    """Returns what there is to say about this process."""
    with open("/proc/self/stat", "rb") as file:
        # The name, in brackets, may hold anything; start time is field 22 of proc(5).
        start_time = int(file.read().rpartition(b")")[2].split()[19])
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as text:
        boot_id = text.read().strip()
    return Holder(os.getpid(), start_time, boot_id, socket.gethostname(), token)


def _open_locked(path: Path) -> int | None:
    """Returns the locked descriptor, or None if `path` isn't the file any more that was locked."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        named, opened = os.stat(path, follow_symlinks=False), os.fstat(descriptor)
        if (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino):
            return descriptor
    except FileNotFoundError:
        pass
    except BlockingIOError as error:
        os.close(descriptor)
        holder = read_holder(path)
        raise DataDirLockedError(
            directory=str(path.parent.parent), pid=holder.pid if holder else 0
        ) from error
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _describe(holder: Holder) -> bytes:
    return json.dumps(asdict(holder)).encode() + b"\n"
