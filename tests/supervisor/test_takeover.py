"""Taking a data directory over: only its supervisor is ever killed."""

import os
from pathlib import Path

import pytest

from planaria.protocol.errors import DataDirLockedError
from planaria.supervisor.data_directory import prepare_data_directory
from planaria.supervisor.locks import DirectoryLock
from planaria.supervisor.takeover import end_holder, is_held


def test_directory_that_nobody_holds_is_left_alone(tmp_path: Path) -> None:
    assert end_holder(tmp_path / "nowhere") is None
    directory = prepare_data_directory(tmp_path / "d")
    DirectoryLock.acquire(directory.supervisor_lock).release()

    assert end_holder(directory.root) is None
    assert not is_held(directory.root)


def test_holder_that_is_no_supervisor_is_not_killed(tmp_path: Path) -> None:
    directory = prepare_data_directory(tmp_path / "d")
    lock = DirectoryLock.acquire(directory.supervisor_lock)  # by pytest
    try:
        with pytest.raises(DataDirLockedError) as refused:
            end_holder(directory.root)
    finally:
        lock.release()

    assert os.getpid() == refused.value.pid


def test_holder_that_wrote_no_name_is_not_guessed(tmp_path: Path) -> None:
    directory = prepare_data_directory(tmp_path / "d")
    lock = DirectoryLock.acquire(directory.supervisor_lock)
    try:
        directory.supervisor_lock.write_text("{")
        with pytest.raises(DataDirLockedError):
            end_holder(directory.root)
    finally:
        lock.release()
