"""The supervisor's socket: one ROUTER over ipc, for children and clients. The only zmq here.

Hostile or broken bytes end in an error reply or in silence and a line in the log, never in an
exception that leaves `receive`. Peers can't choose their identity: one that doesn't begin with the
zero byte of those that ROUTER makes itself is ignored, so nobody can take over another's link.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import zmq

from planaria.protocol.errors import ProtocolError, error_to_wire
from planaria.protocol.limits import FRAME_BYTES_MAX
from planaria.protocol.messages import Message, Reply, decode_frame, encode_frame

POLLIN = zmq.POLLIN
Poller = zmq.Poller
FRAMES_PER_ROUND_MAX = 1_024  # then what has come is committed, however much more is there
QUEUE_FRAMES_MAX = 10_000  # per peer; a peer that doesn't read loses frames and asks again
LINGER_MS = 200

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Received:
    """The messages of one frame, who sent them, and the pid that the kernel vouches for."""

    identity: bytes
    peer_pid: int | None
    messages: list[Message]


class Sockets:
    """Binds on construction; `fd` is for a poller, and edge-triggered: drain until None."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)  # the lock is held: a socket here is a dead one's
        self._path = path
        self._context = zmq.Context(io_threads=1)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        self._router.setsockopt(zmq.LINGER, LINGER_MS)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.SNDHWM, QUEUE_FRAMES_MAX)
        self._router.setsockopt(zmq.RCVHWM, QUEUE_FRAMES_MAX)
        self._router.bind(self.endpoint)
        path.chmod(0o600)

    @property
    def endpoint(self) -> str:
        """Returns where peers connect."""
        return f"ipc://{self._path}"

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """Returns the socket, for the poller only."""
        return self._router

    def receive(self) -> list[Received]:
        """Returns what has come, at most FRAMES_PER_ROUND_MAX frames; never waits, never raises."""
        received: list[Received] = []
        for _ in range(FRAMES_PER_ROUND_MAX):
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            except zmq.ZMQError as error:
                logger.warning("a frame was lost: %s", error)
                break
            identity = parts[0].bytes
            if len(parts) != 2 or not identity.startswith(b"\x00"):
                self._refuse(identity, f"{len(parts) - 1} parts; a frame has one")
                continue
            try:
                messages = decode_frame(parts[1].bytes)
            except ProtocolError as error:
                self._refuse(identity, str(error))
                continue
            received.append(Received(identity, _peer_pid(parts[1]), messages))
        return received

    def send(self, identity: bytes, messages: Iterable[Message]) -> bool:
        """Sends one frame without waiting; says whether the link took it."""
        return self.send_frame(identity, encode_frame(messages))

    def send_frame(self, identity: bytes, frame: bytes) -> bool:
        """Sends a frame that is already encoded."""
        try:
            self._router.send_multipart([identity, frame], zmq.NOBLOCK)
        except zmq.ZMQError:
            # EAGAIN: it doesn't read; EHOSTUNREACH: it is gone. Nothing depends on delivery.
            return False
        return True

    def close(self) -> None:
        """Closes the socket and removes its file."""
        self._router.close()
        self._context.term()
        self._path.unlink(missing_ok=True)

    def _refuse(self, identity: bytes, reason: str) -> None:
        logger.warning("a frame from %s was refused: %s", identity.hex(), reason)
        error = error_to_wire(ProtocolError(message=f"the frame was refused: {reason}"))
        self.send(identity, [Reply(0, None, error, True)])


def _peer_pid(frame: zmq.Frame) -> int | None:
    """Returns the sender's pid from the kernel's credentials of the connection.

    Source: libzmq's metadata property "Peer-Address", which over ipc is `localhost:uid:gid:pid`.
    """
    try:
        address = str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return None
    last = address.rsplit(":", 1)[-1]
    return int(last) if last.isdigit() else None
