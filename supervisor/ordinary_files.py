"""Files and folders as they are found on the disk, when nothing about them may be believed."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def read_ordinary_file(path: Path, bytes_max: int) -> bytes | None:
    """Returns at most so many bytes of an ordinary file, or None if it can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        try:
            return file.read(bytes_max)
        except OSError:
            return None


def list_names(folder: Path) -> Iterator[str]:
    """Yields the names in a folder, sorted; none if there is no such folder."""
    try:
        yield from sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
