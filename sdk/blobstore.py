"""The blob store of clients and children: the same files as those of supervisor/blobs.py."""

import os
from pathlib import Path
from typing import Any

from planaria.protocol.blobs import blob_ref, check_blob_ref, verify_blob
from planaria.protocol.errors import IntegrityError


class BlobStore:
    """Content-addressed files below one directory; equal bytes are stored once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, data: bytes) -> dict[str, Any]:
        """Stores the bytes and returns their reference; on return they survive a power cut.

        Raises:
            ProtocolError: larger than a blob may be.
            OSError: the disk refuses; nothing is stored under the blob's name.
        """
        ref = blob_ref(data)
        path = self.directory / ref["ref"]
        try:
            verify_blob(_read_file(path, len(data) + 1), ref)
        except (FileNotFoundError, IntegrityError):
            self._write_new(path, data)
        _sync(path.parent)
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

    def _write_new(self, path: Path, data: bytes) -> None:
        unfinished = self.directory / "unfinished" / f"{os.getpid()}-{os.urandom(8).hex()}"
        for directory in (path.parent, unfinished.parent):
            _make_directories(self.directory, directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(unfinished, flags, 0o600)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) or 0 :]
                os.fsync(descriptor)
            os.rename(unfinished, path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise


def _make_directories(root: Path, directory: Path) -> None:
    if directory.is_dir():
        return
    if directory != root:
        _make_directories(root, directory.parent)
    os.makedirs(directory, 0o700, exist_ok=True)
    _sync(directory.parent)


def _read_file(path: Path, bytes_max: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        return file.read(bytes_max)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
