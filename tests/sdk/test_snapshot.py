"""A snapshot holds the project's own modules, has a hash, and is stored whole or not at all."""

import os
import stat
import threading
from pathlib import Path
from types import ModuleType

import pytest

from planaria import snapshot as snapshots
from planaria.protocol.errors import IntegrityError, SnapshotTooLargeError, UsageError
from planaria.snapshot import (
    Snapshot,
    find_root,
    make_source,
    plan_paths,
    store_snapshot,
    take_snapshot,
    verify_pin,
)


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "pyproject.toml": "",
        "flow.py": "x = 1",
        "pkg/__init__.py": "",
        "pkg/part.py": "y = 2",
        "pkg/prompt.txt": "hello",
        ".venv/pyvenv.cfg": "",
        ".venv/lib/site-packages/other.py": "",
        "env/pyvenv.cfg": "",
        "env/lib/third.py": "",
        "build/old.py": "",
        "node_modules/m.py": "",
        "pkg/__pycache__/part.py": "",
        "data/events/events.db": "",
        "data/artifacts/modules/h/flow.py": "",
    }
    return write_tree(tmp_path / "project", files)


def test_snapshot_holds_own_modules_and_no_environments_or_data(project: Path) -> None:
    taken = take_snapshot(project / "pkg" / "part.py")

    assert taken.root == project
    assert sorted(taken.files) == ["flow.py", "pkg/__init__.py", "pkg/part.py"]


def test_include_adds_files_by_pattern_and_whole_folders(project: Path) -> None:
    write_tree(project, {"prompts/a/b.md": "b"})

    taken = take_snapshot(project / "flow.py", ["**/*.txt", "prompts"])

    assert {"pkg/prompt.txt", "prompts/a/b.md"} <= set(taken.files)


@pytest.mark.parametrize("pattern", ["../x", "/etc/*", ""])
def test_include_that_leaves_the_root_is_refused(project: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="below the project root"):
        take_snapshot(project / "flow.py", [pattern])


def test_root_is_the_nearest_marker_or_the_files_folder(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a/.git/HEAD": "", "a/b/c.py": "", "d/e/f.py": ""})

    assert find_root(tmp_path / "a/b/c.py") == tmp_path / "a"
    assert find_root(tmp_path / "d/e/f.py") == tmp_path / "d/e"


def test_hash_depends_on_paths_and_contents_and_not_on_the_root(tmp_path: Path) -> None:
    one = Snapshot(tmp_path / "x", {"a.py": b"1", "b.py": b"2"})
    same = Snapshot(tmp_path / "y", {"b.py": b"2", "a.py": b"1"})
    moved = Snapshot(tmp_path / "x", {"a.py": b"2", "b.py": b"1"})

    assert one.hash == same.hash
    assert one.hash != moved.hash


def test_file_limit_holds_at_the_limit_and_one_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_FILES_MAX", 3)
    write_tree(tmp_path, {f"m{n}.py": "" for n in range(3)})
    assert len(take_snapshot(tmp_path / "m0.py").files) == 3
    write_tree(tmp_path, {"m3.py": ""})

    with pytest.raises(SnapshotTooLargeError, match="more than 3 files"):
        take_snapshot(tmp_path / "m0.py")


def test_byte_limit_is_an_error_that_names_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_BYTES_MAX", 1 << 20)
    write_tree(tmp_path, {"m.py": "#" * ((1 << 20) + 1)})

    with pytest.raises(SnapshotTooLargeError, match=f"{tmp_path} holds more than 1 MB"):
        take_snapshot(tmp_path / "m.py")


def test_no_file_gives_an_empty_snapshot_that_can_be_stored(tmp_path: Path) -> None:
    taken = take_snapshot(None)

    assert store_snapshot(taken, tmp_path) == store_snapshot(taken, tmp_path) == taken.hash


def test_stored_snapshot_is_private_and_verifies(project: Path, tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    taken = take_snapshot(project / "flow.py")

    ref = store_snapshot(taken, modules)

    verify_pin(modules, ref)
    assert (modules / ref / "pkg/part.py").read_text() == "y = 2"
    assert stat.S_IMODE(os.stat(modules / ref / "pkg").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(modules / ref / "flow.py").st_mode) == 0o600
    assert sorted(path.name for path in modules.iterdir()) == [ref]


def test_writers_at_once_leave_one_whole_pin(project: Path, tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    taken = take_snapshot(project / "flow.py")
    refs: list[str] = []
    start = threading.Barrier(6)

    def store() -> None:
        start.wait(10)
        refs.append(store_snapshot(taken, modules))

    threads = [threading.Thread(target=store) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert refs == [taken.hash] * 6
    assert [path.name for path in modules.iterdir()] == [taken.hash]
    verify_pin(modules, taken.hash)


def test_failed_write_leaves_nothing_behind(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modules"

    def fail(descriptor: int) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        store_snapshot(take_snapshot(project / "flow.py"), modules)

    assert list(modules.iterdir()) == []


def test_altered_pin_is_named(project: Path, tmp_path: Path) -> None:
    ref = store_snapshot(take_snapshot(project / "flow.py"), tmp_path / "modules")
    (tmp_path / "modules" / ref / "flow.py").write_text("x = 3")

    with pytest.raises(IntegrityError, match="not what was stored"):
        verify_pin(tmp_path / "modules", ref)


def test_import_path_maps_what_lies_in_the_project_and_keeps_the_rest(project: Path) -> None:
    write_tree(project, {"src/hooked/__init__.py": ""})
    hooked = ModuleType("hooked")
    hooked.__file__ = str(project / "src/hooked/__init__.py")
    site = str(project / ".venv/lib/site-packages")
    taken = take_snapshot(project / "flow.py")

    planned = plan_paths(
        taken, "pkg/part.py", [str(project), "/usr/lib/x", site], {"hooked": hooked}
    )

    assert planned == [
        {"pin": "pkg"},
        {"pin": "."},
        {"pin": "src"},
        {"live": "/usr/lib/x"},
        {"live": site},
    ]


def test_source_names_root_pin_and_relative_file(project: Path) -> None:
    taken = take_snapshot(project / "flow.py")

    source = make_source(
        taken, kind="file", entry="flow.py:x", file=project / "flow.py", paths=[], modules={}
    )

    assert source == {
        "entry": "flow.py:x",
        "kind": "file",
        "root": str(project),
        "modulesRef": taken.hash,
        "paths": [{"pin": "."}],
        "file": "flow.py",
    }
