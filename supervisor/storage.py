"""The durable edges of one data directory, opened together; and the end when they fail."""

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import NoReturn

from planaria.protocol.errors import EXIT_COMMIT_IO

from .blobs import BlobStore
from .data_directory import DataDirectory
from .event_log import EventLog
from .locks import DirectoryLock


@dataclass(frozen=True, slots=True)
class Storage:
    """Where things are, the one writer of events, the blobs, and the lock that allows it."""

    directory: DataDirectory
    log: EventLog
    blobs: BlobStore
    lock: DirectoryLock


def stop_the_world(error: Exception) -> NoReturn:
    """Ends the process at once, after an I/O error of the log or the blobs."""
    with contextlib.suppress(OSError):  # what can't be written may be this, too
        sys.stderr.write(
            f"planaria: a commit failed: {error}. Nobody can say now what is on the disk, so "
            "nothing is acknowledged; start the supervisor again to read what is there\n"
        )
        sys.stderr.flush()
    os._exit(EXIT_COMMIT_IO)
