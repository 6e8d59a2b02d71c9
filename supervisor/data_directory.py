"""The data directory: its layout, its making, and what is refused as one."""

import json
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from planaria.protocol.directories import refuse_file, refuse_foreign, refuse_unusable
from planaria.protocol.errors import DataDirectoryError
from planaria.protocol.ids import check_id

from .blobs import write_new_file
from .log_file import sync_directory
from .log_schema import DATABASE_NAME

SOCKET_PATH_BYTES_MAX = 100  # sockaddr_un holds 107; ZeroMQ and a suffix of ours need some
JSON_BYTES_MAX = 1 << 20

# flock and shared memory, on which lock and log stand, hold on one machine only.
NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p afs ceph glusterfs lustre gfs2 ocfs2 beegfs gpfs orangefs "
    "fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.rclone fuse.davfs2 davfs".split()
)
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
_VALUABLE = ("artifacts", "runs", "memory", "outer-loops")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """Where everything of one data directory stands; makes nothing."""

    root: Path

    @property
    def events(self) -> Path:
        return self.root / "events"

    @property
    def database(self) -> Path:
        return self.events / DATABASE_NAME

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def blobs(self) -> Path:
        return self.artifacts / "blobs"

    @property
    def modules(self) -> Path:
        return self.artifacts / "modules"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def memory(self) -> Path:
        return self.root / "memory"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def supervisor_lock(self) -> Path:
        return self.locks / "supervisor"

    @property
    def outer_loops(self) -> Path:
        return self.root / "outer-loops"

    @property
    def supervisor_json(self) -> Path:
        return self.root / "supervisor.json"

    def scratch(self, run_id: str, session_id: str) -> Path:
        """Returns the folder that a session's tools may use, and find again after a crash."""
        check_id(session_id, "session id")
        return self.runs / check_id(run_id, "run id") / "harness" / session_id

    def logs(self, run_id: str) -> Path:
        """Returns the folder of the captured output of a run's processes."""
        return self.runs / check_id(run_id, "run id") / "logs"


def prepare_data_directory(root: Path, *, mounts: str | None = None) -> DataDirectory:
    """Makes the directory, or checks the one that is there, and returns its layout.

    `mounts` is the text of /proc/self/mountinfo, for tests.

    Raises:
        DataDirectoryError: foreign, read-only, not ours, on a network file system, or leftovers
            without their event log; nothing was changed but empty folders.
    """
    root = Path(os.path.abspath(root))
    kind = find_file_system(root, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise DataDirectoryError(
            message=f"data directory {str(root)!r} is on a network file system ({kind}), where "
            "locks and shared memory can't be relied on. Choose one on a local disk"
        )
    if kind in MEMORY_FILE_SYSTEMS:
        logger.warning("data directory %r is in memory (%s): it ends with it", str(root), kind)
    directory = DataDirectory(root)
    try:
        if root.exists() or root.is_symlink():
            _check_existing(directory)
        else:
            root.mkdir(mode=0o700, parents=True)
            sync_directory(root.parent)
        os.chmod(root, 0o700)
        for folder in (
            directory.events,
            directory.blobs,
            directory.modules,
            directory.runs,
            directory.memory,
            directory.locks,
            directory.outer_loops,
        ):
            _make_folder(root, folder)
        _check_writable(directory)
    except OSError as error:
        raise refuse_unusable(str(root), error) from error
    return directory


def find_file_system(path: Path, mounts: str | None = None) -> str:
    """Returns the type of the file system that `path` is on or would be made on ("ext4")."""
    if mounts is None:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = file.read()
    real = os.path.realpath(path)
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        # Optional fields stand before " - ": proc_pid_mountinfo(5).
        left, _, right = line.partition(" - ")
        point = _unescape(left.split()[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # of two mounts on one point the later one is seen
            best, kind = len(point), right.split()[0]
    return kind


def replace_file(path: Path, data: bytes, trace: Callable[[str], None] | None = None) -> None:
    """Puts `data` in the place of the file, as a whole; on return it survives a power cut.

    `trace` is told "file_written" when the new one is complete and has no name yet.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(8).hex()}")
    write_new_file(unfinished, data)
    if trace is not None:
        trace("file_written")
    try:
        os.rename(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_supervisor_json(directory: DataDirectory, fields: dict[str, Any]) -> None:
    """Tells clients how to find the supervisor (`socket`, `pid`, ...)."""
    replace_file(directory.supervisor_json, json.dumps(fields, indent=2).encode() + b"\n")


def read_supervisor_json(directory: DataDirectory) -> dict[str, Any] | None:
    """Returns what the last supervisor wrote, or None; that it still lives is another question.

    Raises:
        DataDirectoryError: the file is foreign or torn.
    """
    path = directory.supervisor_json
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            fields = json.loads(file.read(JSON_BYTES_MAX))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataDirectoryError(
            message=f"{str(path)!r} can't be read ({error}); 'planaria up' writes it anew"
        ) from error
    if not isinstance(fields, dict):
        raise DataDirectoryError(message=f"{str(path)!r} holds no map")
    return fields


def remove_supervisor_json(directory: DataDirectory) -> None:
    """Removes it: there is no supervisor any more."""
    directory.supervisor_json.unlink(missing_ok=True)


def choose_socket_path(directory: DataDirectory, runtime: Path | None = None) -> Path:
    """Returns where the supervisor's socket goes: in the data directory if that isn't too deep.

    Else in a folder of this user's own below `runtime` (default: XDG_RUNTIME_DIR, or the
    directory for temporary files), whose name is a hash of the data directory's path.

    Raises:
        DataDirectoryError: that folder is someone else's or open to others, or too deep as well.
    """
    path = directory.root / "supervisor.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return path
    if runtime is None:
        runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    digest = sha256(os.fsencode(os.path.realpath(directory.root))).hexdigest()[:24]
    own = runtime / f"planaria-{os.getuid()}"
    path = own / digest / "supervisor.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise DataDirectoryError(
            message=f"no socket path of at most {SOCKET_PATH_BYTES_MAX} bytes: {str(path)!r} is "
            "too long. Set XDG_RUNTIME_DIR to a shorter one"
        )
    for folder in (own, path.parent):
        _make_private(folder)
    return path


def _check_existing(directory: DataDirectory) -> None:
    root = directory.root
    found = os.stat(root)
    if not stat.S_ISDIR(found.st_mode):
        raise refuse_file(str(root))
    if found.st_uid != os.geteuid():
        raise DataDirectoryError(
            message=f"data directory {str(root)!r} belongs to user {found.st_uid}, this is user "
            f"{os.geteuid()}. Run as its owner"
        )
    if directory.database.exists():
        return
    foreign = refuse_foreign(str(root), os.listdir(root))
    if foreign is not None:
        raise foreign
    leftover = _find_leftover(directory)
    if leftover is not None:
        raise DataDirectoryError(
            message=f"data directory {str(root)!r} has lost its event log, but {leftover!r} is "
            "there. A new log would be a new authority over old data: restore a backup or choose "
            "another directory"
        )


def _find_leftover(directory: DataDirectory) -> str | None:
    for suffix in ("-wal", "-journal"):
        if os.path.lexists(f"{directory.database}{suffix}"):
            return f"events/{DATABASE_NAME}{suffix}"
    for top in _VALUABLE:
        for folder, _, files in os.walk(directory.root / top):
            if files and os.path.basename(folder) != "unfinished":
                return os.path.relpath(os.path.join(folder, files[0]), directory.root)
    return None


def _check_writable(directory: DataDirectory) -> None:
    probe = directory.locks / f".probe-{os.getpid()}-{os.urandom(8).hex()}"
    write_new_file(probe, b"planaria")
    probe.unlink()


def _make_folder(root: Path, folder: Path) -> None:
    if folder.is_dir() and not folder.is_symlink():
        return
    if folder.parent != root:
        _make_folder(root, folder.parent)
    os.mkdir(folder, 0o700)
    sync_directory(folder.parent)


def _make_private(folder: Path) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise DataDirectoryError(
            message=f"no folder {str(folder)!r} for the socket: {error.strerror}"
        ) from error
    found = os.stat(folder, follow_symlinks=False)
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077 == 0
    if not private or found.st_uid != os.geteuid():
        raise DataDirectoryError(
            message=f"{str(folder)!r} must be a directory of this user that is closed to others "
            "(0700); remove it or set XDG_RUNTIME_DIR"
        )


def _unescape(text: str) -> str:
    """Undoes the octal escapes of mountinfo: space, tab, newline, backslash."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
