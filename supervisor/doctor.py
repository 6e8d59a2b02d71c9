"""The doctor: what this machine and data directory are like, and what is wrong with them."""

import ctypes
import os
import platform
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planaria.protocol.directories import refuse_file, refuse_unusable
from planaria.protocol.errors import PlanariaError
from planaria.protocol.ids import derive_id
from planaria.protocol.providers import PROVIDERS

from .data_directory import (
    MEMORY_FILE_SYSTEMS,
    NETWORK_FILE_SYSTEMS,
    DataDirectory,
    find_file_system,
    read_supervisor_json,
)
from .event_reader import EventReader
from .locks import read_holder
from .log_file import sqlite_version
from .process_tree import find_marked, read_stat
from .takeover import is_held

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"

PYTHON_VERSIONS = ((3, 11), (3, 13))
LINUX_OLDEST = (5, 4)
# Releases 3.7.0 to 3.51.2 can lose writes when two connections reset the WAL at once.
# Source: https://sqlite.org/wal.html, "The WAL-Reset Bug".
SQLITE_SOUND = (3, 51, 3)
FREE_BYTES_LOW = 256 << 20  # a WAL at its hard bound, its checkpoint, and some blobs
LIBRARIES = ("planaria", "pyzmq", "apsw", "multiprocess", "pydantic-ai-slim", "pydantic-monty")
_PR_GET_CHILD_SUBREAPER = 37  # <linux/prctl.h>
_PR_GET_PDEATHSIG = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: `status` is ok, warning or problem."""

    name: str
    status: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


def examine(root: Path) -> list[Finding]:
    """Returns what was found, in the order of looking; changes nothing."""
    directory = DataDirectory(root)
    findings = [_examine_python(), _examine_system(), _examine_sqlite(), _examine_libraries()]
    findings += [_examine_kernel(), _examine_file_system(root)]
    findings += _examine_directory(directory)
    findings += [_examine_lock(directory), _examine_processes(directory)]
    findings += _examine_providers()
    return findings


def _examine_python() -> Finding:
    found = sys.version_info[:2]
    text = f"{platform.python_version()} at {sys.executable}"
    if PYTHON_VERSIONS[0] <= found <= PYTHON_VERSIONS[1]:
        return Finding("python", OK, text)
    return Finding("python", WARNING, f"{text}: planaria is made for 3.11 to 3.13")


def _examine_system() -> Finding:
    release = platform.release()
    text = f"{platform.system()} {release}, {len(os.sched_getaffinity(0))} cores"
    parts = release.split(".")
    try:
        is_new = (int(parts[0]), int(parts[1])) >= LINUX_OLDEST
    except (ValueError, IndexError):
        return Finding("system", WARNING, f"{text}: no version of Linux can be read from it")
    if is_new:
        return Finding("system", OK, text)
    return Finding("system", PROBLEM, f"{text}: Linux 5.4 or newer is needed for pidfds")


def _examine_sqlite() -> Finding:
    found = sqlite_version()
    numbers = tuple(int(part) for part in found.split(".")[:3] if part.isdecimal())
    if numbers >= SQLITE_SOUND:
        text = f"{found} (in apsw): has the fix of the WAL-reset bug"
        return Finding("sqlite", OK, text, {"version": found})
    text = (
        f"{found} (in apsw) has the WAL-reset bug of 3.7.0 to 3.51.2: two connections that write "
        "or checkpoint at once can damage the log. planaria uses one, but "
        "'pip install -U apsw' is better"
    )
    return Finding("sqlite", WARNING, text, {"version": found})


def _examine_libraries() -> Finding:
    versions: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    missing = [name for name, found in versions.items() if found is None]
    text = ", ".join(f"{name} {found}" for name, found in versions.items() if found)
    if missing:
        text += f"; not installed: {', '.join(missing)}"
    return Finding("libraries", PROBLEM if missing else OK, text, {"versions": versions})


def _examine_kernel() -> Finding:
    """Asks for what supervision stands on: pidfds, subreapers, parent-death signals."""
    missing: list[str] = []
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        missing.append("pidfd_open")
    value = ctypes.c_int(0)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for name, option in (
        ("PR_SET_CHILD_SUBREAPER", _PR_GET_CHILD_SUBREAPER),
        ("PR_SET_PDEATHSIG", _PR_GET_PDEATHSIG),
    ):
        if prctl(option, ctypes.byref(value), 0, 0, 0) != 0:
            missing.append(name)
    if missing:
        text = f"missing: {', '.join(missing)}; processes may be left behind when one dies"
        return Finding("kernel", PROBLEM, text)
    text = "pidfds, subreapers and parent-death signals are there"
    if not os.path.exists("/proc/thread-self/children"):
        return Finding("kernel", WARNING, f"{text}; lists of children aren't: they are slower")
    return Finding("kernel", OK, text)


def _examine_file_system(root: Path) -> Finding:
    kind = find_file_system(root)
    place = _nearest(root)
    free = shutil.disk_usage(place).free
    text = f"{kind}, {free >> 20} MiB free"
    facts = {"fileSystem": kind, "freeBytes": free}
    if kind in NETWORK_FILE_SYSTEMS:
        text += ": locks and shared memory can't be relied on there; choose a local disk"
        return Finding("disk", PROBLEM, text, facts)
    if kind in MEMORY_FILE_SYSTEMS:
        return Finding("disk", WARNING, f"{text}: in memory, it ends with the machine", facts)
    if free < FREE_BYTES_LOW:
        return Finding("disk", WARNING, f"{text}: a full disk stops the supervisor", facts)
    return Finding("disk", OK, text, facts)


def _examine_directory(directory: DataDirectory) -> Iterator[Finding]:
    root = directory.root
    if not root.exists():
        place = _nearest(root)
        can_make = os.access(place, os.W_OK | os.X_OK)
        text = f"{str(root)!r} isn't there yet"
        if not can_make:
            text += f", and {str(place)!r} can't be written"
        yield Finding("directory", OK if can_make else PROBLEM, text)
        return
    if not root.is_dir():
        yield Finding("directory", PROBLEM, str(refuse_file(str(root))))
        return
    yield _examine_permissions(root)
    try:
        is_used, is_empty = directory.database.exists(), not any(root.iterdir())
    except OSError as error:
        yield Finding("log", PROBLEM, str(refuse_unusable(str(root), error)))
        return
    if not is_used:
        if not is_empty:
            text = f"{str(root)!r} holds other things and no event log: it is no data directory"
            yield Finding("log", PROBLEM, text)
        return
    try:
        reader = EventReader.open(directory.database)
    except PlanariaError as error:
        yield Finding("log", PROBLEM, str(error))
        return
    try:
        counts, events = reader.count_runs(), reader.last_position()
    except PlanariaError as error:
        yield Finding("log", PROBLEM, str(error))
        return
    finally:
        reader.close()
    runs = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no run"
    yield Finding("log", OK, f"{events} events; {runs}", {"events": events, "runs": counts})


def _examine_permissions(root: Path) -> Finding:
    found = os.stat(root)
    if not stat.S_ISDIR(found.st_mode):
        return Finding("directory", PROBLEM, f"{str(root)!r} is a file")
    if found.st_uid != os.geteuid():
        text = f"{str(root)!r} belongs to user {found.st_uid}, this is user {os.geteuid()}"
        return Finding("directory", PROBLEM, text)
    if not os.access(root, os.W_OK | os.X_OK):
        return Finding("directory", PROBLEM, f"{str(root)!r} can't be written")
    if stat.S_IMODE(found.st_mode) & 0o077:
        text = f"{str(root)!r} is open to others (mode {stat.S_IMODE(found.st_mode):o})"
        return Finding("directory", WARNING, text)
    return Finding("directory", OK, str(root))


def _examine_lock(directory: DataDirectory) -> Finding:
    if not is_held(directory.root):
        return Finding("supervisor", OK, "none runs")
    holder = read_holder(directory.supervisor_lock)
    pid = holder.pid if holder else 0
    stopped = read_stat(pid)
    facts = {"pid": pid, "startTime": holder.start_time if holder else None}
    if stopped is not None and stopped.state in "Tt":
        text = f"pid {pid} holds the lock and is stopped; 'planaria up --take-over' ends it"
        return Finding("supervisor", PROBLEM, text, facts)
    try:
        known = read_supervisor_json(directory)
    except PlanariaError as error:
        return Finding("supervisor", WARNING, str(error), facts)
    if known is None or known.get("pid") != pid:
        text = f"pid {pid} holds the lock and isn't ready for clients (starting or ending?)"
        return Finding("supervisor", WARNING, text, facts)
    return Finding("supervisor", OK, f"pid {pid} holds the lock", facts)


def _examine_processes(directory: DataDirectory) -> Finding:
    marker = derive_id("pd_", str(directory.root.resolve()))
    pids = sorted(process.pid for process in find_marked(marker))
    facts = {"pids": pids}
    if not pids:
        return Finding("processes", OK, "none is at work for this directory", facts)
    if is_held(directory.root):
        return Finding("processes", OK, f"{len(pids)} at work for this directory", facts)
    text = (
        f"{len(pids)} left over by a supervisor that has ended (pids {', '.join(map(str, pids))});"
        " the next one ends them at its start"
    )
    return Finding("processes", WARNING, text, facts)


def _examine_providers() -> Iterator[Finding]:
    """Yields each provider whose package or key is there; that one has none is no fault."""
    for name, provider in PROVIDERS.items():
        installed = _is_installed(provider.module)
        keys = [key for key in provider.keys if os.environ.get(key)]
        if not installed and not keys:
            continue
        facts = {"installed": installed, "keys": keys}
        if not installed:
            text = f"{keys[0]} is set; pip install 'pydantic-ai-slim[{provider.extra}]' is missing"
            yield Finding(f"model {name}", WARNING, text, facts)
        elif provider.lacks_key(os.environ):
            text = f"installed; no key: {' or '.join(provider.keys)} is not set"
            yield Finding(f"model {name}", OK, text, facts)
        else:
            yield Finding(
                f"model {name}", OK, "installed" + (f", {keys[0]} is set" if keys else ""), facts
            )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _nearest(path: Path) -> Path:
    """Returns the nearest folder above that is there."""
    for place in (path, *path.absolute().parents):
        if place.exists():
            return place
    return Path("/")
