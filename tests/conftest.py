"""What holds for every test: after the last one, no process, socket or temporary file is left."""

import os
import select
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# Ends of processes that were asked to end take milliseconds; a busy machine may need longer.
END_SECONDS = 5.0
SESSION_VARIABLE = "PLANARIA_TEST_SESSION"


@dataclass(frozen=True, slots=True)
class Seen:
    """A running process; its start time tells it from a later one with the same pid."""

    pid: int
    start_time: str
    command: str


@dataclass(slots=True)
class Watch:
    """Which processes belong to this run of the tests."""

    marks: list[bytes] = field(default_factory=list)
    first_seen: dict[Seen, str] = field(default_factory=dict)


_watch = pytest.StashKey[Watch]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_watch] = Watch()


class Blame:
    """Notes at the end of each test which children are new, so that a leftover names its test."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        for process in children(os.getpid()):
            self._watch.first_seen.setdefault(process, item.nodeid)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Fails the session when a process, a socket or a temporary file outlives its tests.

    A process is ours if it descends from pytest or, orphaned, carries this session's mark or
    folder in its environment or its arguments. Temporary files get a folder of their own here, so
    that what other programs leave in the system's is not counted; files in tmp_path are pytest's.
    """
    watch = request.config.stash[_watch]
    # Asked for before TMPDIR changes: pytest keeps these for a look afterwards, elsewhere.
    kept = tmp_path_factory.getbasetemp()
    mark = uuid.uuid4().hex
    # Short: the path of a socket has at most 107 bytes (unix(7)).
    scratch = Path(tempfile.mkdtemp(prefix="pt-"))
    watch.marks = [mark.encode(), os.fsencode(kept), os.fsencode(scratch)]
    request.config.pluginmanager.register(Blame(watch), "blame")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SESSION_VARIABLE, mark)
        patch.setenv("TMPDIR", str(scratch))
        patch.setattr(tempfile, "tempdir", None)
        yield
    left = wait_for_ends(watch) + open_sockets([kept, scratch])
    # Where the path of a data directory is too long for a socket, a killed supervisor's lies here.
    sockets = scratch / f"planaria-{os.getuid()}"
    files = sorted(scratch.rglob("*"))
    left += [f"file {path}" for path in files if not path.is_relative_to(sockets)]
    shutil.rmtree(scratch, ignore_errors=True)
    if left:
        pytest.fail("left behind by the tests:\n" + "\n".join(left), pytrace=False)


def wait_for_ends(watch: Watch) -> list[str]:
    """Returns what runs on after the deadline; a process that was told to end may take a moment."""
    deadline = time.monotonic() + END_SECONDS
    for process in ours(watch):
        wait_for_end(process, deadline)
    return [
        f"process {process.pid}: {process.command}"
        f" (since {watch.first_seen.get(process, 'a test unknown')})"
        for process in ours(watch)
    ]


def wait_for_end(process: Seen, deadline: float) -> None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    finally:
        os.close(descriptor)


def ours(watch: Watch) -> list[Seen]:
    """Returns the running processes of this session, its descendants first."""
    found = dict.fromkeys(descendants(os.getpid()))
    found.update(dict.fromkeys(marked(watch.marks)))
    return list(found)


def descendants(pid: int) -> list[Seen]:
    found: list[Seen] = []
    for child in children(pid):
        found += [child, *descendants(child.pid)]
    return found


def children(pid: int) -> list[Seen]:
    found: list[Seen] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        listed = read(path).split()
        found += [seen for child in listed if (seen := look(int(child)))]
    return found


def marked(marks: list[bytes]) -> list[Seen]:
    """Returns the processes, pytest excepted, that carry a mark of this session."""
    found: list[Seen] = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) in (os.getpid(), os.getppid()):
            continue
        text = read(path / "environ") + read(path / "cmdline")
        if any(mark in text for mark in marks) and (seen := look(int(path.name))):
            found.append(seen)
    return found


def look(pid: int) -> Seen | None:
    """Returns a process that runs; None when it has ended, a zombie too."""
    text = read(Path(f"/proc/{pid}/stat"))
    # The name stands in brackets and may hold brackets: count from the last one.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    command = read(Path(f"/proc/{pid}/cmdline")).replace(b"\0", b" ").decode(errors="replace")
    return Seen(pid, fields[19].decode(), command.strip()[:200] or "?")


def read(path: Path) -> bytes:
    """Returns what a file of /proc holds; nothing when its process has ended or isn't ours."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def open_sockets(folders: list[Path]) -> list[str]:
    """Returns the bound sockets below some folders.

    The file alone says nothing: whoever is killed can't remove it. The kernel's list does.
    """
    lines = read(Path("/proc/net/unix")).decode(errors="replace").splitlines()
    paths = sorted({line.split()[-1] for line in lines[1:] if len(line.split()) == 8})
    return [
        f"open socket {path}"
        for path in paths
        if any(path.startswith(f"{folder}/") for folder in folders)
    ]
