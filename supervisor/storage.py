"""The durable edges of one data directory, opened together."""

from dataclasses import dataclass

from .blobs import BlobStore
from .data_directory import DataDirectory
from .event_log import EventLog


@dataclass(frozen=True, slots=True)
class Storage:
    """Where things are, the one writer of events, and the blobs."""

    directory: DataDirectory
    log: EventLog
    blobs: BlobStore
