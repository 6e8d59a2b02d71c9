"""The lock of a data directory: one holder, whatever the files say."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from planaria.protocol.errors import DataDirectoryError, DataDirLockedError, InvalidIdError
from planaria.supervisor.locks import DirectoryLock, read_holder

HOLD = """
import sys
from pathlib import Path
from planaria.supervisor.locks import DirectoryLock
lock = DirectoryLock.acquire(Path(sys.argv[1]), "token")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "locks").mkdir()
    return tmp_path / "locks" / "supervisor"


def test_second_holder_is_refused_with_the_pid_of_the_first(path: Path) -> None:
    lock = DirectoryLock.acquire(path, "t1")
    with pytest.raises(DataDirLockedError) as caught:
        DirectoryLock.acquire(path, "t2")
    lock.release()

    assert os.getpid() == caught.value.pid
    assert str(path.parent.parent) == caught.value.directory
    DirectoryLock.acquire(path, "t3").release()


def test_lock_file_tells_people_who_holds_it(path: Path) -> None:
    lock = DirectoryLock.acquire(path, "t1")
    lock.release()
    lock.release()

    assert lock.holder == read_holder(path)
    fields = json.loads(path.read_text())
    assert {"pid", "start_time", "boot_id", "host", "token"} == fields.keys()
    assert (os.getpid(), "t1") == (fields["pid"], fields["token"])
    assert 0o600 == path.stat().st_mode & 0o777


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"pid": "x"}', b"\xff" * 9])
def test_stale_or_foreign_text_in_the_file_is_no_obstacle(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    assert read_holder(path) is None
    lock = DirectoryLock.acquire(path)
    assert os.getpid() == read_holder(path).pid
    lock.release()


def test_file_that_names_a_living_process_is_no_obstacle(path: Path) -> None:
    DirectoryLock.acquire(path).release()

    assert os.getpid() == read_holder(path).pid
    DirectoryLock.acquire(path).release()


def test_link_in_place_of_the_file_is_refused(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataDirectoryError):
        DirectoryLock.acquire(path)

    assert not (tmp_path / "elsewhere").exists()


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="can't be used"):
        DirectoryLock.acquire(tmp_path / "missing" / "supervisor")


def test_child_does_not_inherit_the_lock(path: Path) -> None:
    lock = DirectoryLock.acquire(path)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=False,
    )
    assert b"up\n" == child.stdout.readline()
    lock.release()

    DirectoryLock.acquire(path).release()
    child.communicate(timeout=10)


@pytest.mark.slow
def test_lock_ends_with_its_process_even_a_stopped_one(path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert b"held\n" == child.stdout.readline()
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(DataDirLockedError) as caught:
        DirectoryLock.acquire(path)
    assert child.pid == caught.value.pid
    os.kill(child.pid, signal.SIGKILL)
    child.communicate(timeout=10)

    assert child.pid == read_holder(path).pid
    DirectoryLock.acquire(path).release()


def test_notes_say_who_drives_a_run(path: Path) -> None:
    lock = DirectoryLock.acquire(path, "t1")
    lock.write_note("run_a")
    lock.write_note("supervisor")

    assert lock.holder == read_holder(path.with_name("run_a.json"))
    assert lock.holder == read_holder(path)
    lock.remove_note("run_a")
    lock.remove_note("run_a")
    assert not path.with_name("run_a.json").exists()
    with pytest.raises(InvalidIdError):
        lock.write_note("../x")
    lock.release()
