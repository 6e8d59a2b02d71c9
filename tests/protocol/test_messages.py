"""Frames: golden bytes of each message, and everything that is no frame is refused as such."""

import dataclasses
import random
from typing import Any

import msgpack
import pytest

from planaria.protocol.errors import ProtocolError
from planaria.protocol.limits import FRAME_BYTES_MAX, FRAME_MESSAGES_MAX
from planaria.protocol.messages import (
    Append,
    Committed,
    Deliver,
    ErrandDone,
    Heartbeat,
    Hello,
    HistoryPage,
    Message,
    ReadHistory,
    Refused,
    Reply,
    Request,
    Settled,
    Stop,
    decode_frame,
    decode_trusted,
    encode_frame,
)

TOKEN = "ab" * 4
# Changing one of these means that a supervisor and a child or client of two versions don't
# understand each other: it needs a new protocol version and a line in the changelog.
GOLDEN: list[tuple[Message, str]] = [
    (Hello(TOKEN, 4242), "9192a568656c6c6f82a5746f6b656ea86162616261626162a3706964cd1092"),
    (
        Append("hs_1", 2, 7, [["harness.warning", {"text": "ü"}]]),
        "9192a6617070656e6484a973657373696f6e4964a468735f31ab696e6361726e6174696f6e02a5616674657207"
        "a66576656e74739192af6861726e6573732e7761726e696e6781a474657874a2c3bc",
    ),
    (
        ReadHistory("hs_1", 2, 9),
        "9192ac726561645f686973746f727983a973657373696f6e4964a468735f31ab696e6361726e6174696f6e02"
        "a5616674657209",
    ),
    (Heartbeat(TOKEN), "9192a968656172746265617481a5746f6b656ea86162616261626162"),
    (
        ErrandDone("er_1", {"v": None}, None),
        "9192ab657272616e645f646f6e6583a8657272616e644964a465725f31a6726573756c7481a176c0a5657272"
        "6f72c0",
    ),
    (
        Deliver({"sessionId": "hs_1", "context": {"v": None}}),
        "9192a764656c6976657281a773657373696f6e82a973657373696f6e4964a468735f31a7636f6e74657874"
        "81a176c0",
    ),
    (
        Committed("hs_1", 2, 8),
        "9192a9636f6d6d697474656483a973657373696f6e4964a468735f31ab696e6361726e6174696f6e02a4"
        "7570746f08",
    ),
    (
        Refused("hs_1", "protocol", "why"),
        "9192a77265667573656483a973657373696f6e4964a468735f31a4636f6465a870726f746f636f6ca76d65"
        "7373616765a3776879",
    ),
    (
        HistoryPage("hs_1", [b"\x01\x02"], 12, True),
        "9192ac686973746f72795f7061676584a973657373696f6e4964a468735f31a6626f6469657391c4020102"
        "ac6c61737453657175656e63650ca46d6f7265c3",
    ),
    (
        Settled("hs_1", 2, "harness.tool_call.succeeded", {"callId": "call_1"}),
        "9192a7736574746c656484a973657373696f6e4964a468735f31ab696e6361726e6174696f6e02a46b696e64bb"
        "6861726e6573732e746f6f6c5f63616c6c2e737563636565646564a77061796c6f616481a663616c6c4964a663"
        "616c6c5f31",
    ),
    (Stop("cancel"), "9192a473746f7081a6726561736f6ea663616e63656c"),
    (
        Request(3, "get_run", {"runId": "run_1"}),
        "9192a77265717565737483a2696403a96f7065726174696f6ea76765745f72756ea9617267756d656e7473"
        "81a572756e4964a572756e5f31",
    ),
    (
        Reply(3, {"a": [1, 2.5]}, None, True),
        "9192a57265706c7984a2696403a6726573756c7481a1619201cb4004000000000000a56572726f72c0a464"
        "6f6e65c3",
    ),
]
SENT_UP = [message for message, _ in GOLDEN if type(message) is not HistoryPage]
CHECKED = [Hello(TOKEN, 1), GOLDEN[1][0], GOLDEN[2][0], Heartbeat(TOKEN), Request(7, "ping", {})]


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda v: type(v).__name__)
def test_message_has_its_golden_bytes_and_comes_back(message: Message, golden: str) -> None:
    assert encode_frame([message]).hex() == golden
    assert decode_trusted(bytes.fromhex(golden)) == [message]


def test_every_message_has_golden_bytes() -> None:
    named = {type(message) for message, _ in GOLDEN}

    assert named == set(Message.__args__)


@pytest.mark.parametrize("message", SENT_UP, ids=lambda v: type(v).__name__)
def test_checked_decoding_gives_the_same_message(message: Message) -> None:
    assert decode_frame(encode_frame([message, message])) == [message, message]


def test_frame_of_many_messages_keeps_their_order() -> None:
    messages = [Request(number, "ping", {}) for number in range(FRAME_MESSAGES_MAX)]

    assert decode_frame(encode_frame(messages)) == messages
    assert decode_frame(encode_frame([])) == []


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "one byte that is never used": b"\xc1",
    "a number": msgpack.packb(5),
    "a text": msgpack.packb("hello"),
    "a map": msgpack.packb({}),
    "two values": msgpack.packb([]) * 2,
    "nested 80 deep": nested(80),
    "nested 10,000 deep": nested(10_000),
    "maps nested 10,000 deep": b"\x81\xa1a" * 10_000 + b"\xc0",
    "a huge announced list": b"\xdd\xff\xff\xff\xff",
    "a huge announced map": b"\xdf\xff\xff\xff\xff",
    "a huge announced text": b"\xdb\xff\xff\xff\xff",
    "an announced list of 65,537": b"\xdd\x00\x01\x00\x01" + b"\xc0" * 65_537,
    "an extension type": msgpack.packb([["hello", msgpack.ExtType(5, b"x")]]),
    "a timestamp": b"\x91\xd6\xff\x00\x00\x00\x00",
    "text that is no UTF-8": b"\x92\xa2\xff\xfe\x80",
    "a frame that is too large": msgpack.packb([["append", "x" * FRAME_BYTES_MAX]]),
    "too many messages": msgpack.packb([["heartbeat", {"token": "x"}]] * (FRAME_MESSAGES_MAX + 1)),
    "a message that is no list": msgpack.packb([{"hello": 1}]),
    "a message without a body": msgpack.packb([["hello"]]),
    "a message of three": msgpack.packb([["hello", {}, 1]]),
    "a body that is no map": msgpack.packb([["hello", []]]),
    "an unknown kind": msgpack.packb([["shutdown", {}]]),
    "a kind that is no text": msgpack.packb([[["hello"], {}]]),
    "a kind that is a number": msgpack.packb([[1, {}]]),
    "a kind that is a class": msgpack.packb([["Hello", {"token": "x", "pid": 1}]]),
    "a body key that is no text": msgpack.packb([["hello", {1: "x", "pid": 1}]]),
    "a body key that is bytes": msgpack.packb([["hello", {b"token": "x", "pid": 1}]]),
    "bytes as a field": msgpack.packb([["hello", {"token": b"x", "pid": 1}]]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_frame_is_a_protocol_error(name: str) -> None:
    with pytest.raises(ProtocolError):
        decode_frame(MALFORMED[name])


@pytest.mark.parametrize("message", [m for m, _ in GOLDEN], ids=lambda v: type(v).__name__)
def test_truncated_frame_is_a_protocol_error_at_every_length(message: Message) -> None:
    frame = encode_frame([message])
    for length in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_frame(frame[:length])


@pytest.mark.parametrize("message", SENT_UP, ids=lambda v: type(v).__name__)
def test_message_with_other_fields_is_a_protocol_error(message: Message) -> None:
    kind, body = msgpack.unpackb(encode_frame([message]))[0]
    for name in body:
        rest = {key: value for key, value in body.items() if key != name}
        for wrong in (rest, {**rest, "other": body[name]}, {**body, "other": 1}, {}):
            with pytest.raises(ProtocolError):
                decode_frame(msgpack.packb([[kind, wrong]]))


@pytest.mark.parametrize("message", CHECKED, ids=lambda v: type(v).__name__)
def test_field_of_a_wrong_type_is_a_protocol_error(message: Message) -> None:
    kind, body = msgpack.unpackb(encode_frame([message]))[0]
    for field in dataclasses.fields(message):
        right = type(body[field.name])
        values: list[Any] = [None, True, 1.5, "x", [], {}, -1, 2**53 + 1]
        for wrong in values:
            if type(wrong) is right and right is not int:
                continue
            with pytest.raises(ProtocolError):
                decode_frame(msgpack.packb([[kind, {**body, field.name: wrong}]]))


def test_random_bytes_give_messages_or_a_protocol_error() -> None:
    seed = 20_261_130
    print("seed", seed)
    draw = random.Random(seed)
    frames = [encode_frame([message]) for message, _ in GOLDEN]
    for _ in range(4_000):
        frame = bytearray(draw.choice(frames))
        for _ in range(draw.randint(1, 4)):
            frame[draw.randrange(len(frame))] = draw.randrange(256)
        try:
            messages = decode_frame(bytes(frame))
        except ProtocolError:
            continue
        assert all(isinstance(message, Message) for message in messages)
