"""Restores: nothing damaged gets in, and a kill leaves one whole directory."""

import os
import socket
from pathlib import Path

import pytest
from stored_runs import StoredRuns, kill_at, read_tree, run_ids

from planaria.protocol.errors import (
    ConflictError,
    DataDirectoryError,
    DataDirLockedError,
    IntegrityError,
    NotFoundError,
)
from planaria.supervisor import restore as restore_module
from planaria.supervisor.backup import make_backup
from planaria.supervisor.event_log import EventLog
from planaria.supervisor.locks import DirectoryLock
from planaria.supervisor.restore import restore_backup
from planaria.supervisor.verify import verify_directory


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    stored = StoredRuns(tmp_path / "source")
    stored.run("ended", content=b"x" * 1_000, files={"a.py": b"x = 1\n"})
    stored.run("open", is_open=True)
    scratch = stored.directory.scratch("open", "hs_1")
    os.symlink("draft.txt", scratch / "link")
    (scratch / "empty").mkdir()
    (scratch / "tool.sh").write_text("#!/bin/sh")
    (scratch / "tool.sh").chmod(0o500)
    stored.close()
    return make_backup(tmp_path / "source", tmp_path / "backup").path


@pytest.fixture
def present(tmp_path: Path) -> Path:
    """A data directory that a backup may replace."""
    stored = StoredRuns(tmp_path / "d")
    stored.run("present")
    stored.close()
    return tmp_path / "d"


def test_restored_directory_is_that_of_the_backup(backup: Path, tmp_path: Path) -> None:
    restored = restore_backup(backup, tmp_path / "d")

    assert read_tree(backup / "data") == read_tree(tmp_path / "d")
    scratch = tmp_path / "d" / "runs" / "open" / "harness" / "hs_1"
    assert "draft.txt" == os.readlink(scratch / "link")
    assert (scratch / "empty").is_dir()
    assert 0o500 == (scratch / "tool.sh").stat().st_mode & 0o777
    assert 0o700 == (tmp_path / "d").stat().st_mode & 0o777
    assert verify_directory(tmp_path / "d", integrity_check=True).is_sound
    assert (2, False) == (restored.runs, restored.has_replaced)
    log = EventLog.open(tmp_path / "d" / "events")
    assert ["open"] == [run_id for run_id in log.open_runs() if run_id != "run_system"]
    log.close()


def test_flipped_byte_is_found_in_every_file(backup: Path, present: Path) -> None:
    DirectoryLock.acquire(present / "locks" / "supervisor").release()
    before = read_tree(present).keys()
    paths = [path for path in sorted(backup.rglob("*")) if path.is_file() and not path.is_symlink()]
    assert len(paths) > 6
    for path in paths:
        data = path.read_bytes()
        mode = path.stat().st_mode
        path.chmod(0o600)
        for place in {0, len(data) // 2, len(data) - 1}:
            flipped = bytearray(data)
            flipped[place] ^= 1
            path.write_bytes(flipped)
            with pytest.raises(IntegrityError) as caught:
                restore_backup(backup, present, replace=True)
            name = path.relative_to(backup).as_posix().removeprefix("data/")
            assert name in str(caught.value)
        path.write_bytes(data)
        path.chmod(mode)

    assert before == read_tree(present).keys()
    assert ["present"] == run_ids(present)
    assert ["backup", "d", "source"] == sorted(os.listdir(present.parent))
    restore_backup(backup, present, replace=True)


def test_missing_and_extra_files_are_named(backup: Path, tmp_path: Path) -> None:
    extra = backup / "data" / "memory" / "more.md"
    extra.write_text("more")
    with pytest.raises(IntegrityError, match=r"'memory/more.md' doesn't belong to it"):
        restore_backup(backup, tmp_path / "d")
    extra.unlink()
    log = backup / "data" / "runs" / "ended" / "logs" / "out.log"
    content = log.read_bytes()
    log.unlink()
    with pytest.raises(IntegrityError, match=r"'runs/ended/logs/out.log' is missing"):
        restore_backup(backup, tmp_path / "d")
    log.write_bytes(content)
    link = backup / "data" / "runs" / "open" / "harness" / "hs_1" / "link"
    link.unlink()
    link.symlink_to("/etc/passwd")
    with pytest.raises(IntegrityError, match=r"isn't the link"):
        restore_backup(backup, tmp_path / "d")

    assert not (tmp_path / "d").exists()


def test_backup_that_somebody_looked_into_is_still_one(backup: Path, tmp_path: Path) -> None:
    assert verify_directory(backup / "data").is_sound
    assert (backup / "data" / "events" / "events.db-shm").exists()

    restore_backup(backup, tmp_path / "d")


def test_what_is_no_backup_is_refused(tmp_path: Path, present: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no backup"):
        restore_backup(tmp_path / "nowhere", tmp_path / "e")
    with pytest.raises(DataDirectoryError, match="is no backup"):
        restore_backup(present, tmp_path / "e")


def test_directory_in_use_or_foreign_or_full_is_refused(
    backup: Path, present: Path, tmp_path: Path
) -> None:
    before = read_tree(present)
    with pytest.raises(ConflictError, match="--replace"):
        restore_backup(backup, present)
    lock = DirectoryLock.acquire(present / "locks" / "supervisor")
    with pytest.raises(DataDirLockedError):
        restore_backup(backup, present, replace=True)
    lock.release()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(DataDirectoryError, match="thesis"):
        restore_backup(backup, tmp_path / "mine", replace=True)

    kept = read_tree(present)
    assert before.keys() <= kept.keys()
    assert ["thesis.txt"] == os.listdir(tmp_path / "mine")


def test_replaced_directory_is_gone(backup: Path, present: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:  # by a fork server that was killed
        here = os.getcwd()
        os.chdir(present)
        try:
            left.bind("fork-light-1")
        finally:
            os.chdir(here)
    (present / ".gitignore").write_text("*")
    restored = restore_backup(backup, present, replace=True)

    assert restored.has_replaced
    assert ["ended", "open"] == run_ids(present)
    assert "*" == (present / ".gitignore").read_text()
    assert ["backup", "d", "source"] == sorted(os.listdir(present.parent))


@pytest.mark.parametrize("point", ["restore_copied", "restore_verified", "restore_placed"])
def test_killed_restore_leaves_the_old_directory_or_the_new_one(
    backup: Path, present: Path, point: str
) -> None:
    kill_at(point, "restore", "--replace", present, backup)

    expected = ["ended", "open"] if point == "restore_placed" else ["present"]
    assert expected == run_ids(present)
    assert verify_directory(present).is_sound
    restore_backup(backup, present, replace=True)
    assert ["backup", "d", "source"] == sorted(os.listdir(present.parent))
    assert ["ended", "open"] == run_ids(present)


def test_without_swapping_names_a_cut_restore_says_where_the_old_one_is(
    backup: Path, present: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_module, "exchange", lambda one, other: False)

    def cut(point: str) -> None:
        if point == "restore_moved":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore_backup(backup, present, replace=True, trace=cut)
    with pytest.raises(ConflictError, match=r"was killed in its middle.*is whole, as") as caught:
        restore_backup(backup, present)
    aside = next(present.parent.glob(".d.replaced-*"))
    assert str(aside) in str(caught.value)

    aside.rename(present)
    assert ["present"] == run_ids(present)
    restore_backup(backup, present, replace=True)
    assert ["ended", "open"] == run_ids(present)
    assert ["backup", "d", "source"] == sorted(os.listdir(present.parent))
