"""The links to children: who is who, what waits to be sent, and when a dead one has said its last.

A child is known by the token that it inherited; the kernel vouches for its pid. From its hello on
its link's identity stands for it, and ids in its messages decide nothing.
"""

import logging
import os
from collections.abc import Iterable

from planaria.protocol.limits import DRAIN_MS, FRAME_BYTES_MAX
from planaria.protocol.messages import Deliver, Heartbeat, Hello, Message, encode_frame

from .blobs import BlobStore
from .children import Exited, Launched
from .kernel_messages import KernelMessage, ProcessEnded, ProcessReady, ProcessSeen
from .outfit import put_context_away
from .sockets import Sockets

TOKEN_BYTES = 32
QUIET_US = 3_000  # after a death its link is read until it was still for this long

logger = logging.getLogger(__name__)


class Links:
    """Tokens, identities and outgoing messages of all children."""

    def __init__(self, sockets: Sockets, blobs: BlobStore) -> None:
        self._sockets = sockets
        self._blobs = blobs
        self._tokens: dict[str, str] = {}  # token -> process id
        self._launched: dict[str, Launched] = {}
        self._early: dict[str, tuple[bytes, Hello, int | None]] = {}  # hello before its Launched
        self._processes: dict[bytes, str] = {}  # identity -> process id
        self._identities: dict[str, bytes] = {}  # process id -> identity
        self._ending: dict[str, tuple[Exited, int, int]] = {}  # report, quiet and hard deadline
        self._outbox: dict[str, list[Message]] = {}

    def expect(self, process_id: str) -> bytes:
        """Returns the token with which a process that is launched now will prove itself."""
        token = os.urandom(TOKEN_BYTES)
        self._tokens[token.hex()] = process_id
        return token

    def find_process(self, identity: bytes) -> str | None:
        """Returns the process behind a link that has said hello."""
        return self._processes.get(identity)

    def take_launched(self, report: Launched) -> list[KernelMessage]:
        """Notes a process that exists; it may have said hello already."""
        self._launched[report.process_id] = report
        early = self._early.pop(report.process_id, None)
        return self.take_hello(*early) if early is not None else []

    def take_hello(
        self, identity: bytes, message: Hello, peer_pid: int | None
    ) -> list[KernelMessage]:
        """Binds a link to the process whose token it shows; anything else is silence."""
        process_id = self._tokens.get(message.token)
        if process_id is None:
            logger.warning("a hello with an unknown token from pid %s", peer_pid)
            return []
        launched = self._launched.get(process_id)
        if launched is None:
            self._early[process_id] = (identity, message, peer_pid)
            return []
        if peer_pid is not None and peer_pid != launched.pid:
            logger.warning("pid %s has the token of pid %s", peer_pid, launched.pid)
            return []
        if process_id in self._identities:
            return []  # repeated
        self._processes[identity] = process_id
        self._identities[process_id] = identity
        return [ProcessReady(process_id, launched.pid, launched.start_time)]

    def take_heartbeat(self, message: Heartbeat, peer_pid: int | None) -> list[KernelMessage]:
        """Returns the sign of life, if its sender is the process of the token."""
        process_id = self._tokens.get(message.token)
        launched = self._launched.get(process_id or "")
        if process_id is None or launched is None or peer_pid not in (None, launched.pid):
            return []
        return [ProcessSeen(process_id)]

    # -- drain, then fence -------------------------------------------------------------------

    def take_exited(self, report: Exited, mono: int) -> None:
        """Notes a death; what the process had sent is still to be read."""
        hard = mono + DRAIN_MS * 1_000
        self._ending[report.process_id] = (report, mono + QUIET_US, hard)

    def note_frame(self, process_id: str, mono: int) -> None:
        """Notes that a frame has come from a process; a dead one's link isn't still yet."""
        ending = self._ending.get(process_id)
        if ending is not None:
            report, _, hard = ending
            self._ending[process_id] = (report, mono + QUIET_US, hard)

    def finish_drains(self, mono: int) -> list[KernelMessage]:
        """Returns the ends of those dead processes whose link has been still."""
        messages: list[KernelMessage] = []
        for process_id, (report, quiet, hard) in list(self._ending.items()):
            if mono >= min(quiet, hard):
                self.forget(process_id)
                messages.append(ProcessEnded(process_id, report.exit_code, report.signal))
        return messages

    def next_due(self) -> int | None:
        """Returns the monotonic µs at which the next drain may be over."""
        return min((min(quiet, hard) for _, quiet, hard in self._ending.values()), default=None)

    def forget(self, process_id: str) -> None:
        """Drops everything of a process that is gone."""
        self._launched.pop(process_id, None)
        self._early.pop(process_id, None)
        self._ending.pop(process_id, None)
        self._outbox.pop(process_id, None)
        identity = self._identities.pop(process_id, None)
        if identity is not None:
            del self._processes[identity]
        for token in [t for t, p in self._tokens.items() if p == process_id]:
            del self._tokens[token]

    # -- out -----------------------------------------------------------------------------------

    def push(self, process_id: str, message: Message) -> None:
        """Puts a message into the round's frame for a process; without a link it is dropped."""
        if process_id in self._identities:
            self._outbox.setdefault(process_id, []).append(message)

    def flush(self) -> list[str]:
        """Sends a frame to each process that has messages; returns those whose link took none.

        Such a process doesn't read, or is gone. A lost delivery would never be asked for again,
        so the caller ends it, and its session goes on in another one.
        """
        stuck = [
            process_id
            for process_id, messages in self._outbox.items()
            if not self._send(self._identities[process_id], messages)
        ]
        self._outbox.clear()
        return stuck

    def _send(self, identity: bytes, messages: list[Message]) -> bool:
        frame = encode_frame(messages)
        if len(frame) <= FRAME_BYTES_MAX:
            return self._sockets.send_frame(identity, frame)
        return all([self._sockets.send_frame(identity, f) for f in self._split(messages)])

    def _split(self, messages: Iterable[Message]) -> list[bytes]:
        """Returns a frame for each message, with a context that is too large put away."""
        frames = []
        for message in messages:
            frame = encode_frame([message])
            if isinstance(message, Deliver) and len(frame) > FRAME_BYTES_MAX:
                put_context_away(message.session, self._blobs)
                frame = encode_frame([message])
            frames.append(frame)
        return frames
