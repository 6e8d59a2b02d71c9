"""Canonical msgpack, hashes, and the decoder for bytes from outside."""

import math
import random
from typing import Any

import msgpack
import pytest

from planaria.protocol.codec import (
    ENVELOPE_DEPTH,
    canonical_bytes,
    check_depth,
    hash_bytes,
    hash_jcs,
    hash_value,
    pack,
    sort_keys,
    unpack,
)
from planaria.protocol.errors import ProtocolError
from planaria.protocol.limits import CONTAINER_ITEMS_MAX, FRAME_BYTES_MAX, VALUE_DEPTH_MAX

VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**64 - 1,
    -(2**63),
    1.5,
    -0.0,
    1e300,
    "",
    "ü\0😀",
    [],
    {},
    [[], {}, [None]],
    {"b": 1, "a": {"d": [1, {"f": 1, "e": 2}], "c": None}},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_value_comes_back_from_its_bytes(value: Any) -> None:
    for data in (canonical_bytes(value), pack(value)):
        back = unpack(data)
        assert back == value and type(back) is type(value)


def test_canonical_bytes_and_hashes_are_golden() -> None:
    """Input, argument and event hashes in old logs are made of these."""
    value = VALUES[-1]
    assert canonical_bytes(value).hex() == "82a16182a163c0a164920182a16502a16601a16201"
    assert hash_value({"a": 1}) == hash_bytes(bytes.fromhex("81a16101"))
    empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert hash_bytes(b"") == empty


def test_hash_of_canonical_json_is_that_of_the_standard_form() -> None:
    assert hash_jcs({"b": [1.0, "ü"], "a": None}) == hash_bytes('{"a":null,"b":[1,"ü"]}'.encode())


def test_keys_are_sorted_at_every_depth_and_the_value_is_left_as_it_was() -> None:
    draw = random.Random(7)

    def make(depth: int) -> Any:
        if depth == 0:
            return draw.choice((1, "x", None))
        keys = draw.sample("abcdefgh", 4)
        return draw.choice(({key: make(depth - 1) for key in keys}, [make(depth - 1)] * 2))

    def turn(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turn(item) for key, item in reversed(value.items())}
        return [turn(item) for item in value] if isinstance(value, list) else value

    for _ in range(200):
        value = make(4)
        before = repr(value)
        assert canonical_bytes(value) == canonical_bytes(turn(value))
        assert sort_keys(value) == value and repr(value) == before


def test_tuple_packs_as_a_list() -> None:
    assert canonical_bytes((1, (2,))) == canonical_bytes([1, [2]])


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


def test_depth_of_a_value_is_limited_at_its_exact_edge() -> None:
    check_depth(nested(VALUE_DEPTH_MAX))
    with pytest.raises(ProtocolError, match="nested deeper than 64 levels"):
        check_depth(nested(VALUE_DEPTH_MAX + 1))
    deepest = VALUE_DEPTH_MAX + ENVELOPE_DEPTH
    assert unpack(pack(nested(deepest))) == nested(deepest)
    with pytest.raises(ProtocolError, match="nested deeper"):
        unpack(pack(nested(deepest + 1)))


@pytest.mark.parametrize("depth", [500, 1_024, 10_000, 300_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a"])
def test_hostile_nesting_is_refused_without_recursion(depth: int, opening: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(opening * depth + b"\xc0")


@pytest.mark.parametrize(
    "value",
    [b"x", (1,), {1: 2}, {None: 1}, {"a": {b"k": 1}}, {1, 2}, object(), math.nan, {"a": -math.inf}],
)
def test_what_is_no_json_value_is_refused(value: Any) -> None:
    with pytest.raises(ProtocolError):
        check_depth([value])


BAD: dict[str, bytes] = {
    "nothing": b"",
    "an unused byte": b"\xc1",
    "trailing bytes": pack(1) + b"\x00",
    "bytes": msgpack.packb(b"x"),
    "bytes inside": msgpack.packb({"a": [b"x"]}),
    "a key of bytes": msgpack.packb({b"a": 1}),
    "a key that is a number": msgpack.packb({1: 1}),
    "a key that is a list": b"\x81\x91\x01\x01",
    "an extension": msgpack.packb(msgpack.ExtType(1, b"")),
    "a timestamp": b"\xd6\xff\x00\x00\x00\x00",
    "not a number": pack([1.5, math.nan]),
    "infinity beside a list": pack({"a": math.inf, "b": [1]}),
    "no UTF-8": b"\xa1\xff",
    "a surrogate": b"\xa3\xed\xa0\x80",
    "a list that is too long": pack([None] * (CONTAINER_ITEMS_MAX + 1)),
    "a map that is too long": pack({str(n): None for n in range(CONTAINER_ITEMS_MAX + 1)}),
    "a list of four billion": b"\xdd\xff\xff\xff\xff",
    "a text of four billion": b"\xdb\xff\xff\xff\xff",
}


@pytest.mark.parametrize("name", BAD)
def test_bytes_that_are_no_json_value_are_a_protocol_error(name: str) -> None:
    with pytest.raises(ProtocolError):
        unpack(BAD[name])


def test_longest_list_and_largest_frame_are_read_and_no_larger_ones() -> None:
    assert len(unpack(pack([0] * CONTAINER_ITEMS_MAX))) == CONTAINER_ITEMS_MAX
    text = "x" * (FRAME_BYTES_MAX - 5)
    assert unpack(pack(text)) == text
    with pytest.raises(ProtocolError, match="at most"):
        unpack(pack(text + "x"))
    assert unpack(pack(text + "x"), bytes_max=FRAME_BYTES_MAX + 1) == text + "x"


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_every_truncation_is_a_protocol_error(value: Any) -> None:
    data = pack(value)
    for length in range(len(data)):
        with pytest.raises(ProtocolError):
            unpack(data[:length])


def test_random_bytes_give_a_json_value_or_a_protocol_error() -> None:
    seed = 41
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(20_000):
        data = draw.randbytes(draw.randint(1, 12))
        try:
            value = unpack(data)
        except ProtocolError:
            continue
        check_depth(value)
