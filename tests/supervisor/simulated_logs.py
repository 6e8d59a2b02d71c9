"""Logs of the simulated worlds, as the checker reads them, and as a test may change them."""

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256

from world import World

from planaria.protocol.events import Event, decode_event, encode_event
from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.supervisor.checker import Row, Violation, check_log

DATABASE_ID = "00" * 16
# The simulated child writes positions in a form of its own, and the simulated launcher gives two
# processes of one turn the same pid.
SIMPLIFIED = frozenset({"I10", "I13"})


def read_events(world: World) -> list[Event]:
    """Returns the events of a world's log behind those of the system's own run."""
    notes = [
        Event(SYSTEM_RUN_ID, number, kind, 0, 0, 0, None, None, payload)
        for number, (kind, payload) in enumerate(world.notes, 1)
    ]
    return [*notes, *(decode_event(body) for body in world.log)]


def make_rows(events: Sequence[Event]) -> list[Row]:
    """Returns the rows of events whose sequences are counted anew."""
    counts: Counter[str] = Counter()
    tails: dict[str, bytes] = {}
    rows = []
    for position, event in enumerate(events, 1):
        counts[event.run_id] += 1
        event.sequence = counts[event.run_id]
        body = encode_event(event)
        before = tails.get(event.run_id, bytes.fromhex(DATABASE_ID))
        digest = tails[event.run_id] = sha256(before + body).digest()
        named = (event.run_id, event.sequence, event.session_id, event.type)
        rows.append(Row(position, *named, body, digest))
    return rows


def check_events(events: Sequence[Event], world: World) -> list[Violation]:
    """Returns the invariants that a log breaks, but for those that the simulation simplifies."""
    blobs = {f"sha256/{name[7:9]}/{name[7:]}": data for name, data in world.library.blobs.items()}
    found = check_log(
        make_rows(events), database_id=DATABASE_ID, read_blob=blobs.get, with_system=False
    )
    return [violation for violation in found if violation.invariant not in SIMPLIFIED]


def check_world(world: World) -> list[str]:
    """Returns what the checker finds in a world's log."""
    return [str(violation) for violation in check_events(read_events(world), world)]
