"""The write-ahead log cut, flipped and reordered: a prefix of the commits, or refused by name."""

import random
import shutil
from pathlib import Path

import pytest

from planaria.protocol.errors import DataDirectoryError, IntegrityError
from planaria.protocol.events import Event
from planaria.supervisor.event_log import EventLog
from planaria.supervisor.log_schema import PAGE_BYTES
from planaria.supervisor.wal_check import FRAME_HEADER_BYTES, HEADER_BYTES, classify_wal

FRAME_BYTES = FRAME_HEADER_BYTES + PAGE_BYTES
COMMITS = 11  # the last one has several frames


def commit_events(directory: Path, commits: int = COMMITS) -> None:
    """Leaves a log as a killed writer does: everything stands in the WAL."""
    log = EventLog.open(directory)
    for n in range(1, commits + 1):
        text = "x" * (5_000 * (n % 3))
        log.append([Event("run_a", n, "harness.warning", 1, 0, 0, None, None, {"text": text})])
    log._connection.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template")
    commit_events(directory)
    return directory


@pytest.fixture
def wal(template: Path) -> bytearray:
    return bytearray((template / "events.db-wal").read_bytes())


def put(template: Path, directory: Path, wal: bytes, database: bytes | None = None) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    shutil.copyfile(template / "events.db", directory / "events.db")
    if database is not None:
        (directory / "events.db").write_bytes(database)
    (directory / "events.db-wal").write_bytes(wal)


def read_back(directory: Path) -> int:
    """Returns how many events the reopened log has, all of them verified."""
    log = EventLog.open(directory)
    try:
        count = 0
        for _, event in log.read_run("run_a"):
            count += 1
            assert count == event.sequence
        return count
    finally:
        log._connection.close()


def commit_ends(wal: bytes) -> list[int]:
    ends = []
    for start in range(HEADER_BYTES, len(wal), FRAME_BYTES):
        if wal[start + 4 : start + 8] != bytes(4):
            ends.append(start + FRAME_BYTES)
    return ends


def test_whole_missing_and_empty_logs_are_clean(template: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()

    assert "clean" == classify_wal(template / "events.db-wal", PAGE_BYTES)
    assert "clean" == classify_wal(template / "missing", PAGE_BYTES)
    assert "clean" == classify_wal(empty, PAGE_BYTES)


def test_cut_log_is_a_prefix_of_the_commits(template: Path, wal: bytearray, tmp_path: Path) -> None:
    seed = 20_240_601
    draw = random.Random(seed)
    frames = [HEADER_BYTES + n * FRAME_BYTES for n in range(len(wal) // FRAME_BYTES + 1)]
    assert len(wal) == frames[-1]
    ends = commit_ends(wal)
    path = tmp_path / "cut-wal"
    for cut in frames + [draw.randrange(len(wal)) for _ in range(500)]:
        path.write_bytes(wal[:cut])
        whole = cut in ends or cut in (0, HEADER_BYTES)
        expected = "clean" if whole else "torn_tail"
        accepted = max((end for end in ends if end <= cut), default=HEADER_BYTES)
        state = classify_wal(path, PAGE_BYTES, (accepted - HEADER_BYTES) // FRAME_BYTES)
        assert expected == state, f"cut at {cut}, seed {seed}"
    for cut in frames + [draw.randrange(len(wal)) for _ in range(60)]:
        put(template, tmp_path / "log", wal[:cut])
        complete = sum(end <= cut for end in ends)
        assert complete == read_back(tmp_path / "log"), f"cut at {cut}, seed {seed}"


def test_flipped_bit_is_refused_or_costs_at_most_the_last_commit(
    template: Path, wal: bytearray, tmp_path: Path
) -> None:
    seed = 7
    draw = random.Random(seed)
    last_commit = commit_ends(wal)[-2]
    places = [(draw.randrange(len(wal)), draw.randrange(8)) for _ in range(120)]
    # Headers are a small part of the bytes and the harder part of the question.
    for start in [0, *range(HEADER_BYTES, len(wal), FRAME_BYTES)]:
        places += [(start + draw.randrange(24), draw.randrange(8)) for _ in range(3)]
    assert len(places) >= 200
    refused = missed = 0
    for offset, bit in places:
        damaged = bytearray(wal)
        damaged[offset] ^= 1 << bit
        put(template, tmp_path / "log", damaged)
        try:
            count = read_back(tmp_path / "log")
        except IntegrityError as error:
            assert "damaged" in str(error)
            assert damaged == (tmp_path / "log" / "events.db-wal").read_bytes()
            refused += 1
            continue
        assert count >= COMMITS - 1, f"offset {offset}, bit {bit}, seed {seed}: {count} left"
        assert offset >= last_commit or count == COMMITS, f"offset {offset}, bit {bit}"
        missed += 1

    assert refused > missed


def test_flipped_bit_in_the_database_is_refused_by_name(tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.mkdir()
    log = EventLog.open(template)
    events = [
        Event("run_a", n, "harness.warning", n, 0, 0, None, None, {"text": "x" * 500})
        for n in range(1, 61)
    ]
    log.append(events)
    log.close()
    database = (template / "events.db").read_bytes()
    seed = 11
    draw = random.Random(seed)
    refused = 0
    for _ in range(200):
        offset, bit = draw.randrange(len(database)), draw.randrange(8)
        damaged = bytearray(database)
        damaged[offset] ^= 1 << bit
        put(template, tmp_path / "log", b"", damaged)
        try:
            log = EventLog.open(tmp_path / "log")
            try:
                assert events == [event for _, event in log.read_run("run_a")], (offset, bit)
            finally:
                log._connection.close()
        except (IntegrityError, DataDirectoryError):
            refused += 1

    assert refused > 20  # the rest hit bytes that hold nothing


def test_transaction_written_out_of_order_is_a_torn_tail(
    template: Path, wal: bytearray, tmp_path: Path
) -> None:
    ends = commit_ends(wal)
    frames = range(ends[-2], ends[-1], FRAME_BYTES)
    assert len(frames) >= 3
    for mask in range(1, 2 ** len(frames)):
        torn = bytearray(wal)
        for number, start in enumerate(frames):
            if mask >> number & 1:  # this one had not reached the disk
                torn[start : start + FRAME_BYTES] = bytes(FRAME_BYTES)
        put(template, tmp_path / "log", torn)

        everything = mask == 2 ** len(frames) - 1
        state = classify_wal(tmp_path / "log" / "events.db-wal", PAGE_BYTES)
        assert ("clean" if everything else "torn_tail") == state, bin(mask)
        assert COMMITS - 1 == read_back(tmp_path / "log")


def test_old_frames_behind_a_restarted_log_are_clean(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path)
    for n in range(1, 9):
        if n in (5, 7):
            log._tried_pages = -1_000
            log.checkpoint_if_due(idle=True)
        log.append([Event("run_a", n, "harness.warning", 1, 0, 0, None, None, {"text": "x"})])
    log._connection.close()

    assert "clean" == classify_wal(tmp_path / "events.db-wal", PAGE_BYTES)
    assert 8 == read_back(tmp_path)
