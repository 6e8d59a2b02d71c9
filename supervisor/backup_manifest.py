"""The manifest of a backup: every file with its digest, and a digest of the manifest itself.

    {"manifest": {"formatVersion", "planariaVersion", "databaseId", "epoch", "lastPosition",
                  "madeAt", "files": {path: {"sha256", "size", "mode"}}, "links": {path: target},
                  "folders": [path], "skipped": [path]},
     "sha256": "sha256:…"}

Paths are relative to the folder `data` beside it. Its bytes follow from its content alone, so that
one flipped bit of it is found as well.
"""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from planaria.protocol.errors import DataDirectoryError, IntegrityError, NotFoundError

from .log_copy import SIDE_FILES

MANIFEST_NAME = "backup.json"
DATA_NAME = "data"
FORMAT_VERSION = 1
MANIFEST_BYTES_MAX = 1 << 30  # some million files
CHUNK_BYTES = 1 << 20
_FIELDS = frozenset(
    "formatVersion planariaVersion databaseId epoch lastPosition madeAt files links folders "
    "skipped".split()
)


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """What a file held when it was copied; `mode` are its permission bits."""

    sha256: str
    size: int
    mode: int


@dataclass(slots=True)
class BackupManifest:
    """What a backup holds; `made_at` is UTC in µs, `skipped` are scratch files of odd kinds."""

    version: str
    database_id: str
    epoch: int
    last_position: int
    made_at: int
    files: dict[str, CopiedFile] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Returns the size of all files together."""
        return sum(file.size for file in self.files.values())


def dump_manifest(manifest: BackupManifest) -> bytes:
    """Returns the bytes of its file."""
    content = {
        "formatVersion": FORMAT_VERSION,
        "planariaVersion": manifest.version,
        "databaseId": manifest.database_id,
        "epoch": manifest.epoch,
        "lastPosition": manifest.last_position,
        "madeAt": manifest.made_at,
        "files": {path: asdict(file) for path, file in manifest.files.items()},
        "links": manifest.links,
        "folders": sorted(manifest.folders),
        "skipped": sorted(manifest.skipped),
    }
    return _dump({"manifest": content, "sha256": _digest(content)})


def read_manifest(backup: Path) -> BackupManifest:
    """Returns the manifest of the backup in a folder.

    Raises:
        NotFoundError: there is no such folder.
        DataDirectoryError: it is no backup, or one of a newer planaria.
        IntegrityError: the manifest isn't what was written.
    """
    path = backup / MANIFEST_NAME
    if not backup.exists():
        raise NotFoundError(message=f"there is no backup {str(backup)!r}")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            data = file.read(MANIFEST_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataDirectoryError(
            message=f"{str(backup)!r} is no backup: it has no {MANIFEST_NAME!r}. Name a folder "
            "that 'planaria backup' has made"
        ) from error
    try:
        document = json.loads(data)
        content = document["manifest"]
        is_whole = document["sha256"] == _digest(content) and data == _dump(document)
        if is_whole and content["formatVersion"] > FORMAT_VERSION:
            raise DataDirectoryError(
                message=f"backup {str(backup)!r} was made by a newer planaria "
                f"({content['planariaVersion']}); nothing was touched. Use the newer one"
            )
        if not is_whole or content.keys() != _FIELDS:
            raise ValueError("its digest")
        return _parse(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(
            message=f"{str(path)!r} isn't what was written: the backup can't be trusted, and "
            "nothing was touched. Use another backup"
        ) from error


def check_names(data: Path, manifest: BackupManifest) -> None:
    """Refuses a backup in which a file is missing or was added.

    Raises:
        IntegrityError: names the first such file.
    """
    found: set[str] = set()
    for path, entry in walk(data):
        if not entry.is_dir(follow_symlinks=False):
            found.add(path)
    for path in sorted(manifest.files.keys() | manifest.links.keys()):
        if path not in found:
            raise _refuse(data, path, "is missing")
    for path in sorted(found - manifest.files.keys() - manifest.links.keys()):
        # Whoever looked into the backup has left an index, and an empty log, beside the database.
        if path not in SIDE_FILES or (path.endswith("-wal") and (data / path).stat().st_size):
            raise _refuse(data, path, "doesn't belong to it")
    for path, link in manifest.links.items():
        if not (data / path).is_symlink() or os.readlink(data / path) != link:
            raise _refuse(data, path, "isn't the link that was copied")


def check_contents(data: Path, manifest: BackupManifest) -> None:
    """Reads every file again and compares it with its digest.

    Raises:
        IntegrityError: names the first one that differs.
    """
    check_names(data, manifest)
    for path, copied in sorted(manifest.files.items()):
        digest = sha256()
        for chunk in read_chunks(data / path):
            digest.update(chunk)
        check_digest(data, path, copied, digest.hexdigest())


def check_digest(data: Path, path: str, copied: CopiedFile, digest: str) -> None:
    """Refuses a file of a backup whose content isn't what its manifest says.

    Raises:
        IntegrityError: names the file.
    """
    if f"sha256:{digest}" != copied.sha256:
        raise _refuse(data, path, f"isn't what was copied ({copied.size} bytes, {copied.sha256})")


def walk(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields (relative path, entry) of all below a folder; doesn't follow links, skips the gone."""
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(root / folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in listed:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                pending.append(path)
            yield path, entry


def read_chunks(path: Path, bytes_max: int | None = None) -> Iterator[bytes]:
    """Yields the content of an ordinary file, at most so many bytes.

    Raises:
        OSError: it can't be read; also where it is no ordinary file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(22, "no ordinary file", str(path))
        left = bytes_max
        while left is None or left > 0:
            chunk = file.read(CHUNK_BYTES if left is None else min(left, CHUNK_BYTES))
            if not chunk:
                return
            if left is not None:
                left -= len(chunk)
            yield chunk


def _parse(content: dict[str, Any]) -> BackupManifest:
    manifest = BackupManifest(
        version=content["planariaVersion"],
        database_id=content["databaseId"],
        epoch=content["epoch"],
        last_position=content["lastPosition"],
        made_at=content["madeAt"],
        files={path: CopiedFile(**file) for path, file in content["files"].items()},
        links=content["links"],
        folders=content["folders"],
        skipped=content["skipped"],
    )
    for path in (*manifest.files, *manifest.links, *manifest.folders):
        # The digest tells accidents, not malice: no path may lead out of the new directory.
        if not path or path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise ValueError(f"a path {path!r}")
    return manifest


def _digest(content: object) -> str:
    return "sha256:" + sha256(_dump(content)).hexdigest()


def _dump(document: object) -> bytes:
    # ASCII: names of scratch files may be no UTF-8, and surrogates have no other written form.
    return (json.dumps(document, sort_keys=True, indent=1) + "\n").encode("ascii")


def _refuse(data: Path, path: str, what: str) -> IntegrityError:
    return IntegrityError(
        message=f"backup {str(data.parent)!r}: {path!r} {what}; nothing was touched. "
        "Use another backup"
    )
