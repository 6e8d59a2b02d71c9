"""Whether a replay asks for what was recorded, and if not, where the two differ first."""

from typing import NoReturn

from planaria.protocol.codec import Json, canonical_bytes, hash_bytes
from planaria.protocol.errors import ReplayMismatchError
from planaria.protocol.payloads import Ref, read_field

from .records import Record

_SHOWN_CHARS_MAX = 80
_NOUNS = {"tool_call": "tool", "operation": "operation", "model": "a model request"}


def check_call(
    session_id: str, position: str, record: Record, kind: str, name: str | None = None
) -> None:
    """Refuses another kind of call, another tool or another operation than the recorded one.

    Raises:
        ReplayMismatchError: it is another.
    """
    known = record.started.get("toolName", record.started.get("name"))
    if record.kind != kind or known != name:
        _refuse(session_id, position, _describe(record.kind, known), _describe(kind, name))


def is_same(recorded: Json | Ref, asked: Json) -> bool:
    """Says whether a value is the recorded one, byte for byte; a blob is not loaded for it."""
    data = canonical_bytes(asked)
    if isinstance(recorded, Ref):
        return bool(recorded.fields["sha256"] == hash_bytes(data))
    return canonical_bytes(recorded) == data


def read_args(record: Record) -> Json | Ref:
    """Returns the arguments of a recorded tool call."""
    return read_field(record.started, "args")


def refuse_args(session_id: str, position: str, tool_name: str, difference: str) -> NoReturn:
    """Raises ReplayMismatchError for other arguments."""
    recorded = f"tool {tool_name!r} with other arguments"
    _refuse(session_id, position, recorded, f"{tool_name!r} where {difference}")


def describe_difference(recorded: Json, asked: Json, *, sensitive: bool) -> str:
    """Returns the first place at which two values differ, with both values unless sensitive."""
    path, before, now = _find_difference(recorded, asked, "$")
    return f"{path} differs" if sensitive else f"{path} was {before} and is {now}"


def _refuse(session_id: str, position: str, recorded: str, asked: str) -> NoReturn:
    raise ReplayMismatchError(
        session_id=session_id, position=position, recorded=recorded, asked=asked
    )


def _describe(kind: str, name: str | None) -> str:
    return _NOUNS[kind] if name is None else f"{_NOUNS[kind]} {name!r}"


def _find_difference(recorded: Json, asked: Json, path: str) -> tuple[str, str, str]:
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for key in sorted(recorded.keys() | asked.keys()):
            where = f"{path}.{key}"
            if key not in recorded:
                return where, "missing", _show(asked[key])
            if key not in asked:
                return where, _show(recorded[key]), "missing"
            if canonical_bytes(recorded[key]) != canonical_bytes(asked[key]):
                return _find_difference(recorded[key], asked[key], where)
    if isinstance(recorded, list) and isinstance(asked, list):
        for index, (one, other) in enumerate(zip(recorded, asked, strict=False)):
            if canonical_bytes(one) != canonical_bytes(other):
                return _find_difference(one, other, f"{path}[{index}]")
        return path, f"{len(recorded)} items", f"{len(asked)} items"
    return path, _show(recorded), _show(asked)


def _show(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 1] + "…"
