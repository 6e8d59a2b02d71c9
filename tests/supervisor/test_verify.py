"""The verification of a whole data directory."""

from hashlib import sha256
from pathlib import Path

import apsw
import msgpack
import pytest
from log_builder import make_clean_log

from planaria.protocol.errors import DataDirectoryError
from planaria.protocol.events import Event
from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.supervisor.event_log import EventLog
from planaria.supervisor.verify import verify_directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory that holds the clean log, its blobs, an artifact and pinned modules."""
    modules = tmp_path / "artifacts" / "modules"
    rows = [["pkg/a.py", sha256(b"x = 1\n").hexdigest()]]
    pin = sha256(msgpack.packb(rows)).hexdigest()
    (modules / pin / "pkg").mkdir(parents=True)
    (modules / pin / "pkg" / "a.py").write_bytes(b"x = 1\n")
    (tmp_path / "events").mkdir()
    log = EventLog.open(tmp_path / "events")
    builder = make_clean_log()
    builder.events[1].payload["source"] = {"modulesRef": pin}
    first = log.first_hash(builder.events[1]).hex()
    builder.events[2].payload["admissionHash"] = f"sha256:{first}"
    builder.blob(b"artifact")
    for ref, data in builder.blobs.items():
        path = tmp_path / "artifacts" / "blobs" / ref
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    # The digests of histories don't contain the admission: they hold unchanged.
    log.append(builder.events)
    log.close()
    digest = sha256(b"artifact").hexdigest()
    manifest = f'{{"runId": "run_a", "sha256": "sha256:{digest}", "size": 8}}'
    (tmp_path / "artifacts" / "art_1.json").write_text(manifest)
    return tmp_path


def change_database(directory: Path, sql: str) -> None:
    connection = apsw.Connection(str(directory / "events" / "events.db"))
    try:
        for name in ("events_not_updated", "events_not_deleted", "events_not_replaced"):
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(sql)
    finally:
        connection.close()


def test_sound_directory_is_found_sound(directory: Path) -> None:
    report = verify_directory(directory, integrity_check=True)

    assert [] == report.lines()
    assert report.is_sound
    assert (1, 2, 1, 0) == (report.runs, report.blobs, report.artifacts, report.unreferenced)
    assert len(make_clean_log().events) == report.events


def test_directory_is_verified_beside_a_living_writer(directory: Path) -> None:
    log = EventLog.open(directory / "events")
    started = {"supervisorId": "s", "pid": 1, "epoch": 3, "version": "0"}
    last = log.read_all(0, 1_000)
    sequence = max(e.sequence for _, e in last if e.run_id == SYSTEM_RUN_ID)
    event = Event(SYSTEM_RUN_ID, sequence + 1, "SupervisorStarted", 1, 1, 3, None, None, started)
    log.append([event])

    report = verify_directory(directory)
    log.append([Event(SYSTEM_RUN_ID, sequence + 2, "SupervisorStopped", 2, 2, 3, None, None,
                      {"epoch": 3, "reason": "asked"})])  # fmt: skip
    again = verify_directory(directory)
    log.close()

    assert [] == report.lines()
    assert [] == again.lines()
    assert report.events + 1 == again.events


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("UPDATE events SET hash = zeroblob(32) WHERE position = 9", "I2 "),
        ("UPDATE events SET body = 'text' WHERE position = 9", "doesn't hold what a row holds"),
        ("DELETE FROM events WHERE position = 9", "I1 "),
        ("UPDATE runs SET status = 'failed'", "listed with status 'failed'"),
        ("UPDATE runs SET ended_at = NULL", "listed with ended_at None"),
        ("DELETE FROM runs", "isn't listed"),
        ("INSERT INTO runs VALUES('run_x', 'running', 'w', 1, NULL)", "without its events"),
        ("DELETE FROM meta", "it has no id"),
    ],
)
def test_changed_database_is_found(directory: Path, sql: str, expected: str) -> None:
    change_database(directory, sql)

    report = verify_directory(directory)

    assert not report.is_sound
    assert any(expected in line for line in report.lines()), report.lines()


def test_dropped_projection_is_no_fault(directory: Path) -> None:
    change_database(directory, "DROP TABLE runs")

    assert [] == verify_directory(directory).lines()


def test_changed_files_are_found(directory: Path) -> None:
    artifacts = directory / "artifacts"
    for path in (artifacts / "blobs").rglob("*"):
        if path.is_file():
            path.write_bytes(b"other")
    for path in (artifacts / "modules").rglob("*.py"):
        path.write_text("x = 2\n")
    (artifacts / "art_2.json").write_text("[]")

    lines = verify_directory(directory).lines()

    assert any(line.startswith("I31 ") for line in lines), lines
    assert any(line.startswith("modules: ") and "aren't what" in line for line in lines)
    assert any("'art_1.json': blob" in line for line in lines)
    assert any("'art_2.json' is no manifest" in line for line in lines)


def test_page_of_garbage_is_a_finding(directory: Path) -> None:
    path = directory / "events" / "events.db"
    data = bytearray(path.read_bytes())
    start = 8_192 * (len(data) // 8_192 // 2)
    data[start : start + 4_096] = b"\xff" * 4_096
    path.write_bytes(data)

    assert not verify_directory(directory).is_sound


def test_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="there is no event log"):
        verify_directory(tmp_path)

    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "events.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(DataDirectoryError, match="no event log that can be read"):
        verify_directory(tmp_path)
