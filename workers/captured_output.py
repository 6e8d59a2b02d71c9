"""What a process prints, kept by session: stdout and stderr of tools, of user code, of the child.

The process writes to one file all its life, in append mode: writing needs nobody to read, and
what was written survives kill -9. A session that ends takes what it has printed into a file of its
own; a silent one, and most are, costs two system calls and makes no file. So a file
`.<process>.<pid>.out` with something in it is of a session that runs, or of which the process was
killed. `planaria logs` reads both.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import BinaryIO

from planaria.protocol.limits import CAPTURED_OUTPUT_BYTES_MAX

STDOUT = 1
CUT = b"\n[planaria: more than 1 MiB was printed; the rest is left out]\n"


class CapturedOutput:
    """The output of this process; inactive when stdout isn't the file of its own."""

    def __init__(self, directory: Path, process_id: str, log_path: str | None) -> None:
        self._runs = directory / "runs"
        self._process_id = process_id
        self._path = Path(log_path) if log_path is not None else None
        self._folder: Path | None = None
        self._session_id: str | None = None

    def begin(self, run_id: str, session_id: str) -> None:
        """Gives what is printed from now on to this session; the last one has ended by then."""
        self.end()
        if self._path is not None and self._folder is None:
            self._move(run_id)
        self._session_id = session_id

    def _move(self, run_id: str) -> None:
        """Puts the file under the run: a process serves one run all its life."""
        assert self._path is not None, "moved once"
        folder = self._runs / run_id / "logs"
        path = folder / f".{self._process_id}.{os.getpid()}.out"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.rename(self._path, path)
        except OSError as error:
            # A full or foreign disk shows in the events; what is printed is no reason to fail.
            self._path = None
            print(f"planaria: output isn't kept by session: {error}", file=sys.stderr)
            return
        self._path, self._folder = path, folder

    def end(self) -> None:
        """Puts what the session has printed, at most so much, into its own file."""
        session_id, self._session_id = self._session_id, None
        if session_id is None or self._path is None or self._folder is None:
            return
        _flush()
        try:
            size = os.fstat(STDOUT).st_size
            if size == 0:
                return
            with self._path.open("r+b") as source:
                if os.fstat(source.fileno()).st_ino != os.fstat(STDOUT).st_ino:
                    return
                with open(self._folder / f"{session_id}.log", "ab", opener=_open_own) as target:
                    _copy(source, size, target)
                source.truncate(0)
        except OSError as error:
            print(f"planaria: output isn't kept by session: {error}", file=sys.stderr)

    def limit(self) -> None:
        """Cuts what has been printed at the limit; called now and then while a session runs.

        One byte more than the limit stays, so that `end` sees that something was left out.
        """
        with contextlib.suppress(OSError):
            if self._path is not None and os.fstat(STDOUT).st_size > CAPTURED_OUTPUT_BYTES_MAX + 1:
                os.ftruncate(STDOUT, CAPTURED_OUTPUT_BYTES_MAX + 1)

    def close(self) -> None:
        """Removes the file of a process that ends with nothing left in it."""
        _flush()
        try:
            if self._path is not None and self._path.stat().st_size == 0:
                self._path.unlink()
        except OSError:
            pass  # somebody has removed it


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _copy(source: BinaryIO, size: int, target: BinaryIO) -> None:
    room = CAPTURED_OUTPUT_BYTES_MAX - target.tell()
    if room <= 0:
        return
    target.write(source.read(min(size, room)))
    if size > room:
        target.write(CUT)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # closed by user code
