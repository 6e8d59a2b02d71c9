"""What a session puts into its log: events with their large values, notes, and its end."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from planaria.blobstore import BlobStore
from planaria.protocol.codec import Json
from planaria.protocol.errors import shorten
from planaria.protocol.limits import INLINE_BYTES_MAX
from planaria.protocol.payloads import Ref, load_value, split_payload

from .link import Report, Reports
from .records import History
from .session import Session


class SessionReports:
    """The reports of one session, those of its earlier processes known."""

    def __init__(
        self, session: Session, reports: Reports, blobs: BlobStore, history: History | None
    ) -> None:
        self._session = session
        self._reports = reports
        self._blobs = blobs
        self._history = history or History({}, Counter())
        self._ended_at: int | None = reports.last if self._history.is_ended else None
        self._is_closed = False

    def warn(self, text: str) -> None:
        """Records a warning, once however often it is replayed."""
        self._note(shorten(text), "harness.warning", {"text": shorten(text)})

    def note(self, kind: str, payload: dict[str, Any]) -> None:
        """Records an event that is no call; the n-th of its type, once however often replayed."""
        self._note(kind, kind, payload)

    def report(self, kind: str, payload: dict[str, Any]) -> None:
        """Records an event from within a body, which isn't replayed: each time that it happens."""
        if self._ended_at is None:
            self._append([(kind, payload)])

    def end(self, report: Report) -> None:
        """Records the end of the session's step; a second one is not recorded."""
        if self._ended_at is None:
            self._ended_at = self._append([report])

    async def wait_ended(self) -> None:
        """Waits until the end of the step is on disk."""
        assert self._ended_at is not None, "the session has no end yet"
        await self._reports.wait_committed(self._ended_at)

    @property
    def is_ended(self) -> bool:
        """Says whether the end of the step has been reported."""
        return self._ended_at is not None

    @property
    def is_settled(self) -> bool:
        """Says whether the end of the step is on disk."""
        return self._ended_at is not None and self._reports.is_committed(self._ended_at)

    def leave(self) -> None:
        """Frees the link for the next session."""
        self._reports.close()

    async def wait_reported(self) -> None:
        """Waits until everything that was reported is on disk."""
        await self._reports.wait_committed(self._reports.last)

    def _append(self, reports: Iterable[Report], *, linger: bool = False) -> int:
        """Reports events, each with its large values in the blob store before it is sent."""
        inline_bytes_max = -1 if self._session.sensitive else INLINE_BYTES_MAX
        ready: list[Report] = []
        for kind, payload in reports:
            split, data = split_payload(payload, inline_bytes_max=inline_bytes_max)
            for blob in data:
                self._blobs.write(blob)
            ready.append((kind, split))
        return self._reports.append(ready, linger=linger)

    def _load(self, value: Json | Ref) -> Json:
        return load_value(value, self._blobs.read)

    def _note(self, recorded_as: str, kind: str, payload: dict[str, Any]) -> None:
        if self._history.notes[recorded_as] > 0:
            self._history.notes[recorded_as] -= 1
        elif not self._is_closed and self._ended_at is None:
            self._append([(kind, payload)])
