"""Commits: blobs and manifests first, then ONE append of all events; an error ends the process."""

import contextlib
from typing import Any

from planaria.protocol.errors import CommitUnknownError, DataDirectoryError
from planaria.protocol.events import RUN_TERMINAL, Event
from planaria.protocol.ids import SYSTEM_RUN_ID

from .clock import read_clock
from .desk import Desk
from .faults import Faults
from .kernel import Turn
from .loop_files import LoopFiles
from .run_state import Now
from .storage import Storage, stop_the_world
from .system_state import SystemState


class Commits:
    """What the loop's rounds leave on the disk."""

    def __init__(
        self, system: SystemState, storage: Storage, loops: LoopFiles, desk: Desk, faults: Faults
    ) -> None:
        self._system = system
        self._storage = storage
        self._loops = loops
        self._desk = desk
        self._faults = faults
        self._system_sequence = storage.log.last_sequence(SYSTEM_RUN_ID)

    def record(self, event_type: str, payload: dict[str, Any]) -> None:
        """Commits an event of the supervisor itself."""
        self._append([self._make_system_event(event_type, payload, read_clock())])

    def commit(self, turns: list[Turn]) -> None:
        """Commits the events of all turns together, and tells the desk of them."""
        events: list[Event] = []
        for turn in turns:
            self._write_blobs(turn)
            for loop_id, data in turn.files:
                self.write_manifest(loop_id, data)
            # Of the same moment as what they tell of: the log takes no event before another one.
            now = Now(turn.events[0].at, turn.events[0].mono) if turn.events else read_clock()
            events.extend(self._make_system_event(*note, now) for note in turn.notes)
            events.extend(turn.events)
        if not events:
            return
        admitted = [e for e in events if e.type == "RunAdmitted"]
        for event in admitted:
            recorded = {
                "admittedRunId": event.run_id,
                "admissionHash": "sha256:" + self._storage.log.first_hash(event).hex(),
            }
            events.append(self._make_system_event("RunRecorded", recorded, read_clock()))
        self._append(events)
        self._desk.note_events(events)

    def write_manifest(self, loop_id: str, data: bytes | None = None) -> None:
        """Writes an outer loop's manifest: the given bytes, or what its events say now."""
        try:
            self._loops.write(loop_id, data)
        except OSError as error:
            stop_the_world(error)

    def check_disk(self) -> None:
        """Ends the process if the disk refuses values."""
        try:
            self._storage.blobs.check_writable()
        except DataDirectoryError as error:
            stop_the_world(error)

    def _append(self, events: list[Event]) -> None:
        self._faults.note_commit(event.type for event in events)
        try:
            self._storage.log.append(events)
        except CommitUnknownError as error:
            if "go_on_after_failed_commit" in self._faults.bugs:
                return
            stop_the_world(error)
        with contextlib.suppress(OSError):  # the notes are for people; nothing is decided by them
            for event in events:
                if event.type in ("RunStarted", "RunReopened"):
                    self._storage.lock.write_note(event.run_id)
                elif event.type in RUN_TERMINAL:
                    self._storage.lock.remove_note(event.run_id)

    def _write_blobs(self, turn: Turn) -> None:
        for blob in turn.blobs:
            try:
                self._storage.blobs.write(blob)
            except DataDirectoryError as error:
                stop_the_world(error)

    def _make_system_event(self, event_type: str, payload: dict[str, Any], now: Now) -> Event:
        self._system_sequence += 1
        return Event(
            run_id=SYSTEM_RUN_ID,
            sequence=self._system_sequence,
            type=event_type,
            at=now.at,
            mono=now.mono,
            epoch=self._system.epoch,
            session_id=None,
            incarnation=None,
            payload=payload,
        )
