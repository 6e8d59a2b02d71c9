"""Which blobs and pinned modules are still named: by events, by files, and by blobs in turn.

A name is recognized by its form, wherever in the bytes it stands: references stand inside of
values too (a plan's lock in an output, what a fork has inherited in a blob of its own), and what
only looks like one keeps a blob that could have gone, never the other way round.
"""

import re
from collections.abc import Collection
from pathlib import Path

from planaria.protocol.events import decode_event
from planaria.protocol.limits import BLOB_BYTES_MAX

from .backup_manifest import read_chunks
from .log_pruning import RetentionReader

# 64 hex digits behind what stands before a hash: "sha256:" or the path of a blob, the head of a
# msgpack string of 64 bytes, a quotation mark of JSON. Behind it may stand anything.
_NAME = re.compile(rb"(?:sha256:|/|\xd9\x40|\")([0-9a-f]{64})")


class References:
    """The hashes that are named by what was read so far."""

    def __init__(self, reader: RetentionReader, blobs: Path) -> None:
        self.live: set[str] = set()
        self.pruned: set[str] = set()  # runs that a RunPruned is about
        self._reader = reader
        self._blobs = blobs
        self._position = 0
        self._unread: list[str] = []  # live ones that may be blobs, and name others

    def read_page(self, without: Collection[str] = ()) -> bool:
        """Reads the next events, except those of some runs; returns whether there were any."""
        page = self._reader.body_page(self._position)
        for position, run_id, kind, body in page:
            self._position = position
            if run_id not in without:
                self.add(body)
            if kind == "RunPruned":
                self.pruned.add(decode_event(body).payload["prunedRunId"])
        return bool(page)

    def add(self, data: bytes) -> None:
        """Takes what these bytes name."""
        for match in _NAME.finditer(data):
            name = match[1].decode("ascii")
            if name not in self.live:
                self.live.add(name)
                self._unread.append(name)

    def read_blob(self) -> bool:
        """Reads a live blob for what it names; returns whether there was one left."""
        while self._unread:
            name = self._unread.pop()
            try:
                path = self._blobs / "sha256" / name[:2] / name
                self.add(b"".join(read_chunks(path, BLOB_BYTES_MAX)))
            except OSError:
                continue  # a hash of something else; a missing blob is for 'planaria verify'
            return True
        return False

    def catch_up(self, without: Collection[str] = ()) -> None:
        """Reads all that has come meanwhile."""
        while self.read_page(without):
            pass
        while self.read_blob():
            pass
