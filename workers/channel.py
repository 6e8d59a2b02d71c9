"""The child's sockets: a DEALER that the event loop can wait on. The one module with zmq."""

from collections import deque
from collections.abc import Callable

import zmq

from planaria.protocol.errors import ProtocolError
from planaria.protocol.limits import FRAME_BYTES_MAX

# A delivery holds several values that are each below the inline limit, a page of history one
# event beyond its size. Larger parts would close the connection without a word.
RECEIVED_BYTES_MAX = 16 * FRAME_BYTES_MAX
LINGER_MS = 200  # what was sent before the end still leaves; a dead supervisor delays nobody
CONNECT_MS = 10_000
_POLLIN = int(zmq.POLLIN)  # "and" of two flags makes a third one, in 2 µs
UNSENT_FRAMES_MAX = 1_024  # each is waited for by its sender long before


class Channel:
    """One connection to the supervisor, under an identity that nobody had before."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._unsent: deque[bytes] = deque()
        self._socket = socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.MAXMSGSIZE, RECEIVED_BYTES_MAX)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.SNDTIMEO, CONNECT_MS)
        socket.connect(endpoint)

    def fileno(self) -> int:
        """Returns the descriptor that becomes readable when `receive` may have something."""
        return int(self._socket.getsockopt(zmq.FD))

    def send_first(self, frame: bytes) -> None:
        """Sends a frame as soon as there is a connection.

        Raises:
            ProtocolError: there is none after ten seconds.
        """
        try:
            self._socket.send(frame)
        except zmq.Again as error:
            raise ProtocolError(message="the supervisor's socket can't be reached") from error

    def send(self, frame: bytes) -> None:
        """Sends a frame, or keeps it for the next call while the socket takes no more."""
        assert len(self._unsent) < UNSENT_FRAMES_MAX, "the supervisor takes nothing any more"
        self._unsent.append(frame)
        self.flush()

    def offer(self, frame: bytes) -> None:
        """Sends a frame unless the socket takes no more; then it is dropped."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            pass

    def flush(self) -> None:
        """Sends what is kept, as far as the socket takes it."""
        while self._unsent:
            try:
                self._socket.send(self._unsent[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._unsent.popleft()

    def drain(self, take: Callable[[bytes], None]) -> None:
        """Gives every frame that has come to `take`.

        The descriptor tells of changes only, so nothing may be left.
        """
        while self.has_frames():
            take(self._socket.recv_multipart(zmq.NOBLOCK)[-1])

    def has_frames(self) -> bool:
        """Says whether a frame has come; to be asked after each send, which swallows the news."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & _POLLIN)

    def close(self) -> None:
        """Closes the socket; what was sent still leaves within the linger time."""
        self._socket.close()


def open_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Returns the process's context; never made before a fork."""
    return zmq.Context()
