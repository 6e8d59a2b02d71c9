"""Typed values: dumped by pydantic, loaded again, and refused unless that gives an equal value.

This one mechanism covers every type; pydantic alone would turn NaN into null, a tuple under Any
into a list and a subclass into its base without a word.
"""

from collections import deque
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import ErrorDetails, to_jsonable_python

from .codec import Json, canonical_bytes
from .errors import ValueRefusedError
from .json_paths import extend_path
from .limits import VALUE_DEPTH_MAX
from .typed_parts import find_difference, list_parts, name_type
from .values import VALUE_CONTAINERS_MAX, check_json

REASON_CHARS_MAX = 300  # a validator's own text may be long

# bytes in models follow the model's own configuration (UTF-8 unless it says base64).
_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
# What a serializer raises: pydantic's own errors are ValueErrors, user code raises the rest.
_DUMP_ERRORS = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
# Their texts quote the value.
_QUOTING_ERRORS = {
    "union_tag_invalid": "no alternative of the union has the tag that is given",
    "multiple_of": "the number is no multiple of what the type demands",
}

_LEAVES = frozenset({str, int, float, bool, bytes, type(None)})

Adapter: TypeAlias = TypeAdapter[Any]


class RoundTrip:
    """The two directions of one annotation that is more than plain JSON."""

    __slots__ = ("_adapter",)

    def __init__(self, annotation: object) -> None:
        self._adapter = make_adapter(annotation)

    def dump(self, value: Any, path: str) -> Json:
        """Returns the JSON form; sets are written in the order of their canonical bytes."""
        holds_sets = _survey(value, path)
        try:
            dumped = self._adapter.dump_python(
                value, mode="json", by_alias=True, round_trip=True, warnings="none"
            )
        except _DUMP_ERRORS as error:
            where, reason = _find_undumpable(value, path, error)
            raise ValueRefusedError(path=where, reason=reason) from None
        check_json(dumped, path=path)
        if holds_sets:
            # The order of a set of texts differs from process to process, and with it the hash.
            dumped = _order_sets(value, dumped)
        difference = find_difference(value, self._read_back(value, dumped, path), path)
        if difference is not None:
            raise ValueRefusedError(path=difference.path, reason=difference.reason)
        return dumped

    def load(self, json: Json, path: str) -> Any:
        """Returns the value of the declared type."""
        try:
            return self._adapter.validate_python(json, by_alias=True, by_name=True)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False, include_context=False)
            where, reason = _locate(details[0], json, path)
        # Outside of the except clause: pydantic's error quotes the value, and a chained
        # exception would carry it into every traceback.
        raise ValueRefusedError(path=where, reason=reason)

    def _read_back(self, value: Any, dumped: Json, path: str) -> Any:
        try:
            return self.load(dumped, path)
        except ValueRefusedError as error:
            where, reason = error.fields["path"], error.fields["reason"]
        reason = f"{name_type(value)} can't be read back as the declared type: {reason}"
        raise ValueRefusedError(path=where, reason=reason)


def make_adapter(annotation: Any) -> Adapter:
    """Returns pydantic's adapter of a type, with bytes as base64.

    Raises:
        ValueRefusedError: pydantic knows no JSON form for it, or a name in it is undefined.
    """
    try:
        try:
            return TypeAdapter(annotation, config=_CONFIG)
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            return TypeAdapter(annotation)  # a model or dataclass: its own configuration counts
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ValueRefusedError(
            path="$",
            reason=f"no JSON form is known for the type {name_annotation(annotation)}; use a "
            "pydantic model, a dataclass or built-in types, all of them defined at module level "
            f"(pydantic: {str(error).splitlines()[0]})",
        ) from error


def name_annotation(annotation: object) -> str:
    """Returns what errors call a type."""
    if isinstance(annotation, type) and not hasattr(annotation, "__origin__"):
        return annotation.__name__
    return repr(annotation)


def _survey(value: Any, path: str) -> bool:
    """Returns whether a set is inside; refuses too deep nesting and cycles before pydantic's turn.

    Iterative, so that no depth can exhaust the stack of the process.
    """
    pending = [(value, 0)]
    holds_sets = False
    nodes = 0
    while pending:
        item, depth = pending.pop()
        nodes += 1
        if depth > VALUE_DEPTH_MAX:
            reason = f"it is nested deeper than {VALUE_DEPTH_MAX} levels"
            raise ValueRefusedError(path=_find_deepest(value, path), reason=reason)
        if nodes > VALUE_CONTAINERS_MAX:
            reason = f"it has more than {VALUE_CONTAINERS_MAX:,} parts"
            raise ValueRefusedError(path=path, reason=reason)
        holds_sets = holds_sets or isinstance(item, set | frozenset)
        pending += [(part, depth + 1) for _, part in list_parts(item) if type(part) not in _LEAVES]
    return holds_sets


def _find_deepest(value: Any, path: str) -> str:
    """Returns the path of a part that is nested too deeply; such a part exists."""
    pending = [(value, path, 0)]
    while pending:
        item, where, depth = pending.pop()
        if depth > VALUE_DEPTH_MAX:
            return where
        for step, part in list_parts(item):
            inner = where if step is None else extend_path(where, step)
            if type(part) not in _LEAVES:
                pending.append((part, inner, depth + 1))
    return path


def _find_undumpable(value: Any, path: str, error: Exception) -> tuple[str, str]:
    """Returns the path of the first part that has no JSON form by itself, and why."""
    pending = [(value, path)]
    while pending:
        item, where = pending.pop()
        parts = list_parts(item)
        for step, part in reversed(parts):
            pending.append((part, where if step is None else extend_path(where, step)))
        if parts or type(item) in (list, dict, tuple, set, frozenset):
            continue
        try:
            to_jsonable_python(item)
        except _DUMP_ERRORS:
            hint = ""
            if isinstance(item, bytes | bytearray):
                hint = "; give the model ser_json_bytes='base64' and val_json_bytes='base64'"
            return where, f"{name_type(item)} has no JSON form under the declared type{hint}"
    return path, f"the serializer of {name_type(value)} raised {type(error).__name__}"


def _order_sets(value: Any, dumped: Json) -> Json:
    """Returns `dumped` with the items of each set in canonical order; the rest as it is."""
    if isinstance(dumped, list):
        if isinstance(value, set | frozenset | list | tuple | deque) and len(value) == len(dumped):
            dumped = [_order_sets(item, form) for item, form in zip(value, dumped, strict=True)]
        if isinstance(value, set | frozenset):
            dumped.sort(key=canonical_bytes)
        return dumped
    if not isinstance(dumped, dict):
        return dumped
    if isinstance(value, dict):
        if len(value) != len(dumped):
            return dumped  # two keys with one JSON form: the comparison refuses it
        pairs = zip(value.values(), dumped.items(), strict=True)
        return {key: _order_sets(item, form) for item, (key, form) in pairs}
    parts = {str(step): part for step, part in list_parts(value) if step is not None}
    aliases = _list_aliases(value)
    for name, part in parts.items():
        key = aliases.get(name, name)
        if key in dumped:
            dumped[key] = _order_sets(part, dumped[key])
    return dumped


def _list_aliases(value: Any) -> dict[str, str]:
    fields = type(value).model_fields if isinstance(value, BaseModel) else {}
    return {
        name: field.serialization_alias
        for name, field in fields.items()
        if field.serialization_alias is not None
    }


def _locate(detail: ErrorDetails, json: Json, path: str) -> tuple[str, str]:
    """Returns path and reason of a validation error.

    Its location also names union members and functions: those steps aren't in the value.
    """
    current: Any = json
    for step in detail["loc"]:
        if isinstance(current, dict) and isinstance(step, str) and step in current:
            current = current[step]
        elif isinstance(current, list) and isinstance(step, int) and 0 <= step < len(current):
            current = current[step]
        elif detail["type"] == "missing" and step == detail["loc"][-1]:
            current = None
        else:
            continue
        path = extend_path(path, step)
    reason = _QUOTING_ERRORS.get(detail["type"], detail["msg"])
    return path, reason[:REASON_CHARS_MAX]
