"""Backups: coherent beside a writer, verified, and there as a whole or not at all."""

import os
import shutil
import threading
from pathlib import Path

import pytest
from stored_runs import StoredRuns, kill_at, read_tree

from planaria.protocol.errors import (
    ConflictError,
    DataDirectoryError,
    IntegrityError,
    UsageError,
)
from planaria.supervisor.backup import make_backup
from planaria.supervisor.backup_manifest import read_manifest
from planaria.supervisor.log_copy import LogSnapshot
from planaria.supervisor.log_schema import PAGE_BYTES
from planaria.supervisor.prune import prune_directory
from planaria.supervisor.verify import verify_directory

POINTS = (
    "backup_made",
    "backup_pages",
    "backup_database",
    "backup_files",
    "backup_synced",
    "backup_verified",
    "backup_manifest",
)


@pytest.fixture
def stored(tmp_path: Path) -> StoredRuns:
    """Runs, one of them open, with blobs, modules, memory and an artifact."""
    stored = StoredRuns(tmp_path / "d")
    stored.run("ended", content=b"x" * 1_000, files={"a.py": b"x = 1\n", "pkg/b.py": b""})
    stored.run("open", is_open=True)
    root = stored.directory.root
    (root / "memory" / "workflows" / "w").mkdir(parents=True)
    (root / "memory" / "workflows" / "w" / "notes.md").write_text("remember")
    ref = stored.blob(b"artifact")
    manifest = f'{{"runId": "ended", "sha256": "{ref["sha256"]}", "size": 8}}'
    (root / "artifacts" / "art_1.json").write_text(manifest)
    return stored


def test_backup_holds_all_but_what_is_made_anew(stored: StoredRuns, tmp_path: Path) -> None:
    stored.close()
    made = make_backup(tmp_path / "d", tmp_path / "b")

    source, copied = read_tree(tmp_path / "d"), read_tree(tmp_path / "b" / "data")
    left_out = {"runs/ended/harness/hs_1/draft.txt"}  # scratch of a run that has ended
    database = {"events/events.db"}  # the same rows, not the same bytes
    assert source.keys() - left_out == copied.keys()
    assert {p: source[p] for p in copied.keys() - database} == {
        p: copied[p] for p in copied.keys() - database
    }
    assert copied.keys() == made.manifest.files.keys()
    assert made.manifest == read_manifest(tmp_path / "b")
    assert (12, 1) == (made.manifest.last_position, made.manifest.epoch)
    assert verify_directory(tmp_path / "b" / "data").is_sound


def test_backup_writes_nothing_into_the_directory(stored: StoredRuns, tmp_path: Path) -> None:
    stored.close()
    before = read_tree(tmp_path / "d")
    make_backup(tmp_path / "d", tmp_path / "b")

    assert before == read_tree(tmp_path / "d")


def test_backups_beside_a_writer_hold_every_blob_that_they_name(
    stored: StoredRuns, tmp_path: Path
) -> None:
    stop = threading.Event()
    ready = threading.Event()
    numbers = []

    def write() -> None:
        while not stop.is_set():
            ref = stored.blob(os.urandom(400))
            admitted = {
                "workflowId": "w",
                "workflowDefinitionHash": "sha256:0",
                "trigger": "api",
                "inputRef": ref,
                "inputHash": "sha256:1",
                "source": {"kind": "file"},
            }
            numbers.append(stored.add(f"new{len(numbers)}", "RunAdmitted", admitted))
            if len(numbers) > 5:
                ready.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert ready.wait(20)
        made = [make_backup(tmp_path / "d", tmp_path / f"b{n}").manifest for n in range(3)]
    finally:
        stop.set()
        writer.join()
    stored.log.close()

    positions = [manifest.last_position for manifest in made]
    assert positions == sorted(set(positions)), positions
    for n in range(3):
        assert verify_directory(tmp_path / f"b{n}" / "data").is_sound


def test_moment_is_taken_again_when_a_loop_moves_on_around_it(
    stored: StoredRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.close()
    stored.loop("ol_1", [], 2)
    pins = []

    def pin(reader: LogSnapshot) -> int:
        pins.append(1)
        if len(pins) == 1:
            stored.loop("ol_1", [], 3)
        return take_moment(reader)

    take_moment = LogSnapshot.pin
    monkeypatch.setattr(LogSnapshot, "pin", pin)
    make_backup(tmp_path / "d", tmp_path / "b")

    assert 2 == len(pins)
    assert b'"maxCycles": 3' in read_tree(tmp_path / "b")["data/outer-loops/ol_1.json"]


@pytest.mark.parametrize("point", POINTS)
def test_killed_backup_leaves_nothing_that_looks_like_one(
    stored: StoredRuns, tmp_path: Path, point: str
) -> None:
    stored.close()
    kill_at(point, "backup", tmp_path / "d", tmp_path / "b")
    assert not (tmp_path / "b").exists()

    make_backup(tmp_path / "d", tmp_path / "b")
    assert ["b", "d"] == sorted(os.listdir(tmp_path))


def test_backup_killed_after_it_has_its_name_is_whole(stored: StoredRuns, tmp_path: Path) -> None:
    stored.close()
    kill_at("backup_renamed", "backup", tmp_path / "d", tmp_path / "b")

    assert 12 == read_manifest(tmp_path / "b").last_position
    assert ["b", "d"] == sorted(os.listdir(tmp_path))


def test_folder_that_holds_something_is_refused(stored: StoredRuns, tmp_path: Path) -> None:
    stored.close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()

    with pytest.raises(ConflictError, match="thesis"):
        make_backup(tmp_path / "d", tmp_path / "full")
    with pytest.raises(ConflictError, match="is a file"):
        make_backup(tmp_path / "d", tmp_path / "file")
    with pytest.raises(UsageError, match="lie in the other"):
        make_backup(tmp_path / "d", tmp_path / "d" / "b")
    with pytest.raises(DataDirectoryError, match="no event log"):
        make_backup(tmp_path / "empty", tmp_path / "b")
    make_backup(tmp_path / "d", tmp_path / "empty")
    with pytest.raises(ConflictError, match="isn't empty"):
        make_backup(tmp_path / "d", tmp_path / "empty")


def test_directory_that_isnt_sound_gets_no_backup(stored: StoredRuns, tmp_path: Path) -> None:
    stored.close()
    blob = next(path for path in stored.directory.blobs.rglob("*") if path.is_file())
    blob.write_bytes(b"other")

    with pytest.raises(IntegrityError, match="isn't sound, and was not kept"):
        make_backup(tmp_path / "d", tmp_path / "b")
    assert ["d"] == os.listdir(tmp_path)


def test_damaged_write_ahead_log_is_refused(stored: StoredRuns, tmp_path: Path) -> None:
    # As a killed supervisor leaves it: the commits stand in the write-ahead log.
    shutil.copytree(tmp_path / "d", tmp_path / "killed")
    stored.close()
    path = tmp_path / "killed" / "events" / "events.db-wal"
    data = bytearray(path.read_bytes())
    data[32 + 24 + PAGE_BYTES // 2] ^= 1
    path.write_bytes(data)

    with pytest.raises(IntegrityError, match="damaged before its end"):
        make_backup(tmp_path / "killed", tmp_path / "b")


def test_scratch_of_odd_kinds(stored: StoredRuns, tmp_path: Path) -> None:
    stored.close()
    scratch = stored.directory.scratch("open", "hs_1")
    os.mkfifo(scratch / "pipe")
    os.symlink("/nowhere", scratch / "link")
    (scratch / "tool.sh").write_text("#!/bin/sh")
    (scratch / "tool.sh").chmod(0o700)
    (scratch / os.fsdecode(b"caf\xe9")).write_text("Latin-1")
    made = make_backup(tmp_path / "d", tmp_path / "b")

    assert ["runs/open/harness/hs_1/pipe"] == made.manifest.skipped
    assert {"runs/open/harness/hs_1/link": "/nowhere"} == made.manifest.links
    assert 0o700 == made.manifest.files["runs/open/harness/hs_1/tool.sh"].mode
    assert made.manifest == read_manifest(tmp_path / "b")


def test_backup_and_prune_keep_out_of_each_others_way(stored: StoredRuns, tmp_path: Path) -> None:
    stored.close()
    refusals = []

    def prune(point: str) -> None:
        if point == "backup_database":
            with pytest.raises(ConflictError, match="a backup of it is being made") as caught:
                prune_directory(tmp_path / "d", 0)
            refusals.append(str(caught.value))

    make_backup(tmp_path / "d", tmp_path / "b", trace=prune)
    assert 1 == len(refusals)

    def back_up(point: str) -> None:
        if point == "prune_committed":
            with pytest.raises(ConflictError, match="it is being pruned"):
                make_backup(tmp_path / "d", tmp_path / "b2")
            refusals.append(point)

    prune_directory(tmp_path / "d", 0, trace=back_up)
    assert 2 == len(refusals)
