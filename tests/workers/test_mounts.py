"""Mounts: what an agent may read and write, and that there is no way out of them."""

import os
from pathlib import Path
from typing import Any

import pytest

from planaria.blobstore import BlobStore
from planaria.protocol.codec import hash_bytes
from planaria.workers.failures import StepConfigError
from planaria.workers.mounts import FILE_BYTES_MAX, FileRefusedError, Mounts, open_mounts
from planaria.workers.session import read_session

from .memory_supervisor import call_step, make_delivery

HASH = "sha256:" + "0123456789abcdef" * 4
ALL = ["org", "pipeline", "workflow"]


def mounts_of(directory: Path, role: str = "planner", **more: Any) -> Mounts:
    delivered = make_delivery(call_step("x"), role=role, **{"memory": ALL, **more})
    delivered.update(incarnation=1, reported=0, hasHistory=False, firstSequence=1)
    session = read_session({"definitionHash": HASH, **delivered}, BlobStore(directory))
    return open_mounts(str(directory), session)


def test_each_mount_has_its_own_folder(tmp_path: Path) -> None:
    mounts = mounts_of(tmp_path)
    for path in ("memory/workflow/a", "memory/pipeline/b", "memory/org/c/d", "scratch/e"):
        mounts.write_file(path, path)

    assert "memory/workflow/a" == (tmp_path / "memory/workflows/wf/a").read_text()
    assert "memory/pipeline/b" == (tmp_path / "memory/pipelines/0123456789abcdef/b").read_text()
    assert "memory/org/c/d" == (tmp_path / "memory/org/c/d").read_text()
    assert "scratch/e" == (tmp_path / "runs/run_1/harness/hs_1/e").read_text()
    assert "memory/org/c/d" == mounts.read_file("memory/org/c/d")


def test_write_says_where_and_what(tmp_path: Path) -> None:
    mounts = mounts_of(tmp_path)

    assert ("org", "a/b", hash_bytes(b"text")) == mounts.write_file("memory/org/a/b", "text")
    assert mounts.write_file("scratch/a", "x")[0] is None


@pytest.mark.parametrize("role", ["worker", "orchestrator", "fixer"])
def test_memory_is_the_planners_to_write(role: str, tmp_path: Path) -> None:
    mounts_of(tmp_path).write_file("memory/org/a", "kept")
    mounts = mounts_of(tmp_path, role)
    with pytest.raises(FileRefusedError, match="read only"):
        mounts.write_file("memory/org/a", "lost")
    mounts.write_file("scratch/a", "mine")

    assert "kept" == mounts.read_file("memory/org/a")


def test_store_that_the_definition_does_not_name_is_no_folder(tmp_path: Path) -> None:
    mounts = mounts_of(tmp_path, memory=["org"])
    with pytest.raises(FileRefusedError, match="they are memory/org, scratch"):
        mounts.read_file("memory/workflow/a")


@pytest.mark.parametrize("memory", [["pipeline"], ["moon"]])
def test_store_without_a_folder_is_a_configuration_error(memory: list[str], tmp_path: Path) -> None:
    with pytest.raises(StepConfigError, match=memory[0]):
        mounts_of(tmp_path, memory=memory, definitionHash=None)


def test_listing_goes_from_the_top_to_the_files(tmp_path: Path) -> None:
    mounts = mounts_of(tmp_path)
    assert [] == mounts.list_folder("memory/org")
    mounts.write_file("memory/org/b/c", "123")
    mounts.write_file("memory/org/a", "1")
    os.symlink("/etc", tmp_path / "memory/org/out")

    def names(path: str) -> list[tuple[str, int | None]]:
        return [(entry.path, entry.bytes) for entry in mounts.list_folder(path)]

    assert [("memory/", None), ("scratch/", None)] == names("") == names(".")
    assert [(f"memory/{store}/", None) for store in ALL] == names("memory")
    assert [("memory/org/a", 1), ("memory/org/b/", None)] == names("memory/org/")
    assert [("memory/org/b/c", 3)] == names("memory/org/b")


BAD_PATHS = [
    "../x",
    "memory/org/../workflow/x",
    "memory/org/..",
    "scratch/./x",
    "scratch//x",
    "/etc/passwd",
    "//scratch/x",
    "scratch/a\0b",
    "scratch/" + "n" * 256,
    "scratch/" + "ü" * 128,
    "scratch" + "/n" * 3_000,
    "scratch/\ud800",
    "scratch/.unfinished-x",
    "elsewhere/x",
    "memoryorg/x",
    "memory",
    "memory/org",
    "scratch",
    "scratch/",
    "",
    "..",
    "~/x",
    "C:\\x",
]


@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: ascii(path[:20]))
def test_path_that_leaves_or_cannot_be_is_refused(path: str, tmp_path: Path) -> None:
    mounts = mounts_of(tmp_path)
    with pytest.raises(FileRefusedError):
        mounts.read_file(path)
    with pytest.raises(FileRefusedError):
        mounts.write_file(path, "x")

    assert [] == list(tmp_path.rglob("*"))


@pytest.fixture
def linked(tmp_path: Path) -> Mounts:
    """Mounts in which somebody has planted links to a folder outside."""
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "secret").write_text("secret")
    mounts = mounts_of(tmp_path)
    mounts.write_file("memory/org/real", "x")
    root = tmp_path / "memory" / "org"
    os.symlink(outside, root / "folder")
    os.symlink(outside / "secret", root / "file")
    os.symlink(outside / "new", root / "dangling")
    os.symlink("real", root / "inside")
    os.symlink(outside, tmp_path / "memory" / "workflows")
    return mounts


@pytest.mark.parametrize(
    "path",
    [
        "memory/org/folder/secret",
        "memory/org/folder/inner/x",
        "memory/org/file",
        "memory/org/dangling",
        "memory/org/inside",
        "memory/workflow/secret",
    ],
)
def test_links_are_not_followed(path: str, linked: Mounts, tmp_path: Path) -> None:
    with pytest.raises(FileRefusedError):
        linked.read_file(path)
    with pytest.raises(FileRefusedError):
        linked.write_file(path, "overwritten")

    outside = tmp_path / "outside"
    assert ["inner", "secret"] == sorted(os.listdir(outside))
    assert "secret" == (outside / "secret").read_text()
    assert [] == os.listdir(outside / "inner")


def test_link_is_no_folder_to_list(linked: Mounts) -> None:
    for path in ("memory/org/folder", "memory/org/folder/inner", "memory/workflow"):
        with pytest.raises(FileRefusedError):
            linked.list_folder(path)


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    mounts = mounts_of(tmp_path)
    mounts.write_file("scratch/file", "x")
    folder = tmp_path / "runs/run_1/harness/hs_1"
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    for path in ("scratch/pipe", "scratch/folder", "scratch/file/x", "scratch/gone"):
        with pytest.raises(FileRefusedError):
            mounts.read_file(path)
    for path in ("scratch/pipe", "scratch/folder", "scratch/file/x"):
        with pytest.raises(FileRefusedError):
            mounts.write_file(path, "x")

    assert ["scratch/file", "scratch/folder/"] == [
        entry.path for entry in mounts.list_folder("scratch")
    ]


def test_sizes_are_limited(tmp_path: Path) -> None:
    mounts = mounts_of(tmp_path)
    mounts.write_file("scratch/a", "x" * FILE_BYTES_MAX)
    with pytest.raises(FileRefusedError, match="write several"):
        mounts.write_file("scratch/b", "ü" * FILE_BYTES_MAX)
    (tmp_path / "runs/run_1/harness/hs_1/large").write_bytes(b"x" * (FILE_BYTES_MAX + 1))
    (tmp_path / "runs/run_1/harness/hs_1/bytes").write_bytes(b"\xff\xfe")

    assert FILE_BYTES_MAX == len(mounts.read_file("scratch/a"))
    with pytest.raises(FileRefusedError, match="larger"):
        mounts.read_file("scratch/large")
    with pytest.raises(FileRefusedError, match="UTF-8"):
        mounts.read_file("scratch/bytes")


def test_killed_write_leaves_the_old_file_and_no_trace_for_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = mounts_of(tmp_path)
    mounts.write_file("scratch/a", "old")

    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", die)
        with pytest.raises(Killed):
            mounts.write_file("scratch/a", "new")
    assert "old" == mounts.read_file("scratch/a")
    assert ["scratch/a"] == [entry.path for entry in mounts.list_folder("scratch")]

    mounts.write_file("scratch/a", "new")
    assert ["a"] == os.listdir(tmp_path / "runs/run_1/harness/hs_1")
    assert "new" == mounts.read_file("scratch/a")


def test_failing_disk_is_not_told_to_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "no space")

    mounts = mounts_of(tmp_path)
    mounts.write_file("scratch/a", "old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        mounts.write_file("scratch/a", "new")

    assert "old" == mounts.read_file("scratch/a")
    assert ["a"] == os.listdir(tmp_path / "runs/run_1/harness/hs_1")
