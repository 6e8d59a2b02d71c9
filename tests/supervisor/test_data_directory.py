"""The data directory: layout, what is refused as one, and the files by which it is found."""

import errno
import logging
import os
import stat
from pathlib import Path

import pytest

from planaria.protocol.errors import DataDirectoryError, InvalidIdError
from planaria.supervisor.data_directory import (
    SOCKET_PATH_BYTES_MAX,
    DataDirectory,
    choose_socket_path,
    find_file_system,
    prepare_data_directory,
    read_supervisor_json,
    remove_supervisor_json,
    replace_file,
    write_supervisor_json,
)
from planaria.supervisor.event_log import EventLog

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /home rw master:1 - nfs4 server:/home rw
24 23 0:22 / /home/local\\040disk rw - xfs /dev/vdb rw
25 22 0:23 / /run rw - tmpfs tmpfs rw
26 22 0:24 / /twice rw - tmpfs tmpfs rw
27 22 0:25 / /twice rw - ext4 /dev/vdc rw
"""


def test_new_directory_is_private_and_has_its_folders(tmp_path: Path) -> None:
    directory = prepare_data_directory(tmp_path / "deep" / "data")

    folders = [path for path in directory.root.rglob("*") if path.is_dir()]
    assert {
        "artifacts", "artifacts/blobs", "artifacts/modules", "events", "locks", "memory",
        "outer-loops", "runs",
    } == {str(path.relative_to(directory.root)) for path in folders}  # fmt: skip
    for path in (directory.root, *folders):
        assert 0o700 == stat.S_IMODE(path.stat().st_mode), path
    assert not [path for path in directory.root.rglob("*") if path.is_file()]


def test_directory_is_prepared_again_and_closed_to_others(tmp_path: Path) -> None:
    directory = prepare_data_directory(tmp_path)
    EventLog.open(directory.events).close()
    (directory.blobs / "x").touch()
    (directory.root / "notes.txt").touch()
    tmp_path.chmod(0o755)

    assert directory == prepare_data_directory(tmp_path)
    assert 0o700 == stat.S_IMODE(tmp_path.stat().st_mode)
    assert directory.database.is_file()


def test_paths_are_made_of_legal_ids_only(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)

    assert tmp_path / "runs/run_a/harness/hs_1" == directory.scratch("run_a", "hs_1")
    assert tmp_path / "runs/run_a/logs" == directory.logs("run_a")
    for run_id in ("../x", "", "a/b", "x" * 81, "a\n"):
        with pytest.raises(InvalidIdError):
            directory.logs(run_id)
        with pytest.raises(InvalidIdError):
            directory.scratch("run_a", run_id)


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(DataDirectoryError, match="is a file"):
        prepare_data_directory(path)
    with pytest.raises(DataDirectoryError, match="can't be used"):
        prepare_data_directory(path / "below")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataDirectoryError, match="can't be used"):
        prepare_data_directory(tmp_path / "link")

    assert "mine" == path.read_text()


def test_directory_of_something_else_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DataDirectoryError, match="thesis.tex"):
        prepare_data_directory(tmp_path)

    assert ["thesis.tex"] == os.listdir(tmp_path)


@pytest.mark.parametrize(
    "leftover",
    [
        "artifacts/blobs/sha256/ab/abcd",
        "outer-loops/ol_1.json",
        "runs/run_a/logs/out",
        "memory/org/notes.md",
        "events/events.db-wal",
        "events/events.db-journal",
    ],
)
def test_leftovers_without_their_log_are_refused(tmp_path: Path, leftover: str) -> None:
    (tmp_path / leftover).parent.mkdir(parents=True)
    (tmp_path / leftover).touch()

    with pytest.raises(DataDirectoryError, match=f"lost its event log, but '{leftover}'"):
        prepare_data_directory(tmp_path)


def test_start_that_died_before_the_log_was_made_is_no_obstacle(tmp_path: Path) -> None:
    directory = prepare_data_directory(tmp_path)
    directory.supervisor_lock.touch()
    (directory.events / "events.db.new").touch()
    (directory.blobs / "unfinished").mkdir()
    (directory.blobs / "unfinished" / "1-ab").touch()
    (directory.root / "lost+found").mkdir()

    assert directory == prepare_data_directory(tmp_path)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_directory_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    prepare_data_directory(tmp_path)
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code), str(path))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataDirectoryError, match=os.strerror(code)):
        prepare_data_directory(tmp_path)


def test_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(DataDirectoryError, match="belongs to user"):
        prepare_data_directory(tmp_path)


def test_file_system_is_that_of_the_deepest_mount() -> None:
    expected = {
        "/srv/x": "ext4",
        "/home/me": "nfs4",
        "/home/local disk/x": "xfs",
        "/homeless": "ext4",
        "/run": "tmpfs",
        "/twice/x": "ext4",
    }

    assert expected == {path: find_file_system(Path(path), MOUNTS) for path in expected}
    assert "unknown" != find_file_system(Path("/"))


def test_network_file_system_is_refused_and_memory_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = f"1 0 0:1 / {tmp_path} rw - nfs4 server:/x rw"
    memory = f"1 0 0:1 / {tmp_path} rw - tmpfs tmpfs rw"
    with pytest.raises(DataDirectoryError, match=r"network file system \(nfs4\)"):
        prepare_data_directory(tmp_path / "data", mounts=network)
    assert not (tmp_path / "data").exists()
    with caplog.at_level(logging.WARNING):
        prepare_data_directory(tmp_path / "data", mounts=memory)

    assert "in memory (tmpfs)" in caplog.text


def test_supervisor_json_is_replaced_as_a_whole(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    assert read_supervisor_json(directory) is None
    write_supervisor_json(directory, {"pid": 1})
    write_supervisor_json(directory, {"pid": 2, "socket": "s"})

    assert {"pid": 2, "socket": "s"} == read_supervisor_json(directory)
    assert ["supervisor.json"] == os.listdir(tmp_path)
    assert 0o600 == stat.S_IMODE(directory.supervisor_json.stat().st_mode)
    remove_supervisor_json(directory)
    remove_supervisor_json(directory)
    assert read_supervisor_json(directory) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_torn_supervisor_json_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    directory = DataDirectory(tmp_path)
    directory.supervisor_json.write_bytes(content)

    with pytest.raises(DataDirectoryError, match="supervisor.json"):
        read_supervisor_json(directory)


def test_file_is_old_or_new_at_every_point(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    seen: list[tuple[str, bytes]] = []
    replace_file(path, b"new", trace=lambda point: seen.append((point, path.read_bytes())))

    assert [("file_written", b"old")] == seen
    assert b"new" == path.read_bytes()


def test_socket_stands_in_the_directory_if_its_path_is_short(tmp_path: Path) -> None:
    short = DataDirectory(Path("/d"))
    at_limit = DataDirectory(Path("/" + "x" * (SOCKET_PATH_BYTES_MAX - len("//supervisor.sock"))))

    assert Path("/d/supervisor.sock") == choose_socket_path(short, tmp_path)
    assert SOCKET_PATH_BYTES_MAX == len(bytes(choose_socket_path(at_limit, tmp_path)))
    assert [] == os.listdir(tmp_path)


def test_deep_directory_has_its_socket_in_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runtime = Path(".")  # tmp_path itself may be long
    deep = [DataDirectory(Path("/" + "ä" * 45 + name)) for name in ("a", "b")]
    first, second = (choose_socket_path(directory, runtime) for directory in deep)

    assert first != second
    assert first == choose_socket_path(deep[0], runtime)
    for folder in (first.parent, first.parent.parent):
        assert 0o700 == stat.S_IMODE(folder.stat().st_mode)


def test_socket_folder_open_to_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runtime = Path(".")
    deep = DataDirectory(Path("/" + "x" * 120))
    own = choose_socket_path(deep, runtime).parent.parent
    own.chmod(0o755)
    with pytest.raises(DataDirectoryError, match="closed to others"):
        choose_socket_path(deep, runtime)
    own.rename("elsewhere")
    own.symlink_to("elsewhere")
    Path("elsewhere").chmod(0o700)
    with pytest.raises(DataDirectoryError, match="closed to others"):
        choose_socket_path(deep, runtime)
    with pytest.raises(DataDirectoryError, match="too long"):
        choose_socket_path(deep, Path("/" + "y" * 90))
