"""The folders that an agent reaches: its memory and its scratch folder, and no way out of them.

A path is opened component by component, each relative to the folder before it and none through a
symbolic link: what is checked is what is opened, also while somebody else moves things around.
"""

import errno
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from planaria.protocol.codec import hash_bytes
from planaria.protocol.errors import PlanariaError
from planaria.protocol.ids import check_id, check_workflow_id
from planaria.protocol.limits import INLINE_BYTES_MAX

from .failures import StepConfigError
from .session import Session, find_scratch

PATH_BYTES_MAX = 4_096  # PATH_MAX of Linux
NAME_BYTES_MAX = 255  # NAME_MAX of Linux and of every file system that it usually has
FILE_BYTES_MAX = INLINE_BYTES_MAX  # a file is read and written whole, as a value of an event
ENTRIES_MAX = 1_000  # of one listing: more is of no use to a model
UNFINISHED = ".unfinished-"  # begins the name of a file that is being written

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FileRefusedError(PlanariaError):
    """A path, or what stands there, is none that an agent may use; the text is for the agent."""

    template = "{path!r}: {message}"


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder below the data directory, under the name by which agents know it."""

    folder: tuple[str, ...]
    is_writable: bool
    store: str | None = None  # of memory: workflow, pipeline or org


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a listing; `bytes` is None for a folder."""

    path: str
    bytes: int | None


class Mounts:
    """The mounts of one session, by their paths: `memory/workflow`, `scratch`, …"""

    def __init__(self, directory: str, mounts: Mapping[str, Mount], writer: str) -> None:
        """`writer` names this session in the names of unfinished files."""
        self._directory = directory
        self._mounts = {tuple(name.split("/")): mount for name, mount in sorted(mounts.items())}
        self._writer = writer
        self._lock = threading.Lock()

    def describe(self) -> str:
        """Returns the mounts as lines that a model can act on."""
        return "\n".join(
            f"- {'/'.join(name)}/ ({'read and write' if mount.is_writable else 'read only'})"
            for name, mount in self._mounts.items()
        )

    def list_folder(self, path: str) -> list[Entry]:
        """Returns what a folder holds, by name; of an upper level, the mounts below it.

        Raises:
            FileRefusedError: no such folder, or not one of an agent's.
        """
        parts = _split(path)
        found = self._find(parts)
        if found is None:
            below = {name[: len(parts) + 1] for name in self._mounts if name[: len(parts)] == parts}
            if not below:
                raise FileRefusedError(path=path, message=self._name_mounts())
            return [Entry("/".join(name) + "/", None) for name in sorted(below)]
        mount, inner = found
        with _named(path), self._open_folder(mount, inner, is_root_optional=True) as folder:
            if folder is None:
                return []
            return _list_entries(folder, "/".join(parts))

    def read_file(self, path: str) -> str:
        """Returns a file's text.

        Raises:
            FileRefusedError: no such file, not a plain one, too large, or not UTF-8.
        """
        mount, inner = self._find_file(path)
        with _named(path), self._open_folder(mount, inner[:-1]) as folder:
            assert folder is not None, "only a listing takes a folder that isn't there"
            _check_plain(os.stat(inner[-1], dir_fd=folder, follow_symlinks=False))
            descriptor = os.open(inner[-1], _READ, dir_fd=folder)
            with open(descriptor, "rb") as file:
                _check_plain(os.fstat(descriptor))
                data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            message = f"larger than {FILE_BYTES_MAX} bytes, which is all that can be read"
            raise FileRefusedError(path=path, message=message)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise FileRefusedError(path=path, message="no text in UTF-8") from error

    def write_file(self, path: str, content: str) -> tuple[str | None, str, str]:
        """Writes a file whole; returns the store (None: scratch), the path in it, and the hash.

        A reader, or a process that is killed meanwhile, finds the old content or the new.

        Raises:
            FileRefusedError: not writable, too large, or something else stands there.
        """
        mount, inner = self._find_file(path)
        if not mount.is_writable:
            raise FileRefusedError(path=path, message="this folder is read only for you")
        data = content.encode(errors="replace")
        if len(data) > FILE_BYTES_MAX:
            message = f"{len(data)} bytes; a file has at most {FILE_BYTES_MAX}: write several"
            raise FileRefusedError(path=path, message=message)
        with self._lock, _named(path):
            with self._open_folder(mount, inner[:-1], is_made=True) as folder:
                assert folder is not None, "a folder that is made is there"
                self._replace(folder, inner[-1], data)
        return mount.store, "/".join(inner), hash_bytes(data)

    def _replace(self, folder: int, name: str, data: bytes) -> None:
        try:
            _check_plain(os.stat(name, dir_fd=folder, follow_symlinks=False))
        except FileNotFoundError:
            pass
        # The same name for each of this session's files, one after another: what a killed process
        # of it left behind is replaced, and nobody else uses it.
        unfinished = UNFINISHED + self._writer
        try:
            os.unlink(unfinished, dir_fd=folder)
        except FileNotFoundError:
            pass
        descriptor = os.open(unfinished, _WRITE, 0o600, dir_fd=folder)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) or 0 :]
                os.fsync(descriptor)
            os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(unfinished, dir_fd=folder)
            raise
        os.fsync(folder)

    def _find(self, parts: tuple[str, ...]) -> tuple[Mount, tuple[str, ...]] | None:
        for name, mount in self._mounts.items():
            if parts[: len(name)] == name:
                return mount, parts[len(name) :]
        return None

    def _find_file(self, path: str) -> tuple[Mount, tuple[str, ...]]:
        found = self._find(_split(path))
        if found is None:
            raise FileRefusedError(path=path, message=self._name_mounts())
        if not found[1]:
            raise FileRefusedError(path=path, message="a folder; name a file in it")
        return found

    def _name_mounts(self) -> str:
        return "none of your folders; they are " + ", ".join("/".join(n) for n in self._mounts)

    @contextmanager
    def _open_folder(
        self,
        mount: Mount,
        inner: tuple[str, ...],
        *,
        is_made: bool = False,
        is_root_optional: bool = False,
    ) -> Iterator[int | None]:
        """Gives a descriptor of a folder in a mount; None for a mount that nobody has written to.

        The data directory itself may be reached by links; below it there are none.
        """
        folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for depth, name in enumerate((*mount.folder, *inner)):
                try:
                    if is_made:
                        _make_folder(name, folder)
                    following = os.open(name, _FOLDER, dir_fd=folder)
                except FileNotFoundError:
                    if not is_root_optional or depth >= len(mount.folder):
                        raise
                    yield None
                    return
                os.close(folder)
                folder = following
            yield folder
        finally:
            os.close(folder)


def open_mounts(directory: str, session: Session) -> Mounts:
    """Returns what the session's agent reaches: the stores that its definition names, and scratch.

    Raises:
        StepConfigError: a store that there isn't, or that the session can't be told apart for.
    """
    is_planner = session.role == "planner"
    mounts = {"scratch": Mount(_split(find_scratch("", session).lstrip("/")), True)}
    for store in session.memory:
        mounts[f"memory/{store}"] = Mount(_find_store(store, session), is_planner, store)
    return Mounts(directory, mounts, check_id(session.id, "session id"))


def _find_store(store: str, session: Session) -> tuple[str, ...]:
    if store == "org":
        return ("memory", "org")
    if store == "workflow":
        return ("memory", "workflows", check_workflow_id(session.workflow_id))
    if store == "pipeline" and session.definition_hash is not None:
        digest = session.definition_hash.removeprefix("sha256:")[:16]
        return ("memory", "pipelines", check_id(digest, "definition hash"))
    raise StepConfigError(message=f"there is no memory {store!r} for this session")


def _split(path: str) -> tuple[str, ...]:
    """Returns the components of a path that stays where it is given; none for the top.

    Raises:
        FileRefusedError: absolute, upwards, too long, or with a name that can't be one.
    """
    shown = path[:100]

    def refuse(message: str) -> FileRefusedError:
        return FileRefusedError(path=shown, message=message)

    try:
        size = len(path.encode())
    except UnicodeEncodeError as error:
        raise refuse("the path is no legal text") from error
    if size > PATH_BYTES_MAX:
        raise refuse(f"a path of {size} bytes; at most {PATH_BYTES_MAX} are used")
    if "\0" in path:
        raise refuse("a path can't hold a NUL")
    if path.startswith("/"):
        raise refuse("paths are relative: they begin with memory/ or scratch/")
    if path in ("", "."):
        return ()
    parts = tuple(path.removesuffix("/").split("/"))
    for part in parts:
        if part in ("", ".", ".."):
            raise refuse("a path has no '.', no '..' and no empty name in it")
        if len(part.encode()) > NAME_BYTES_MAX:
            raise refuse(f"a name of more than {NAME_BYTES_MAX} bytes")
        if part.startswith(UNFINISHED):
            raise refuse(f"names that begin with {UNFINISHED!r} are in use for unfinished files")
    return parts


def _make_folder(name: str, folder: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        return
    os.fsync(folder)


def _list_entries(folder: int, prefix: str) -> list[Entry]:
    entries: list[Entry] = []
    for name in sorted(os.listdir(folder)):
        if name.startswith(UNFINISHED):
            continue
        try:
            known = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            continue  # removed meanwhile
        if stat.S_ISDIR(known.st_mode):
            entries.append(Entry(f"{prefix}/{name}/", None))
        elif stat.S_ISREG(known.st_mode):
            entries.append(Entry(f"{prefix}/{name}", known.st_size))
    return entries


def _check_plain(known: os.stat_result) -> None:
    if stat.S_ISDIR(known.st_mode):
        raise OSError(errno.EISDIR, "a folder")
    if not stat.S_ISREG(known.st_mode):
        raise OSError(errno.ELOOP, "no plain file")


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Turns what the file system says into a refusal that a model can act on.

    A full or failing disk is no matter for the model: that goes on as it is.
    """
    try:
        yield
    except OSError as error:
        message = _REASONS.get(error.errno or 0)
        if message is None:
            raise
        raise FileRefusedError(path=path, message=message) from error


_REASONS = {
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a part of the path is no folder",
    errno.EISDIR: "that is a folder, no file",
    errno.ELOOP: "that is a symbolic link or no plain file",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EACCES: "it can't be opened",
    errno.ENXIO: "no plain file",
}
