"""Finds the supervisor of a data directory, or starts one for the time of a call."""

import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from planaria.protocol.errors import (
    EXIT_DATA_DIRECTORY,
    DataDirectoryError,
    PlanariaError,
    SupervisorUnavailableError,
)

from .connection import Connection

DEFAULT_DIRECTORY = ".little-workflow"
DIRECTORY_VARIABLE = "PLANARIA_DATA_DIR"
START_SECONDS = 30.0  # a log with a large WAL is read first
PING_SECONDS = 10.0
GIVE_UP_SECONDS = 12.0  # the grace of supervisors (10 s), and some for their end
_LOOK_SECONDS = 0.01

# Supervisors that this process started and that it has to reap; they belong to the process, not
# to one client: the last client to go may be another than the one that started it.
_started: dict[int, subprocess.Popen[bytes]] = {}


def find_directory(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Returns the data directory: the argument, PLANARIA_DATA_DIR, or `.little-workflow`."""
    return Path(data_dir or os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY).absolute()


def find_supervisor(directory: Path) -> Connection | None:
    """Returns a link to the living supervisor of a directory, or None if there is none.

    Raises:
        SupervisorUnavailableError: it lives and doesn't answer.
    """
    facts = read_facts(directory)
    if facts is None:
        return None
    try:
        connection = Connection(str(facts["socket"]), int(facts["pid"]))
    except SupervisorUnavailableError:
        return None
    try:
        answer = connection.ask("ping", timeout=PING_SECONDS)
    except SupervisorUnavailableError:
        connection.close()
        if _is_alive(int(facts["pid"]), directory):
            raise SupervisorUnavailableError(
                message=f"pid {facts['pid']} holds {str(directory)!r} and doesn't answer within "
                f"{PING_SECONDS:.0f} s (stopped?). 'planaria up --take-over' ends it"
            ) from None
        return None
    if answer["pid"] != facts["pid"] or answer["isStopping"]:
        connection.close()
        return None
    return connection


def read_facts(directory: Path) -> Mapping[str, Any] | None:
    """Returns what the last supervisor wrote of itself, or None."""
    try:
        facts = json.loads((directory / "supervisor.json").read_bytes())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and "socket" in facts and "pid" in facts else None


def supervisor_command(*arguments: str) -> list[str]:
    """Returns the command line of a process of supervisor/; it is launched by name only.

    -P keeps the working directory off its import path: a user's `zmq.py` there is not ours.
    """
    return [sys.executable, "-P", "-m", "planaria.supervisor", *arguments]


def start_supervisor(
    directory: Path,
    *,
    is_ephemeral: bool = True,
    children_max: int | None = None,
    take_over: bool = False,
) -> Connection:
    """Starts a supervisor as a process of its own and returns a link to it once it is ready.

    If another one gets the directory first, that one is taken; with `take_over` the one that has
    it is ended.

    Raises:
        DataDirectoryError: the directory is unusable; the text says why.
        SupervisorUnavailableError: none is ready in time.
    """
    command = supervisor_command("serve", str(directory), "--log")
    if is_ephemeral:
        command.append("--ephemeral")
    reap_supervisors()
    if children_max is not None:
        command.extend(["--children", str(children_max)])
    if take_over:
        command.append("--take-over")
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        connection = _start_once(command, directory, deadline)
        if connection is not None:
            return connection
        time.sleep(_LOOK_SECONDS)  # another one had the lock, and is ending or was killed
    raise SupervisorUnavailableError(
        message=f"none was ready for {str(directory)!r} within {START_SECONDS:.0f} s"
    )


def _start_once(command: list[str], directory: Path, deadline: float) -> Connection | None:
    """Returns a link to whoever serves the directory; None if nobody does after all."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # Ctrl-C in a terminal reaches the client only
        )
        _started[process.pid] = process
        try:
            connection = _wait_ready(process, directory, deadline, errors)
        except BaseException:
            _give_up(process)
            raise
        if connection is None or connection.supervisor_pid != process.pid:
            _give_up(process)
        return connection


def _wait_ready(
    process: "subprocess.Popen[bytes]", directory: Path, deadline: float, errors: IO[bytes]
) -> Connection | None:
    while time.monotonic() < deadline:
        facts = read_facts(directory)
        code = process.poll()
        if facts is not None and (facts["pid"] == process.pid or code is not None):
            connection = find_supervisor(directory)
            if connection is not None:
                return connection
        if code is not None and not is_held(directory):
            error = _start_error(directory, code, errors)
            if "is in use by" in str(error) or code < 0:
                return None
            raise error
        time.sleep(_LOOK_SECONDS)
    return None


def _give_up(process: "subprocess.Popen[bytes]") -> None:
    """Ends a supervisor that isn't ready, or not needed: nobody would ever attach to it."""
    process.terminate()
    try:
        process.wait(GIVE_UP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _started.pop(process.pid, None)


def reap_supervisors() -> None:
    """Reaps those that this process started and that have ended."""
    for pid, process in list(_started.items()):
        if process.poll() is not None:
            _started.pop(pid, None)


def _let_go() -> None:
    """Keeps Popen quiet at this process's end about a supervisor that serves others on."""
    for process in _started.values():
        process.returncode = process.poll() or 0


atexit.register(_let_go)


def _start_error(directory: Path, code: int, errors: IO[bytes]) -> PlanariaError:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    text = lines[-1].removeprefix("planaria: ") if lines else f"it ended with code {code}"
    if code == EXIT_DATA_DIRECTORY:
        return DataDirectoryError(message=text)
    return SupervisorUnavailableError(
        message=f"it ended at its start in {str(directory)!r}: {text}"
    )


def read_holder_pid(directory: Path) -> int | None:
    """Returns the pid that the last holder of the directory's lock wrote, or None."""
    try:
        holder = json.loads((directory / "locks" / "supervisor").read_bytes())
        return int(holder["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_held(directory: Path) -> bool:
    """Says whether somebody else holds the directory's lock: one is starting or ending."""
    import fcntl

    try:
        descriptor = os.open(directory / "locks" / "supervisor", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_alive(pid: int, directory: Path) -> bool:
    return is_held(directory) and Path(f"/proc/{pid}").exists()
