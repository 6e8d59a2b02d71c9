"""The event log in normal running: appends, reads, chains, guards, checkpoints."""

from hashlib import sha256
from pathlib import Path

import apsw
import pytest

from planaria.protocol.errors import CommitUnknownError, DataDirectoryError, IntegrityError
from planaria.protocol.events import Event, decode_event, encode_event
from planaria.supervisor import event_log as module
from planaria.supervisor.event_log import EventLog, EventReader, RunRow


def make_event(
    run_id: str = "run_a",
    sequence: int = 1,
    kind: str = "harness.warning",
    payload: dict[str, object] | None = None,
    session_id: str | None = "hs_1",
    mono: int = 0,
    epoch: int = 0,
) -> Event:
    payload = {"text": f"{run_id} {sequence}"} if payload is None else payload
    return Event(run_id, sequence, kind, 1_000 + sequence, mono, epoch, session_id, 1, payload)


def admitted(run_id: str) -> Event:
    return make_event(run_id, 1, "RunAdmitted", {"workflowId": "w"}, session_id=None)


def ended(run_id: str, sequence: int) -> Event:
    return make_event(run_id, sequence, "RunCompleted", {"output": 1}, session_id=None)


@pytest.fixture
def log(tmp_path: Path):
    log = EventLog.open(tmp_path)
    yield log
    log.close()


def test_appended_events_are_read_back_with_their_positions(log: EventLog) -> None:
    first = [make_event("run_a", 1), make_event("run_b", 1), make_event("run_a", 2)]
    second = [make_event("run_a", 3)]

    assert [1, 2, 3] == list(log.append(first))
    assert [4] == list(log.append(second))
    assert [(1, first[0]), (3, first[2]), (4, second[0])] == list(log.read_run("run_a"))
    assert [(4, second[0])] == list(log.read_run("run_a", after=2))
    assert [(1, first[0])] == list(log.read_run("run_a", limit=1))
    assert [(2, first[1]), (3, first[2])] == log.read_all(1, 2)
    assert [] == list(log.read_run("run_a", after=9))
    assert 4 == log.last_position()


def test_long_run_is_read_in_pages(log: EventLog) -> None:
    events = [make_event(sequence=n) for n in range(1, 3 * module.PAGE_ROWS + 2)]
    log.append(events)

    assert events == [event for _, event in log.read_run("run_a")]
    assert events[: module.PAGE_ROWS + 1] == [
        event for _, event in log.read_run("run_a", limit=module.PAGE_ROWS + 1)
    ]


def test_reopened_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path)
    log.append([make_event(sequence=1, mono=5)])
    log.close()
    log = EventLog.open(tmp_path)
    log.append([make_event(sequence=2, mono=6)])

    assert [1, 2] == [event.sequence for _, event in log.read_run("run_a")]
    log.close()


def test_hash_chain_begins_with_the_database_id(log: EventLog, tmp_path: Path) -> None:
    events = [make_event(sequence=1), make_event(sequence=2)]
    log.append(events)
    one = sha256(bytes.fromhex(log.database_id) + encode_event(events[0])).digest()
    two = sha256(one + encode_event(events[1])).digest()

    reader = apsw.Connection(str(tmp_path / "events.db"), flags=apsw.SQLITE_OPEN_READONLY)
    assert [(one,), (two,)] == list(reader.execute("SELECT hash FROM events ORDER BY position"))
    reader.close()
    assert one == log.first_hash(events[0])


@pytest.mark.parametrize("sequence", [1, 2, 4])
def test_event_that_does_not_continue_its_run_stops_the_log(tmp_path: Path, sequence: int) -> None:
    log = EventLog.open(tmp_path)
    log.append([make_event(sequence=1), make_event(sequence=2)])
    with pytest.raises(IntegrityError):
        log.append([make_event("run_new", 1), make_event(sequence=sequence)])

    with pytest.raises(CommitUnknownError):
        log.append([make_event(sequence=3)])
    with pytest.raises(CommitUnknownError):
        log.last_position()
    log.close()
    log = EventLog.open(tmp_path)
    assert 2 == log.last_position()
    log.close()


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([make_event(epoch=1)], "epoch"),
        ([make_event(mono=5), make_event(sequence=2, mono=4)], "before 5"),
        ([make_event(payload={"text": "x" * module.EVENT_BYTES_MAX})], "at most"),
    ],
)
def test_event_against_an_invariant_stops_the_log(
    tmp_path: Path, events: list[Event], words: str
) -> None:
    log = EventLog.open(tmp_path)
    with pytest.raises(IntegrityError, match=words):
        log.append(events)
    log.close()
    log = EventLog.open(tmp_path)

    assert 0 == log.last_position()
    log.close()


def test_epoch_rises_with_the_start_of_a_supervisor(log: EventLog) -> None:
    start = {"supervisorId": "s", "pid": 1, "epoch": 1, "version": "0"}
    log.append([make_event("run_system", 1, "SupervisorStarted", start, mono=9, epoch=1)])
    log.append([make_event("run_a", 1, mono=9, epoch=1)])

    assert [1, 1] == [event.epoch for _, event in log.read_all(0)]


def test_session_is_read_in_pages_of_rows_and_bytes(log: EventLog) -> None:
    log.append([make_event(sequence=n, session_id=f"hs_{n % 2}") for n in range(1, 9)])
    page = log.read_session("run_a", "hs_1", 0, limit=2)

    assert [1, 3] == [sequence for sequence, _ in page]
    assert [1, 3] == [decode_event(body).sequence for _, body in page]
    assert [5, 7] == [n for n, _ in log.read_session("run_a", "hs_1", 3)]
    assert [5] == [n for n, _ in log.read_session("run_a", "hs_1", 3, bytes_max=1)]
    assert [] == log.read_session("run_b", "hs_1", 0)


def test_runs_are_listed_and_open_ones_found(log: EventLog) -> None:
    log.append([admitted("run_a"), admitted("run_b"), ended("run_a", 2)])

    assert ["run_b"] == log.open_runs()
    assert [
        RunRow("run_b", "admitted", "w", 1_001, None),
        RunRow("run_a", "completed", "w", 1_001, 1_002),
    ] == log.list_runs()
    assert ["run_a"] == [row.run_id for row in log.list_runs(status="completed")]
    assert ["run_b"] == [row.run_id for row in log.list_runs(limit=1)]
    assert (True, False) == (log.run_exists("run_a"), log.run_exists("run_c"))
    assert ["run_a", "run_b"] == list(log.run_ids())


def test_given_rows_replace_the_derived_ones(log: EventLog) -> None:
    log.append([admitted("run_a")], [RunRow("run_a", "queued", "other", 7)])

    assert [RunRow("run_a", "queued", "other", 7, None)] == log.list_runs()


def test_dropped_rows_of_runs_are_rebuilt_at_opening(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path)
    log.append([admitted("run_a"), admitted("run_b"), ended("run_a", 2)])
    rows = log.list_runs()
    log.close()
    tool = apsw.Connection(str(tmp_path / "events.db"))
    tool.execute("DROP TABLE runs")
    tool.close()
    log = EventLog.open(tmp_path)

    assert rows == log.list_runs()
    assert ["run_b"] == log.open_runs()
    log.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET type = 'x'",
        "DELETE FROM events",
        "INSERT OR REPLACE INTO events SELECT position, run_id, sequence, session_id, 'x', "
        "body, hash FROM events WHERE position = 1",
        "INSERT OR REPLACE INTO events SELECT 99, run_id, sequence, session_id, 'x', "
        "body, hash FROM events WHERE position = 1",
        "INSERT OR IGNORE INTO events SELECT 99, run_id, sequence, session_id, 'x', "
        "body, hash FROM events WHERE position = 1",
        "INSERT INTO events VALUES(0, 'run_z', 1, NULL, 'x', x'', x'')",
    ],
)
def test_database_refuses_to_change_events(log: EventLog, tmp_path: Path, statement: str) -> None:
    log.append([make_event(sequence=1), make_event(sequence=2)])
    tool = apsw.Connection(str(tmp_path / "events.db"))
    with pytest.raises(apsw.ConstraintError, match="events are"):
        tool.execute(statement)
    tool.close()

    assert [1, 2] == [event.sequence for _, event in log.read_run("run_a")]


def test_reader_sees_what_is_committed_and_cannot_write(log: EventLog, tmp_path: Path) -> None:
    log.append([make_event(sequence=1)])
    reader = EventReader.open(tmp_path / "events.db")
    log.append([make_event(sequence=2)])

    assert [1, 2] == [event.sequence for _, event in reader.read_run("run_a")]
    with pytest.raises(apsw.ReadOnlyError):
        reader._connection.execute("CREATE TABLE x(y)")
    reader.close()


def test_files_are_private(log: EventLog, tmp_path: Path) -> None:
    log.append([make_event()])

    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert {"events.db": 0o600, "events.db-wal": 0o600, "events.db-shm": 0o600} == modes


def test_unfinished_database_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "events.db.new").write_bytes(b"half")
    (tmp_path / "events.db.new-journal").write_bytes(b"half")
    EventLog.open(tmp_path).close()

    assert not list(tmp_path.glob("*.new*"))


def test_foreign_newer_and_empty_files_are_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    for content, kind in ((b"", IntegrityError), (b"text " * 100, IntegrityError)):
        path.write_bytes(content)
        with pytest.raises(kind, match="no SQLite database"):
            EventLog.open(tmp_path)
        assert content == path.read_bytes()
    path.unlink()
    tool = apsw.Connection(str(path))
    tool.execute("CREATE TABLE x(y)")
    with pytest.raises(DataDirectoryError, match="none of planaria"):
        EventLog.open(tmp_path)
    with pytest.raises(DataDirectoryError, match="none of planaria"):
        EventReader.open(path)
    tool.execute("PRAGMA application_id = 1349280110; PRAGMA user_version = 2")
    tool.close()
    with pytest.raises(DataDirectoryError, match="newer planaria"):
        EventLog.open(tmp_path)
    with pytest.raises(DataDirectoryError, match="no event log"):
        EventReader.open(tmp_path / "missing.db")


def test_link_in_place_of_the_database_is_refused(tmp_path: Path) -> None:
    EventLog.open(tmp_path).close()
    (tmp_path / "events.db").rename(tmp_path / "elsewhere.db")
    (tmp_path / "events.db").symlink_to("elsewhere.db")

    with pytest.raises(DataDirectoryError, match="can't be opened"):
        EventLog.open(tmp_path)


def test_removed_wal_stops_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAL_FILE_CHECK_BATCHES", 2)
    log = EventLog.open(tmp_path)
    log.append([make_event(sequence=1)])
    (tmp_path / "events.db-wal").unlink()

    with pytest.raises(CommitUnknownError, match="removed or replaced"):
        log.append([make_event(sequence=2)])
    log.close()


def test_wal_is_checkpointed_when_idle_or_large(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAL_IDLE_PAGES", 10)
    monkeypatch.setattr(module, "WAL_PASSIVE_PAGES", 20)
    for sequence in range(1, 6):
        log.append([make_event(sequence=sequence)])

    assert (False, True, False) == (
        log.checkpoint_if_due(idle=False),
        log.checkpoint_if_due(idle=True),
        log.checkpoint_if_due(idle=True),
    )
    log.append([make_event(sequence=6)])
    assert log._wal_pages < 10


def test_wal_stays_bounded_when_a_reader_has_lingered(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WAL_PASSIVE_PAGES", "WAL_RETRY_PAGES"):
        monkeypatch.setattr(module, name, 8)
    monkeypatch.setattr(module, "WAL_TRUNCATE_PAGES", 40)
    log.append([make_event(sequence=1)])
    reader = apsw.Connection(str(tmp_path / "events.db"), flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("BEGIN; SELECT * FROM events").fetchall()
    for sequence in range(2, 30):
        log.append([make_event(sequence=sequence)])
        log.checkpoint_if_due(idle=False)
    grown = log._wal_pages
    reader.execute("COMMIT")
    reader.close()
    for sequence in range(30, 40):
        log.append([make_event(sequence=sequence)])
        log.checkpoint_if_due(idle=False)

    assert grown > 40 > log._wal_pages
    assert 39 == log.last_position()


def test_points_of_a_commit_are_traced_in_order(tmp_path: Path) -> None:
    points: list[str] = []
    log = EventLog.open(tmp_path, trace=points.append)
    log.append([make_event(sequence=1)])
    log.append([make_event(sequence=2)])
    points.clear()
    log.append([make_event(sequence=3)])
    appended = list(points)
    points.clear()
    log.close()

    assert ["before_begin", "frames_written", "committed"] == appended
    assert "checkpoint" in points
