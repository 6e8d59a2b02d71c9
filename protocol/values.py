"""Values that cross a process boundary: JSON as it is, or a declared type that comes back equal.

Nothing is turned silently into something else: a value either can be recorded exactly, or is
refused with its path where it is produced. The text of a refusal never holds the value.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, TypeAlias

from .codec import Json
from .errors import ValueRefusedError
from .json_paths import extend_path
from .limits import BLOB_BYTES_MAX, CONTAINER_ITEMS_MAX, VALUE_DEPTH_MAX

if TYPE_CHECKING:
    from .round_trips import RoundTrip

INTEGER_MIN = -(2**63)  # what msgpack can hold
INTEGER_MAX = 2**64 - 1
# Each node takes at least one byte of msgpack, so more of them can't be stored. It ends the walk
# over a small value that holds the same list twice at each of 64 levels.
VALUE_NODES_MAX = BLOB_BYTES_MAX
VALUE_CONTAINERS_MAX = BLOB_BYTES_MAX // 16  # a list, map or model with something in it

Predicate: TypeAlias = Callable[[Any], bool]


def check_json(value: object, *, path: str = "$", depth_max: int = VALUE_DEPTH_MAX) -> None:
    """Refuses what is no JSON value or can't be recorded exactly; `path` is where `value` stands.

    Exact types only: a tuple, an enum member or another subclass would come back as its base.

    Raises:
        ValueRefusedError: with the path of the first such value, in document order.
    """
    if not _is_json(value, path, depth_max):
        raise _find_refused(value, path, depth_max)


class ValueType:
    """How values of one annotation are written as JSON and read back.

    No annotation, None, Any and object mean plain JSON. A float may be given as an equal int.
    """

    __slots__ = ("_annotation", "_fits", "_round_trip", "_schema")

    def __init__(self, annotation: object = inspect.Parameter.empty) -> None:
        """Raises ValueRefusedError when no JSON form is known for the type."""
        self._annotation = annotation
        self._fits = _make_predicate(annotation)
        self._round_trip: RoundTrip | None = None
        self._schema: dict[str, Any] | None = None
        if self._fits is None:
            self._round_trip = self._make_round_trip()

    def dump(self, value: Any, *, path: str = "$") -> Json:
        """Returns the JSON value from which `load` makes a value equal to `value`.

        A value that is JSON already is returned as it is, not copied.

        Raises:
            ValueRefusedError: with the path of what wouldn't come back equal.
        """
        if self._fits is not None and self._fits(value):
            check_json(value, path=path)
            return value
        return self._make_round_trip().dump(value, path)

    def load(self, json: Json, *, path: str = "$") -> Any:
        """Returns the typed value; for a type that is JSON already, `json` itself.

        Raises:
            ValueRefusedError: with the path of the first thing that doesn't fit the type.
        """
        check_json(json, path=path)
        if self._fits is not None and self._fits(json):
            return json
        return self._make_round_trip().load(json, path)

    def schema(self) -> dict[str, Any]:
        """Returns the schema of the type in the subset of schemas.py; not to be changed.

        Raises:
            ValueError: the type contains itself, or its schema is too large.
        """
        if self._schema is None:
            from .schemas import derive_schema

            self._schema = derive_schema(self._annotation)
        return self._schema

    def _make_round_trip(self) -> "RoundTrip":
        if self._round_trip is None:
            # Imported here: most tools return text or plain dicts, and pydantic takes 0.2 s.
            from .round_trips import RoundTrip

            self._round_trip = RoundTrip(self._annotation)
        return self._round_trip


def is_plain(annotation: object) -> bool:
    """Whether an annotation says nothing, so that any JSON value is meant."""
    return any(annotation is plain for plain in (inspect.Parameter.empty, None, Any, object))


def _is_json(value: object, path: str, depth_max: int) -> bool:
    """The quick answer, without paths: it is asked about every value that is recorded.

    Raises ValueRefusedError itself for the one reason that has no path inside: too many parts.
    """
    pending: list[tuple[Any, int]] = [([value], 0)]
    nodes = containers = 0
    while pending:
        container, depth = pending.pop()
        nodes += len(container)
        containers += 1
        if depth > depth_max or len(container) > CONTAINER_ITEMS_MAX:
            return False
        if nodes > VALUE_NODES_MAX or containers > VALUE_CONTAINERS_MAX:
            reason = (
                f"it has more than {VALUE_CONTAINERS_MAX:,} lists and maps or {VALUE_NODES_MAX:,} "
                "parts, each use of a shared one counted"
            )
            raise ValueRefusedError(path=path, reason=reason)
        if type(container) is dict:
            for key in container:
                if type(key) is not str or not (key.isascii() or _is_unicode(key)):
                    return False
            container = container.values()
        for item in container:
            kind = type(item)
            if kind is str:
                if not (item.isascii() or _is_unicode(item)):
                    return False
            elif kind is list or kind is dict:
                pending.append((item, depth + 1))
            elif kind is int:
                if not INTEGER_MIN <= item <= INTEGER_MAX:
                    return False
            elif kind is float:
                if not isfinite(item):
                    return False
            elif item is not None and kind is not bool:
                return False
    return True


def _find_refused(value: object, path: str, depth_max: int) -> ValueRefusedError:
    """Returns the refusal of the first bad value of one that `_is_json` said no to."""
    reason = _refuse_node(value)
    if reason is not None:
        return ValueRefusedError(path=path, reason=reason)
    open_: list[tuple[str, Iterator[tuple[Any, Any]]]] = [(path, _enter(value))]
    entered: dict[int, int] = {}  # id of a list or map -> the depth at which it was walked
    while open_:
        if len(open_) > depth_max:
            deepest = open_[-1][0]
            reason = f"lists and maps are nested deeper than {depth_max} levels"
            return ValueRefusedError(path=deepest, reason=reason)
        where, items = open_[-1]
        step, item = next(items, (None, None))
        if step is None:
            open_.pop()
            continue
        inner = extend_path(where, step)
        reason = _refuse_node(item)
        if reason is not None:
            return ValueRefusedError(path=inner, reason=reason)
        # A shared part is walked again only where it lies deeper: twice at each of 64 levels
        # it would otherwise never end.
        if type(item) in (list, dict) and entered.get(id(item), -1) < len(open_):
            entered[id(item)] = len(open_)
            open_.append((inner, _enter(item)))
    return ValueRefusedError(path=path, reason="it was changed while it was being recorded")


def _enter(value: Any) -> Iterator[tuple[Any, Any]]:
    if type(value) is dict:
        return iter(value.items())
    return iter(enumerate(value if type(value) is list else ()))


def _refuse_node(value: Any) -> str | None:
    """Returns why this one value is refused, whatever is inside; None if it isn't."""
    kind = type(value)
    if kind is str:
        return None if _is_unicode(value) else "a text with a lone surrogate has no UTF-8 form"
    if kind is int:
        fits = INTEGER_MIN <= value <= INTEGER_MAX
        return None if fits else "an integer outside -2**63..2**64-1; record it as text"
    if kind is float:
        if isfinite(value):
            return None
        return f"{'NaN' if isnan(value) else 'an infinity'} is no JSON value"
    if kind is list or kind is dict:
        if len(value) > CONTAINER_ITEMS_MAX:
            return f"it has {len(value):,} entries; a list or map holds {CONTAINER_ITEMS_MAX:,}"
        return _refuse_keys(value) if kind is dict else None
    if value is None or kind is bool:
        return None
    return f"{kind.__name__} is no JSON value; declare its type in the annotation, or convert it"


def _refuse_keys(value: dict[Any, Any]) -> str | None:
    for key in value:
        if type(key) is not str:
            kind = type(key).__name__
            return f"a key of type {kind}; declare the type (such as dict[{kind}, ...]) or use str"
        if not _is_unicode(key):
            return "a key with a lone surrogate has no UTF-8 form"
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _make_predicate(annotation: Any) -> Predicate | None:
    """Returns a test for values that are their own JSON form under this annotation.

    None when only pydantic can tell: then each value is dumped, loaded and compared.
    """
    if is_plain(annotation):
        return lambda value: True
    if annotation in (str, int, float, bool, list, dict, types.NoneType):
        return lambda value: type(value) is annotation
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        choices = {(type(choice), choice) for choice in arguments}
        if not all(kind in (str, int, bool, types.NoneType) for kind, _ in choices):
            return None
        scalars = (str, int, bool, types.NoneType)
        return lambda value: type(value) in scalars and (type(value), value) in choices
    inner = [_make_predicate(types.NoneType if part is None else part) for part in arguments]
    found = [predicate for predicate in inner if predicate is not None]
    if len(found) < len(inner) or not found:
        return None
    if origin in (typing.Union, types.UnionType):
        return lambda value: any(predicate(value) for predicate in found)
    if origin is list:
        item = found[0]
        return lambda value: type(value) is list and all(map(item, value))
    if origin is dict and arguments[0] is str:
        member = found[1]
        return lambda value: type(value) is dict and all(map(member, value.values()))
    return None
