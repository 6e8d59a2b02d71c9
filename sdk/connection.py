"""The client's link to a supervisor: one request at a time, answered or asked again."""

import os
import select
import time
from typing import Any

import zmq

from planaria.protocol.errors import SupervisorUnavailableError, UsageError, error_from_wire
from planaria.protocol.limits import FRAME_BYTES_MAX
from planaria.protocol.messages import Reply, Request, decode_trusted, encode_frame

ASK_AGAIN_SECONDS = 5.0  # a lost frame is asked for again; every operation may be repeated
REPLY_BYTES_MAX = 256 << 20


class WaitAbandonedError(Exception):
    """The caller has stopped to wait for the answer; what was asked for goes on."""


class Connection:
    """A DEALER to the supervisor whose socket and pid are given."""

    def __init__(self, socket_path: str, supervisor_pid: int) -> None:
        self.supervisor_pid = supervisor_pid
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, REPLY_BYTES_MAX)
        self._socket.connect(f"ipc://{socket_path}")
        self._number = 0
        try:
            self._pidfd = os.pidfd_open(supervisor_pid)
        except OSError as error:
            self.close()
            raise SupervisorUnavailableError(message="its process is gone") from error
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._pidfd, zmq.POLLIN)

    def ask(
        self,
        operation: str,
        *,
        timeout: float | None = None,
        stop_fd: int | None = None,
        **arguments: Any,
    ) -> Any:
        """Returns the answer to an operation.

        Raises:
            SupervisorUnavailableError: its process ended, or `timeout` seconds have passed.
            WaitAbandonedError: `stop_fd` became readable, which another thread can bring about.
            PlanariaError: what the supervisor answered.
        """
        if stop_fd is None:
            return self._ask(operation, timeout, arguments)
        self._poller.register(stop_fd, zmq.POLLIN)
        try:
            return self._ask(operation, timeout, arguments, stop_fd)
        finally:
            self._poller.unregister(stop_fd)

    def _ask(
        self,
        operation: str,
        timeout: float | None,
        arguments: dict[str, Any],
        stop_fd: int | None = None,
    ) -> Any:
        self._number += 1
        frame = encode_frame([Request(self._number, operation, arguments)])
        if len(frame) > FRAME_BYTES_MAX:  # it would be dropped unread, and asked again for ever
            raise UsageError(
                message=f"the request {operation!r} has {len(frame):,} bytes; at most "
                f"{FRAME_BYTES_MAX:,} are taken. A definition is in it with all that it may start: "
                "make it smaller"
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        ask_at = 0.0
        while True:
            if time.monotonic() >= ask_at:
                self._socket.send(frame)
                ask_at = time.monotonic() + ASK_AGAIN_SECONDS
            wait = ask_at if deadline is None else min(ask_at, deadline)
            ready = dict(self._poller.poll(max(0, int((wait - time.monotonic()) * 1000)) + 1))
            if stop_fd in ready:
                raise WaitAbandonedError
            if self._socket in ready:
                reply = self._read_reply()
                if reply is not None:
                    if reply.error is not None:
                        raise error_from_wire(reply.error)
                    return reply.result
            elif self._pidfd in ready:
                raise SupervisorUnavailableError(message="its process ended while it was asked")
            if deadline is not None and time.monotonic() >= deadline:
                raise SupervisorUnavailableError(
                    message=f"no answer to {operation!r} within {timeout} s"
                )

    def _read_reply(self) -> Reply | None:
        for message in decode_trusted(self._socket.recv()):
            if isinstance(message, Reply) and message.id in (self._number, 0):
                return message
        return None

    def wait_end(self, seconds: float) -> bool:
        """Says whether the supervisor's process has ended within a time."""
        ready, _, _ = select.select([self._pidfd], [], [], seconds)
        return bool(ready)

    def close(self) -> None:
        """Closes the link."""
        self._socket.close()
        self._context.term()
        if hasattr(self, "_pidfd"):
            os.close(self._pidfd)
            del self._pidfd
