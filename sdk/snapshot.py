"""Takes and stores a snapshot of a project's own modules, so that a run keeps its code.

What is pinned: every `*.py` and what `include` names below the project root. What stays live:
installed packages, editable installs of *other* projects (their files lie outside this root),
data files that no `include` names, and compiled modules unless they are included. Links to
folders are not followed. Names that are imported by a text made at run time are found as long
as their file lies below the root.
"""

import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, Literal

from planaria.protocol.codec import canonical_bytes
from planaria.protocol.errors import IntegrityError, SnapshotTooLargeError, UsageError

SNAPSHOT_FILES_MAX = 2_000
SNAPSHOT_BYTES_MAX = 20 << 20
FOLDERS_WALKED_MAX = 20_000  # a home folder without a project marker would be walked for minutes
ROOT_MARKERS = ("pyproject.toml", ".git")
SKIPPED_FOLDERS = frozenset(
    {"venv", "site-packages", "dist-packages", "node_modules", "__pycache__", "build"}
)
SourceKind = Literal["module", "file", "script", "lwir"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a project's files at one moment, by POSIX path relative to `root`."""

    root: Path
    files: Mapping[str, bytes]

    @property
    def hash(self) -> str:
        """64 hex digits over the sorted paths and contents; the root's own path takes no part."""
        rows = [
            [path, hashlib.sha256(content).hexdigest()]
            for path, content in sorted(self.files.items())
        ]
        return hashlib.sha256(canonical_bytes(rows)).hexdigest()


def take_snapshot(
    entry_file: Path | None,
    include: Sequence[str] = (),
    root: Path | None = None,
    *,
    exclude: Collection[Path] = (),
) -> Snapshot:
    """Returns the snapshot of the project that `entry_file` belongs to; empty without a file.

    `include` are glob patterns relative to the root, a folder stands for all below it. `exclude`
    are folders to leave out, such as a data directory inside the project.

    Raises:
        SnapshotTooLargeError: more than 2,000 files or 20 MB.
        UsageError: an entry file outside the root, or a pattern that leaves it.
    """
    if root is None and entry_file is None:
        return Snapshot(Path.cwd(), {})
    base = (root or find_root(entry_file or Path.cwd())).resolve()
    skipped = frozenset(path.resolve() for path in exclude)
    wanted = {path for path in _walk(base, skipped) if path.suffix == ".py"}
    for pattern in include:
        wanted.update(_expand(base, pattern, skipped))
    if entry_file is not None:
        entry = entry_file.resolve()
        if not entry.is_relative_to(base):
            raise UsageError(message=f"{entry} lies outside the project root {base}")
        wanted.add(entry)
    return Snapshot(base, _read(base, sorted(wanted)))


def find_root(entry_file: Path) -> Path:
    """Returns the nearest folder with a pyproject.toml or .git, else the file's own folder."""
    folder = entry_file.resolve().parent
    for candidate in (folder, *folder.parents):
        if any((candidate / marker).exists() for marker in ROOT_MARKERS):
            return candidate
    return folder


def store_snapshot(snapshot: Snapshot, modules_dir: Path) -> str:
    """Writes the snapshot to `modules_dir/<hash>` and returns the hash; once, however often called.

    It appears there whole or not at all, after it is on disk; of two writers at once one wins.
    """
    ref = snapshot.hash
    target = modules_dir / ref
    if target.is_dir():
        return ref
    modules_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = modules_dir / f".draft-{ref[:16]}-{secrets.token_hex(8)}"
    try:
        _write_tree(draft, snapshot.files)
        try:
            draft.rename(target)
        except OSError:
            # Not empty: another writer was first, and what it wrote has the same hash.
            if not target.is_dir():
                raise
        _sync_folder(modules_dir)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return ref


def verify_pin(modules_dir: Path, ref: str) -> None:
    """Compares a stored snapshot with its hash.

    Raises:
        IntegrityError: it is missing, or not what was stored.
    """
    pin = modules_dir / ref
    if not pin.is_dir():
        raise IntegrityError(message=f"the pinned modules {ref} are missing in {modules_dir}")
    files = {
        path.relative_to(pin).as_posix(): path.read_bytes()
        for path in pin.rglob("*")
        if path.is_file()
    }
    if Snapshot(pin, files).hash != ref:
        raise IntegrityError(message=f"the pinned modules in {pin} are not what was stored")


def make_source(
    snapshot: Snapshot,
    *,
    kind: SourceKind,
    entry: str,
    file: Path | None = None,
    paths: Sequence[str] | None = None,
    modules: Mapping[str, ModuleType] | None = None,
) -> dict[str, Any]:
    """Returns the JSON that `planaria.workers.loading` loads a definition by.

    `entry` is `module:name` or `file.py:name`, without `:name` the module itself; `file` is the
    file to load for every kind but `module`. `paths` and `modules` are this process's own if
    not given.
    """
    relative = None
    if file is not None:
        relative = file.resolve().relative_to(snapshot.root).as_posix()
    planned = plan_paths(
        snapshot,
        relative,
        sys.path if paths is None else paths,
        dict(sys.modules) if modules is None else modules,
    )
    return {
        "entry": entry,
        "kind": kind,
        "root": str(snapshot.root),
        "modulesRef": snapshot.hash,
        "paths": planned,
        "file": relative,
    }


def plan_paths(
    snapshot: Snapshot,
    file: str | None,
    paths: Sequence[str],
    modules: Mapping[str, ModuleType],
) -> list[dict[str, str]]:
    """Returns the import path of a child: `{"pin": relative}` entries, then `{"live": absolute}`.

    Pinned are the folder of `file`, the entries of `paths` below the root, and the folders that
    modules of the project were imported from otherwise (by the hook of an editable install).
    """
    root = snapshot.root
    pinned: dict[str, None] = {}
    live: dict[str, None] = {}
    if file is not None:
        pinned[PurePosixPath(file).parent.as_posix()] = None
    for text in paths:
        path = Path(text or ".").resolve()
        if not is_pinned_path(path, root):
            live[str(path)] = None
        elif path.is_dir():
            pinned[path.relative_to(root).as_posix()] = None
    for name, module in sorted(modules.items()):
        origin = getattr(module, "__file__", None)
        if isinstance(origin, str) and is_pinned_path(Path(origin), root):
            folder = _import_folder(name, Path(origin))
            if folder is not None and folder.is_relative_to(root):
                pinned[folder.relative_to(root).as_posix()] = None
    return [{"pin": path} for path in pinned] + [{"live": path} for path in live]


def is_pinned_path(path: Path, root: Path) -> bool:
    """Returns whether a path belongs to the project itself, not to packages installed inside it."""
    if not path.is_relative_to(root):
        return False
    return not any(_is_skipped_name(part) for part in path.relative_to(root).parts)


def _import_folder(name: str, origin: Path) -> Path | None:
    """Returns the folder that a module's dotted name is counted from, None if they don't match."""
    parts = name.split(".")
    place = origin.parent if origin.stem == "__init__" else origin.with_suffix("")
    if list(place.parts[-len(parts) :]) != parts:
        return None
    return place.parents[len(parts) - 1]


def _is_skipped_name(name: str) -> bool:
    return name in SKIPPED_FOLDERS or name.startswith(".")


def _is_skipped(folder: Path, exclude: Collection[Path]) -> bool:
    """Leaves out environments, build output, hidden folders and planaria's data directories."""
    return (
        _is_skipped_name(folder.name)
        or folder in exclude
        or (folder / "pyvenv.cfg").exists()
        or (folder / "events" / "events.db").exists()
    )


def _walk(base: Path, exclude: Collection[Path]) -> Iterator[Path]:
    """Yields every file below `base` that isn't in a skipped folder."""
    for count, (folder, folders, names) in enumerate(os.walk(base)):
        if count > FOLDERS_WALKED_MAX:
            raise _too_large(base, f"more than {FOLDERS_WALKED_MAX:,} folders")
        here = Path(folder)
        folders[:] = sorted(name for name in folders if not _is_skipped(here / name, exclude))
        for name in names:
            yield here / name


def _expand(base: Path, pattern: str, exclude: Collection[Path]) -> Iterator[Path]:
    parts = PurePosixPath(pattern).parts
    if not parts or pattern.startswith("/") or ".." in parts:
        raise UsageError(message=f"include {pattern!r} must be a pattern below the project root")
    for path in base.glob(pattern):
        if not is_pinned_path(path, base) or any(
            _is_skipped(folder, exclude)
            for folder in path.parents
            if folder != base and folder.is_relative_to(base)
        ):
            continue
        if path.is_dir():
            yield from _walk(path, exclude)
        elif path.is_file():
            yield path


def _read(base: Path, paths: Sequence[Path]) -> dict[str, bytes]:
    """Returns the contents by relative path; what can't be read or is no file is left out."""
    files: dict[str, bytes] = {}
    size = 0
    for path in paths:
        try:
            if not path.is_file():
                continue
            size += path.stat().st_size
            if size > SNAPSHOT_BYTES_MAX:
                raise _too_large(base, f"more than {SNAPSHOT_BYTES_MAX >> 20} MB")
            files[path.relative_to(base).as_posix()] = path.read_bytes()
        except OSError:
            # Not ours to read: an import of it fails by name in the child, which never sees it.
            continue
        if len(files) > SNAPSHOT_FILES_MAX:
            raise _too_large(base, f"more than {SNAPSHOT_FILES_MAX:,} files")
    return files


def _too_large(base: Path, what: str) -> SnapshotTooLargeError:
    return SnapshotTooLargeError(
        message=f"the project root {base} holds {what} to pin; put a pyproject.toml beside the "
        "workflow's own code, so that the root is smaller, or name less in include"
    )


def _write_tree(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(mode=0o700)
    folders = {folder}
    for path, content in sorted(files.items()):
        target = folder / path
        for parent in reversed(target.relative_to(folder).parents):
            if (place := folder / parent) not in folders:
                place.mkdir(mode=0o700)
                folders.add(place)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(target, flags, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    for place in sorted(folders, reverse=True):
        _sync_folder(place)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
