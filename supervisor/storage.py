"""The durable edges of one data directory, opened together."""

from dataclasses import dataclass

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
