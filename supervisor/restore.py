"""A data directory made from a backup: whole under its name, or as it was before.

Every file is checked against its digest while it is copied beside the directory, and the copy is
verified as a whole, before anything is touched. Then the two change names, at once where the file
system can do that, and the old one is removed last.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from planaria.protocol.directories import OWN_NAMES, refuse_file, refuse_unusable
from planaria.protocol.errors import (
    ConflictError,
    DataDirectoryError,
    IntegrityError,
    UsageError,
)

from .backup_manifest import (
    DATA_NAME,
    BackupManifest,
    CopiedFile,
    check_digest,
    check_names,
    read_chunks,
    read_manifest,
)
from .blobs import write_new_file
from .data_directory import DataDirectory, prepare_data_directory
from .locks import DirectoryLock
from .log_copy import remove_side_files
from .log_file import sync_directory
from .log_schema import DATABASE_NAME
from .unfinished_folder import exchange, make_unfinished, remove_tree, sync_tree
from .verify import verify_directory

Trace = Callable[[str], None]

CARRIED_OVER = ".gitignore"  # it is the user's, not the data's
NOT_FOREIGN = OWN_NAMES | {CARRIED_OVER}
FINDINGS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Restored:
    """What stands in the data directory now."""

    manifest: BackupManifest
    events: int
    runs: int
    has_replaced: bool


def restore_backup(
    backup: Path, root: Path, *, replace: bool = False, trace: Trace | None = None
) -> Restored:
    """Makes the data directory `root` from a backup; with `replace` in place of the present one.

    `trace` is told how far it is: "restore_copied", "restore_verified", "restore_moved" (only
    where names can't be swapped at once), "restore_placed", "restore_removed".

    Raises:
        NotFoundError: there is no such backup.
        ConflictError: the directory isn't empty, and nobody said that it may be replaced.
        DataDirLockedError: a supervisor has it.
        IntegrityError: a file of the backup isn't what was copied; nothing was touched.
        DataDirectoryError: foreign, or the disk refuses.
    """
    trace = trace or (lambda _point: None)
    root, backup = Path(os.path.realpath(root)), Path(os.path.realpath(backup))
    manifest = read_manifest(backup)
    if root.is_relative_to(backup) or backup.is_relative_to(root):
        raise UsageError(
            message=f"backup {str(backup)!r} and data directory {str(root)!r} lie in each other. "
            "Move the backup elsewhere first"
        )
    check_names(backup / DATA_NAME, manifest)
    try:
        has_old = _check_place(root, replace)
        with ExitStack() as stack:
            if has_old:
                stack.callback(_lock(root).release)
            folder = stack.enter_context(make_unfinished(root))
            _copy(backup / DATA_NAME, folder, manifest)
            trace("restore_copied")
            restored = _verify(folder, backup, manifest, has_old)
            _complete(folder, root if has_old else None)
            trace("restore_verified")
            if has_old:
                _swap(folder, root, trace)
            else:
                _place(folder, root)
                trace("restore_placed")
        trace("restore_removed")
    except OSError as error:
        raise refuse_unusable(str(root), error) from error
    return restored


def _check_place(root: Path, replace: bool) -> bool:
    """Says whether there is a directory to be replaced; refuses what mustn't be."""
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        aside = sorted(root.parent.glob(f".{root.name}.replaced-*"))
        if aside:
            raise ConflictError(
                message=f"a restore of {str(root)!r} was killed in its middle; the directory that "
                f"it was to replace is whole, as {str(aside[0])!r}. Move it back to {str(root)!r} "
                "or elsewhere, then restore again"
            ) from None
        return False
    except NotADirectoryError as error:
        raise refuse_file(str(root)) from error
    # A supervisor that was killed leaves its sockets; nothing is lost with one.
    foreign = [name for name in names if name not in NOT_FOREIGN and not (root / name).is_socket()]
    if foreign:
        raise DataDirectoryError(
            message=f"{str(root)!r} holds other things than a data directory does "
            f"({foreign[0]!r}); nothing was touched. Move them away, or choose another directory"
        )
    if names and not replace:
        raise ConflictError(
            message=f"data directory {str(root)!r} isn't empty. --replace puts the backup in its "
            "place; what it holds is removed then"
        )
    return bool(names)


def _lock(root: Path) -> DirectoryLock:
    lock = DataDirectory(root).supervisor_lock
    lock.parent.mkdir(mode=0o700, exist_ok=True)
    return DirectoryLock.acquire(lock)


def _copy(data: Path, folder: Path, manifest: BackupManifest) -> None:
    for path in sorted(manifest.folders):
        (folder / path).mkdir(mode=0o700, parents=True, exist_ok=True)
    for path, copied in sorted(manifest.files.items()):
        _copy_file(data, folder, path, copied)
    for path, link in sorted(manifest.links.items()):  # last: no file is ever written through one
        (folder / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.symlink(link, folder / path)


def _copy_file(data: Path, folder: Path, path: str, copied: CopiedFile) -> None:
    """Copies a file; what is compared with its digest is what was written."""
    place = folder / path
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(place, flags, 0o600), "wb") as file:
        for chunk in read_chunks(data / path):
            file.write(chunk)
            digest.update(chunk)
        os.fchmod(file.fileno(), (copied.mode & 0o777) | 0o400)  # it is read again to be synced
    check_digest(data, path, copied, digest.hexdigest())


def _verify(folder: Path, backup: Path, manifest: BackupManifest, has_old: bool) -> Restored:
    """Verifies what was copied as a whole: this planaria may know more than the one that made it.

    A writer has no reader's leftovers beside its database.
    """
    report = verify_directory(folder)
    remove_side_files(folder / "events" / DATABASE_NAME)
    if not report.is_sound:
        found = report.lines()
        raise IntegrityError(
            message=f"what backup {str(backup)!r} holds isn't sound; nothing was touched: "
            + "; ".join(found[:FINDINGS_SHOWN])
            + f" ({len(found)} findings). Use another backup"
        )
    return Restored(manifest, report.events, report.runs, has_old)


def _complete(folder: Path, old: Path | None) -> None:
    """Adds what a data directory has besides, and puts all of it on the disk."""
    prepare_data_directory(folder)
    if old is not None and (old / CARRIED_OVER).is_file():
        write_new_file(folder / CARRIED_OVER, (old / CARRIED_OVER).read_bytes())
    sync_tree(folder)


def _place(folder: Path, root: Path) -> None:
    try:
        os.rename(folder, root)  # onto an empty folder, too
    except OSError as error:
        raise DataDirectoryError(
            message=f"the restored directory can't get its name {str(root)!r}: {error.strerror}. "
            "Nothing was touched; choose a new directory, on which nothing is mounted"
        ) from error
    sync_directory(root.parent)


def _swap(folder: Path, root: Path, trace: Trace) -> None:
    """Puts the new directory in the old one's place; a kill leaves one of the two there, whole.

    Only where the file system can't swap names is there a moment at which none has the name; both
    are whole beside it then, and the next restore says where.
    """
    try:
        if exchange(folder, root):
            sync_directory(root.parent)
            trace("restore_placed")
            return  # the old one is removed as what was left unfinished
    except OSError as error:
        raise DataDirectoryError(
            message=f"the restored directory can't take the place of {str(root)!r}: "
            f"{error.strerror}. Nothing was touched; is something mounted there?"
        ) from error
    aside = root.with_name(f".{root.name}.replaced-{os.getpid()}-{os.urandom(4).hex()}")
    os.rename(root, aside)
    sync_directory(root.parent)
    trace("restore_moved")
    try:
        _place(folder, root)
    except DataDirectoryError:
        os.rename(aside, root)
        raise
    trace("restore_placed")
    remove_tree(aside)
