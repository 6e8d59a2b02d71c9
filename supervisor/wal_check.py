"""Tells a write-ahead log that ends in a torn write from one that is damaged in its history.

SQLite reads a WAL up to the first frame that doesn't verify and forgets what stands behind it,
which is right after a power cut and wrong after a flipped bit: there, committed transactions
vanish without a word. Every commit is synced before the next one is written, so a frame of a
*later* transaction proves that the broken frame had once been whole on the disk.

Source: "WAL-mode File Format", sections 1 to 4 of https://www.sqlite.org/walformat.html
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Literal

WalState = Literal["clean", "torn_tail", "history_damaged"]
Checksum = tuple[int, int]

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
SECTOR_BYTES = 512  # the smallest unit that a disk writes whole
_MAGIC_LITTLE, _MAGIC_BIG = 0x377F0682, 0x377F0683
_MASK = 0xFFFFFFFF


class _Wal:
    """Frames of one WAL, read one at a time; nothing about them is believed."""

    def __init__(self, file: BinaryIO, page_bytes: int) -> None:
        self.file = file
        header = file.read(HEADER_BYTES)
        words = struct.unpack(">8I", header)
        self.order = ">" if words[0] == _MAGIC_BIG else "<"
        self.header_checksum = self.checksum(header[:24], (0, 0))
        self.header_valid = (
            words[0] in (_MAGIC_LITTLE, _MAGIC_BIG)
            and words[2] == page_bytes
            and self.header_checksum == (words[6], words[7])
        )
        self.frame_bytes = FRAME_HEADER_BYTES + page_bytes
        size = os.fstat(file.fileno()).st_size
        self.count = max(0, size - HEADER_BYTES) // self.frame_bytes
        # With a broken header the frames tell which generation they are of.
        self.salts = header[16:24] if self.header_valid else self.frame_head(0)[8:16]

    def offset(self, index: int) -> int:
        return HEADER_BYTES + index * self.frame_bytes

    def frame_head(self, index: int) -> bytes:
        if index >= self.count:
            return b""
        self.file.seek(self.offset(index))
        return self.file.read(FRAME_HEADER_BYTES)

    def stored_checksum(self, index: int) -> Checksum:
        """Returns what frame `index` says its checksum is; the header's for -1."""
        if index < 0:
            return self.header_checksum
        first, second = struct.unpack(">2I", self.frame_head(index)[16:24])
        return first, second

    def expected_checksum(self, index: int, before: Checksum) -> Checksum:
        """Returns the checksum that frame `index` must have if it follows a frame with `before`."""
        self.file.seek(self.offset(index))
        frame = self.file.read(self.frame_bytes)
        return self.checksum(frame[FRAME_HEADER_BYTES:], self.checksum(frame[:8], before))

    def checksum(self, data: bytes, before: Checksum) -> Checksum:
        first, second = before
        words = struct.unpack(f"{self.order}{len(data) // 4}I", data)
        for even, odd in zip(words[::2], words[1::2], strict=True):
            first = (first + even + second) & _MASK
            second = (second + odd + first) & _MASK
        return first, second

    def is_current(self, index: int) -> bool:
        return self.frame_head(index)[8:16] == self.salts

    def is_commit(self, index: int) -> bool:
        return self.frame_head(index)[4:8] != bytes(4)

    def follows(self, index: int, befores: Sequence[Checksum]) -> bool:
        """Tells whether frame `index` is of this generation and continues one of `befores`."""
        if index >= self.count or not self.is_current(index):
            return False
        stored = self.stored_checksum(index)
        return any(self.expected_checksum(index, before) == stored for before in befores)

    def is_flipped_commit(self, index: int) -> bool:
        """Tells whether the frame verifies once a bit is set in its empty commit mark."""
        self.file.seek(self.offset(index))
        frame = self.file.read(self.frame_bytes)
        before, stored = self.stored_checksum(index - 1), self.stored_checksum(index)
        for bit in range(32):
            head = frame[:4] + (1 << bit).to_bytes(4, "big")
            if self.checksum(frame[FRAME_HEADER_BYTES:], self.checksum(head, before)) == stored:
                return True
        return False

    def head_in_one_sector(self, index: int) -> bool:
        start = self.offset(index)
        return start // SECTOR_BYTES == (start + FRAME_HEADER_BYTES - 1) // SECTOR_BYTES


def classify_wal(path: Path, page_bytes: int, accepted_frames: int = 0) -> WalState:
    """Returns the state of the WAL at `path`; a missing or empty one is clean.

    `accepted_frames` are known to verify (SQLite counts them a hundred times faster than we can);
    0 checks all. A flip inside the last transaction can't be told from a torn write: both are
    `torn_tail`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return "clean"
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size < HEADER_BYTES:
            return "clean" if size == 0 else "torn_tail"
        wal = _Wal(file, page_bytes)
        if not wal.header_valid:
            # The header fits one sector and is synced before the first frame.
            return "history_damaged" if _has_linked_frames(wal) else "torn_tail"
        broken, computed = _find_broken(wal, accepted_frames)
        if broken == wal.count:
            whole = wal.offset(wal.count) == size
            ended = broken == 0 or wal.is_commit(broken - 1)
            return "clean" if whole and ended else "torn_tail"
        if _proves_damage(wal, broken, computed):
            return "history_damaged"
        # After a checkpoint the file is written from its start again: behind the newest frame
        # stand old ones with other salts.
        ended = broken == 0 or wal.is_commit(broken - 1)
        torn = any(wal.is_current(index) for index in range(broken, wal.count))
        return "clean" if ended and not torn else "torn_tail"


def _find_broken(wal: _Wal, start: int) -> tuple[int, Checksum]:
    """Returns the first frame that doesn't verify (`wal.count`: none), and what it should hold."""
    before = wal.stored_checksum(start - 1)
    for index in range(start, wal.count):
        expected = wal.expected_checksum(index, before)
        if not wal.is_current(index) or wal.stored_checksum(index) != expected:
            return index, expected
        before = expected
    return wal.count, before


def _has_linked_frames(wal: _Wal) -> bool:
    """Tells whether the first two frames belong together, whatever the header says."""
    if wal.count < 2:
        return False
    for order in "<>":
        wal.order = order
        if wal.follows(1, [wal.stored_checksum(0)]):
            return True
    return False


def _proves_damage(wal: _Wal, broken: int, computed: Checksum) -> bool:
    """Tells whether a transaction after the broken frame's own has left a frame.

    Inside one transaction frames may reach the disk in any order, so a later frame of the same
    transaction proves nothing (test_transaction_written_out_of_order_is_a_torn_tail).
    """
    befores = [wal.stored_checksum(broken), computed]
    if wal.follows(broken + 1, befores):
        # Its header was written: the next frame goes on from its checksum.
        if wal.is_current(broken) and wal.is_commit(broken):
            return True
        if not wal.is_current(broken) and wal.head_in_one_sector(broken):
            return True
        if wal.is_flipped_commit(broken):
            return True
    commit_seen = False
    for index in range(broken + 1, wal.count):
        known = befores if index == broken + 1 else [wal.stored_checksum(index - 1)]
        if not wal.follows(index, known):
            continue
        if commit_seen:
            return True
        commit_seen = wal.is_commit(index)
    return False
