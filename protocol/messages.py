"""Messages between the supervisor and its peers: what a frame holds, checked field by field.

A frame is one msgpack part, a list of messages; each message is `[kind, body]`. Children send
Hello, Append, ReadHistory and Heartbeat, and get Deliver, Committed, Refused, HistoryPage, Settled
and Stop.
Clients send Request and get Reply. Ids in a body are compared with what the link was bound to at
Hello; they decide nothing by themselves.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgpack

from .codec import Json, pack, unpack
from .errors import ProtocolError
from .limits import FRAME_BYTES_MAX, FRAME_MESSAGES_MAX


@dataclass(frozen=True, slots=True)
class Hello:
    """A child's first message: the token that reached it by inheritance (64 hex digits)."""

    token: str
    pid: int


@dataclass(frozen=True, slots=True)
class Append:
    """Events that a session reports, `[type, payload]` each; `after` of its earlier ones are known.

    The n-th event that a session reports has the number n over all its incarnations, so a
    repeated message is recognised by `after` alone.
    """

    sessionId: str
    incarnation: int
    after: int
    events: list[Json]


@dataclass(frozen=True, slots=True)
class ReadHistory:
    """Asks for the session's committed events whose run sequence is over `after`."""

    sessionId: str
    incarnation: int
    after: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Shows life; sent by a thread of its own over a link of its own."""

    token: str


@dataclass(frozen=True, slots=True)
class ErrandDone:
    """A child has done an errand (see Deliver): `result`, or `error` {name, message}."""

    errandId: str
    result: dict[str, Json] | None
    error: dict[str, Json] | None


@dataclass(frozen=True, slots=True)
class Deliver:
    """Gives a session to a process: everything it needs to carry it (see `workers.session`).

    With an `errandId` it is an errand: something to be done without a session.
    """

    session: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Committed:
    """The first `upto` events that the session ever reported are on disk."""

    sessionId: str
    incarnation: int
    upto: int


@dataclass(frozen=True, slots=True)
class Refused:
    """An append was refused; nothing of it was recorded, and its sender must exit."""

    sessionId: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Stored event bodies, in the order of the log; `more` says that another page follows."""

    sessionId: str
    bodies: list[bytes]
    lastSequence: int
    more: bool


@dataclass(frozen=True, slots=True)
class Settled:
    """A call that the supervisor carries out (a sub-run) has ended: its event, as recorded."""

    sessionId: str
    incarnation: int
    kind: str
    payload: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Stop:
    """Asks the process to end: `cancel` and `timeout` end its session, the others put it away."""

    reason: str


@dataclass(frozen=True, slots=True)
class Request:
    """A client asks for `operation`; the reply has the same `id`."""

    id: int
    operation: str
    arguments: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer: `result`, or `error` in its wire form. `done` is false on mere progress."""

    id: int
    result: Json
    error: dict[str, Json] | None
    done: bool


FromChild = Hello | Append | ReadHistory | Heartbeat | ErrandDone
ToChild = Deliver | Committed | Refused | HistoryPage | Settled | Stop
Message = FromChild | ToChild | Request | Reply

_KINDS: dict[str, type[Any]] = {
    "hello": Hello,
    "append": Append,
    "read_history": ReadHistory,
    "heartbeat": Heartbeat,
    "errand_done": ErrandDone,
    "deliver": Deliver,
    "committed": Committed,
    "refused": Refused,
    "history_page": HistoryPage,
    "settled": Settled,
    "stop": Stop,
    "request": Request,
    "reply": Reply,
}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}
_FIELDS = {cls: tuple(f.name for f in dataclasses.fields(cls)) for cls in _NAMES}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "after": int,
    "errandId": str,
    "arguments": dict,
    "events": list,
    "id": int,
    "incarnation": int,
    "operation": str,
    "pid": int,
    "sessionId": str,
    "token": str,
}
_INTEGER_MAX = 1 << 53


def encode_frame(messages: Iterable[Message]) -> bytes:
    """Returns the frame that holds the messages."""
    return pack(
        [[_NAMES[type(m)], {name: getattr(m, name) for name in _FIELDS[type(m)]}] for m in messages]
    )


def decode_frame(frame: bytes) -> list[Message]:
    """Returns the messages of a frame from a child or client, each field checked.

    Raises:
        ProtocolError: for every other sequence of bytes.
    """
    listed = unpack(frame, bytes_max=FRAME_BYTES_MAX)
    if not isinstance(listed, list) or len(listed) > FRAME_MESSAGES_MAX:
        raise ProtocolError(message="a frame is a list of at most 4,096 messages")
    return [_read_message(item) for item in listed]


def decode_trusted(frame: bytes) -> list[Message]:
    """Returns the messages of a frame from the supervisor; its fields aren't checked."""
    return [_KINDS[kind](**body) for kind, body in msgpack.unpackb(frame)]


def _read_message(item: Json) -> Message:
    if not (isinstance(item, list) and len(item) == 2 and isinstance(item[1], dict)):
        raise ProtocolError(message="a message is a list of its kind and its body")
    kind, body = item
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ProtocolError(message=f"unknown message kind {str(kind)[:40]!r}")
    names = _FIELDS[cls]
    if body.keys() != set(names):
        raise ProtocolError(message=f"{kind} has the fields {', '.join(names)}")
    for name in names:
        value, expected = body.get(name), _TYPES.get(name, object)
        if not isinstance(value, expected) or (expected is int and not _is_count(value)):
            raise ProtocolError(message=f"{kind}.{name} is {type(value).__name__}")
    message: Message = cls(**body)
    return message


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _INTEGER_MAX
