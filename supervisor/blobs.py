"""The blob store: payloads too large for an event, on the disk before the event that names them.

sdk/blobstore.py is its twin for clients and children, which write the same files.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planaria.protocol.blobs import blob_ref, check_blob_ref, verify_blob
from planaria.protocol.errors import DataDirectoryError, IntegrityError

from .log_file import sync_directory

PROBE_BYTES = 1 << 20  # what must fit for a supervisor to go on: some values, and the log
_UNFINISHED = "unfinished"


class BlobStore:
    """Content-addressed files below one directory; equal bytes are stored once."""

    def __init__(self, directory: Path, trace: Callable[[str], None] | None = None) -> None:
        """`trace` is told "blob_written" (no name yet) and "blob_renamed" (name not synced)."""
        self.directory = directory
        self._trace = trace or (lambda _point: None)

    def write(self, data: bytes) -> dict[str, Any]:
        """Stores the bytes and returns their reference; on return they survive a power cut.

        Raises:
            ProtocolError: larger than a blob may be.
            DataDirectoryError: the disk refuses; nothing is stored under the blob's name.
        """
        ref = blob_ref(data)
        path = self.directory / ref["ref"]
        try:
            if self._holds(path, data):
                sync_directory(path.parent)  # whoever wrote it may have died before that
            else:
                self._write_new(path, data)
        except OSError as error:
            raise DataDirectoryError(
                message=f"blob {ref['ref']!r} of {len(data)} bytes can't be stored in "
                f"{str(self.directory)!r}: {error.strerror}"
            ) from error
        return ref

    def read(self, ref: dict[str, Any]) -> bytes:
        """Returns the bytes that `ref` names.

        Raises:
            ProtocolError: no well-formed reference.
            IntegrityError: the blob is missing, or isn't what was stored.
        """
        check_blob_ref(ref)
        try:
            data = _read_file(self.directory / ref["ref"], ref["size"] + 1)
        except OSError as error:
            raise IntegrityError(
                message=f"blob {ref['ref']!r} can't be read ({error.strerror}); an event names "
                "it. Restore it from a backup"
            ) from error
        return verify_blob(data, ref)

    def exists(self, ref: dict[str, Any]) -> bool:
        """Tells whether a file of the right size stands at the place that `ref` names.

        Raises:
            ProtocolError: no well-formed reference.
        """
        check_blob_ref(ref)
        try:
            found = os.stat(self.directory / ref["ref"], follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == ref["size"]

    def remove_unfinished(self) -> int:
        """Removes what writers left that died, and returns how many; only while none lives."""
        try:
            names = os.listdir(self.directory / _UNFINISHED)
        except FileNotFoundError:
            return 0
        for name in names:
            (self.directory / _UNFINISHED / name).unlink()
        return len(names)

    def check_writable(self) -> None:
        """Writes a file of `PROBE_BYTES` and removes it.

        Raises:
            DataDirectoryError: the disk refuses it.
        """
        probe = self.directory / _UNFINISHED / f"{os.getpid()}-probe"
        try:
            make_directories(self.directory, probe.parent)
            write_new_file(probe, bytes(PROBE_BYTES))
            probe.unlink()
        except OSError as error:
            raise DataDirectoryError(
                message=f"{str(self.directory)!r} takes no {PROBE_BYTES} bytes: {error.strerror}"
            ) from error

    def _holds(self, path: Path, data: bytes) -> bool:
        try:
            return _read_file(path, len(data) + 1) == data
        except FileNotFoundError:
            return False

    def _write_new(self, path: Path, data: bytes) -> None:
        make_directories(self.directory, path.parent)
        unfinished = self.directory / _UNFINISHED / f"{os.getpid()}-{os.urandom(8).hex()}"
        make_directories(self.directory, unfinished.parent)
        write_new_file(unfinished, data)
        self._trace("blob_written")
        try:
            os.rename(unfinished, path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        self._trace("blob_renamed")
        try:
            sync_directory(path.parent)
        except OSError:
            # A second sync would say nothing about the first one's data: begin anew.
            path.unlink(missing_ok=True)
            raise


def make_directories(root: Path, directory: Path) -> None:
    """Makes `directory` and those between it and `root`, each on the disk with its name."""
    if directory.is_dir():
        return
    if directory != root:
        make_directories(root, directory.parent)
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        return
    sync_directory(directory.parent)


def write_new_file(path: Path, data: bytes) -> None:
    """Writes a file that wasn't there and syncs its bytes; after an error it isn't there."""
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        rest = memoryview(data)
        while rest:  # a write may take less than it was given
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _read_file(path: Path, bytes_max: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        return file.read(bytes_max)
