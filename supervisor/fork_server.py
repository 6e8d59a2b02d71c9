"""One fork server and the talk with it, without ever waiting. Only this module has multiprocess.

`multiprocess` gives the server's loop and the way a child starts; its own client side blocks
without limit when the server is stopped, knows one server per process, and runs the caller's
`__main__` again. So the client side is written here: a request is sent in one go, and each answer
is a descriptor that the supervisor's loop watches.
"""

import fcntl
import io
import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multiprocess import context, process, reduction

from . import preload

SPEC_BYTES_MAX = 512 * 1024  # an environment of usual size is 5 KB
START_BYTES_MAX = SPEC_BYTES_MAX + 64 * 1024  # with sys.path and the pickle around it
PIPE_BYTES_MAX = 1 << 20  # what Linux lets anyone have (/proc/sys/fs/pipe-max-size)
STATUS = struct.Struct("q")  # how multiprocess sends a pid and an exit code
REPORT_BYTES_MAX = preload.REPORT_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Preload:
    """What a fork server loads, by name."""

    modules: tuple[str, ...]
    warm_up: str | None = None  # "module:function", called once after the imports


@dataclass(frozen=True, slots=True)
class PreloadReport:
    """What a fork server says when it is about to serve."""

    threads: int
    problems: Mapping[str, str]  # name -> error; the server works without that module
    seconds: float


class ForkServer:
    """A running fork server; start it from a thread that lives as long as it is to live.

    The kernel ends it (PR_SET_PDEATHSIG) when that thread ends, not only with the process.
    """

    def __init__(
        self, name: str, contents: Preload, environment: Mapping[str, str], address: Path
    ) -> None:
        self.name = name
        self.started_at = time.monotonic()
        self.report: PreloadReport | None = None
        self._address = address
        # Fork servers hand a tracker of shared memory and their alive pipe on to children. We
        # share no memory (saves a process of 12 MB), and the alive pipe is the supervisor's.
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        address.unlink(missing_ok=True)
        alive_read, self._alive = os.pipe()
        self.report_descriptor, report_write = os.pipe()
        os.set_blocking(self.report_descriptor, False)
        configuration = {
            "name": f"planaria-{name}",
            "modules": contents.modules,
            "warm_up": contents.warm_up,
            "report_fd": report_write,
            "supervisor_pid": os.getpid(),
        }
        variables = {**environment, preload.CONFIGURATION_VARIABLE: json.dumps(configuration)}
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(os.fspath(address))
                os.chmod(address, 0o600)
                listener.listen()
                self._process = subprocess.Popen(
                    _command(listener.fileno(), alive_read),
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what a child prints must not mix with the command's own output
                    pass_fds=(listener.fileno(), alive_read, report_write),
                    env=variables,
                    start_new_session=True,  # Ctrl-C is for the supervisor alone
                )
        finally:
            os.close(alive_read)
            os.close(report_write)
        self.pid = self._process.pid
        self.descriptor = os.pidfd_open(self.pid)

    @property
    def ready(self) -> bool:
        return self.report is not None

    def read_report(self) -> PreloadReport:
        """Read what the server loaded.

        Raises:
            EOFError: it ended while loading.
        """
        text = os.read(self.report_descriptor, REPORT_BYTES_MAX)
        if not text:
            raise EOFError(f"fork server {self.name!r} ended while it was loading")
        fields = json.loads(text)
        self.report = PreloadReport(fields["threads"], fields["problems"], fields["seconds"])
        return self.report

    def request_process(self) -> tuple[int, int]:
        """Ask for a process; return the descriptors of its status (read) and its start (write).

        The status gives the pid, then the exit code. The process waits for its start.

        Raises:
            OSError: the server is gone, or too many requests wait for it.
        """
        status_read, status_write = os.pipe()
        start_read, start_write = os.pipe()
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.setblocking(False)
                client.connect(os.fspath(self._address))
                reduction.sendfds(client, [start_read, status_write, self._null, self._null])
        except OSError:
            os.close(status_read)
            os.close(start_write)
            raise
        finally:
            os.close(status_write)
            os.close(start_read)
        os.set_blocking(status_read, False)
        os.set_blocking(start_write, False)
        return status_read, start_write

    def kill(self) -> None:
        """Kill the server; its children end with it (PR_SET_PDEATHSIG)."""
        self._process.kill()

    def reap(self) -> None:
        """Take the exit status of a server that has ended, and free what belonged to it."""
        self._process.wait()
        for descriptor in (self.descriptor, self._alive, self._null, self.report_descriptor):
            os.close(descriptor)
        self._address.unlink(missing_ok=True)


def encode_start(process_id: str, target: str, spec: Mapping[str, Any], token: bytes) -> bytes:
    """Return what a forked process reads to become this child.

    Raises:
        ValueError: the spec is larger than SPEC_BYTES_MAX.
        TypeError: the spec isn't JSON.
    """
    text = json.dumps({**spec, "process_id": process_id}).encode()
    if len(text) > SPEC_BYTES_MAX:
        raise ValueError(
            f"the spec of process {process_id!r} has {len(text)} bytes, at most {SPEC_BYTES_MAX} "
            "are allowed; name fewer environment variables"
        )
    child = context.ForkServerProcess(
        target=enter_child, args=(target, text, token), name=process_id
    )
    # Only what is needed: neither the caller's __main__ (it would run again), nor its argv or
    # working directory.
    preparation = {"name": process_id, "sys_path": _search_path()}
    buffer = io.BytesIO()
    context.set_spawning_popen(child)  # the authentication key refuses to be written without
    try:
        # multiprocess would use dill, which is there for closures: 0.31 ms for all of this
        # function against 0.08 (in the supervisor's loop). The child's dill reads both.
        pickle.dump(preparation, buffer)
        pickle.dump(child, buffer)
    finally:
        context.set_spawning_popen(None)
    assert buffer.tell() <= START_BYTES_MAX, f"{buffer.tell()} bytes to start {process_id!r}"
    return buffer.getvalue()


def send_start(descriptor: int, start: bytes) -> None:
    """Give a forked process what it waits for; never blocks, the pipe is made to fit.

    Raises:
        OSError: the process is gone.
    """
    if len(start) > fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES_MAX)
    sent = os.write(descriptor, start)
    if sent != len(start):  # pipes are cut to a page when a user has too many of them
        raise OSError(f"a pipe took {sent} of {len(start)} bytes; see /proc/sys/fs/pipe-user-*")


def read_status(descriptor: int) -> int | None:
    """Return the next number of a status pipe; None when there is none yet.

    Raises:
        EOFError: there will be none, the fork server has gone.
    """
    try:
        data = os.read(descriptor, STATUS.size)
    except BlockingIOError:
        return None
    if len(data) < STATUS.size:  # eight bytes are written to a pipe whole or not at all
        raise EOFError("the fork server has gone")
    number: int = STATUS.unpack(data)[0]
    return number


def enter_child(target: str, spec: bytes, token: bytes) -> None:
    """First function of a child: tell it which descriptor ends with the supervisor."""
    parent = process.parent_process()
    assert parent is not None, "a process of multiprocess has a parent process"
    preload.run_child(target, {**json.loads(spec), "alive_fd": parent.sentinel}, token)


def _command(listener: int, alive: int) -> list[str]:
    # sys.path is handed over before the first import: multiprocess takes it and doesn't use it,
    # so that a module beside the caller's script would silently not be found.
    code = (
        f"import sys; sys.path[:] = {_search_path()!r}; "
        "from multiprocess.forkserver import main; "
        f"main({listener}, {alive}, [{preload.__name__!r}])"
    )
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", code]


def _search_path() -> list[str]:
    return [entry for entry in sys.path if entry]  # "" would be the child's working directory
