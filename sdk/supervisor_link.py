"""The link of a client: it finds or starts the supervisor of a data directory, and asks it.

When its supervisor dies under it (SIGKILL, a crash), it starts another one and asks again: every
request may be repeated, and what is on disk counts.
"""

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from planaria.protocol.codec import Json, canonical_bytes, unpack
from planaria.protocol.errors import SupervisorUnavailableError
from planaria.protocol.limits import BLOB_BYTES_MAX, INLINE_BYTES_MAX

from .blobstore import BlobStore
from .connection import Connection
from .discovery import (
    GIVE_UP_SECONDS,
    find_directory,
    find_supervisor,
    reap_supervisors,
    start_supervisor,
)

RECONNECTS_MAX = 20  # in one request: a supervisor that dies so often is not there
DETACH_SECONDS = 1.0  # one that doesn't answer sees from the client's pidfd that it is gone
_PAUSE_SECONDS = 0.1


class SupervisorLink:
    """Asks the supervisor of one data directory, over as many of them as it takes."""

    def __init__(
        self, data_dir: str | os.PathLike[str] | None = None, *, start_if_missing: bool = True
    ) -> None:
        self.directory: Path = find_directory(data_dir)
        self._start_if_missing = start_if_missing
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def ask(
        self,
        operation: str,
        *,
        timeout: float | None = None,
        stop_fd: int | None = None,
        **arguments: Any,
    ) -> Any:
        """Returns the answer to an operation, over as many supervisors as it takes."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for attempt in range(RECONNECTS_MAX):
            connection = self._find_connection()
            try:
                if self._connection is None:
                    self._connection = connection
                    connection.ask("attach", pid=os.getpid())
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                return connection.ask(operation, timeout=left, stop_fd=stop_fd, **arguments)
            except SupervisorUnavailableError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
                self._drop()
                if attempt + 1 == RECONNECTS_MAX:
                    raise
                time.sleep(_PAUSE_SECONDS)
        raise AssertionError("the loop returns or raises")

    def _find_connection(self) -> Connection:
        if self._connection is not None:
            return self._connection
        found = find_supervisor(self.directory)
        if found is None and self._start_if_missing:
            found = start_supervisor(self.directory)
        if found is None:
            raise SupervisorUnavailableError(
                message=f"none runs for {str(self.directory)!r}; 'planaria up' starts one"
            )
        return found

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Lets go of the supervisor; one that was started for its clients ends with the last.

        That end is waited for, so that what follows finds neither processes nor a lock.
        """
        if self._connection is not None:
            try:
                answer = self._connection.ask("detach", timeout=DETACH_SECONDS)
                if answer["isEnding"]:
                    self._connection.wait_end(GIVE_UP_SECONDS)
            except SupervisorUnavailableError:
                pass
            finally:
                self._drop()
        reap_supervisors()

    @property
    def _modules(self) -> Path:
        return self.directory / "artifacts" / "modules"

    @property
    def _blobs(self) -> BlobStore:
        return BlobStore(self.directory / "artifacts" / "blobs")

    def _load(self, fields: dict[str, Any], name: str) -> Json:
        ref = fields.get(f"{name}Ref")
        if ref is None:
            return fields.get(name)
        return unpack(self._blobs.read(ref), bytes_max=BLOB_BYTES_MAX)

    def _store(self, name: str, value: Json) -> dict[str, Any]:
        """Returns a value as a field of a request: inline, or as the reference of its blob."""
        data = canonical_bytes(value)
        if len(data) > INLINE_BYTES_MAX:
            return {f"{name}Ref": self._blobs.write(data)}
        return {name: value}
