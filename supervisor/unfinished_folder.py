"""A folder that gets its name when it is complete: what is killed before leaves no half of one.

It is made beside its later place, under a hidden name, and locked as long as its maker lives, so
that the next one can tell what is left over from what is at work.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .log_file import sync_directory

NAME_CHARS_MAX = 100  # of the later name in the hidden one: a file name has at most 255 bytes
RENAME_EXCHANGE = 2  # renameat2(2)
AT_FDCWD = -100  # fcntl.h
_NO_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV})


@contextlib.contextmanager
def make_unfinished(target: Path) -> Iterator[Path]:
    """Gives a new folder beside `target`; what stands there under that name at the end is removed.

    Whoever completes it renames it before. Leftovers of killed makers are removed first.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_leftovers(target)
    path, descriptor = _make_locked(target)
    try:
        yield path
    finally:
        remove_tree(path)
        os.close(descriptor)


def remove_leftovers(target: Path) -> None:
    """Removes the unfinished folders of `target` whose makers have died."""
    prefix = _prefix(target)
    for name in sorted(os.listdir(target.parent)):
        if not name.startswith(prefix):
            continue
        path = target.parent / name
        descriptor = _lock(path)
        if descriptor is not None:
            remove_tree(path)
            os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Puts all files and names below a folder on the disk, and the folder itself.

    All are written before the first one is synced: the file system then has most of them on the
    disk after the first few, and the others cost next to nothing.
    """
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(Path(folder))


def exchange(one: Path, other: Path) -> bool:
    """Swaps two names at once, so that neither is ever missing; False where that can't be done.

    Raises:
        OSError: it can be done, and was refused.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    if renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))


def remove_tree(path: Path) -> None:
    """Removes a folder with all below it, if it is there, also where its own mode forbids that."""
    if not path.exists():
        return
    for folder, _, _ in os.walk(path):
        mode = os.stat(folder).st_mode
        if mode & 0o700 != 0o700:
            os.chmod(folder, 0o700)
    shutil.rmtree(path)


def _make_locked(target: Path) -> tuple[Path, int]:
    while True:
        path = target.parent / f"{_prefix(target)}{os.getpid()}-{os.urandom(4).hex()}"
        os.mkdir(path, 0o700)
        descriptor = _lock(path)
        if descriptor is not None:
            return path, descriptor
        # Somebody took it for a leftover before it was locked, and removes it.


def _lock(path: Path) -> int | None:
    """Returns a descriptor that holds the folder's lock; None if another process has it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        named, opened = os.stat(path), os.fstat(descriptor)
        if (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _prefix(target: Path) -> str:
    return f".{target.name[:NAME_CHARS_MAX]}.unfinished-"
