"""The parts of typed Python values, and where two such values differ.

Stricter than `==`: 1, 1.0 and True differ, so do Decimal("1.1") and Decimal("1.10"), 0.0 and
-0.0; datetimes agree when their instant and their offset do, whatever their time zone objects.
"""

import dataclasses
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import datetime, time
from decimal import Decimal
from math import copysign, isnan
from typing import Any, TypeAlias

from pydantic import BaseModel, RootModel

from .json_paths import extend_path

Step: TypeAlias = str | int | None  # None: the part has the path of the whole


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the value that came back is another, and in what; without the values."""

    path: str
    reason: str


def list_parts(value: Any) -> list[tuple[Step, Any]]:
    """Returns the values inside of a container, model or dataclass, each with its step."""
    if isinstance(value, dict):
        return [(name_key(key), item) for key, item in value.items()]
    if isinstance(value, list | tuple | deque):
        return list(enumerate(value))
    if isinstance(value, set | frozenset):
        return [(None, item) for item in value]
    if isinstance(value, RootModel):
        return [(None, value.__dict__.get("root"))]
    if isinstance(value, BaseModel):
        names = type(value).model_fields
        extra = getattr(value, "__pydantic_extra__", None) or {}
        found: list[tuple[Step, Any]] = [
            (name, value.__dict__[name]) for name in names if name in value.__dict__
        ]
        return found + list(extra.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names_ = [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name)) for name in names_ if hasattr(value, name)]
    return []


def name_key(key: Any) -> str:
    """Returns a map's key as a path shows it."""
    if isinstance(key, str | int | float):
        return str(key)
    return f"<{type(key).__name__}>"


def name_type(value: Any) -> str:
    """Returns what errors call the type of a value."""
    return type(value).__name__


def find_difference(old: Any, new: Any, path: str) -> Difference | None:
    """Returns the first difference between a value and the one that came back; None if equal.

    Recursive: the caller has made sure that `old` is at most 64 levels deep.
    """
    if old is new:
        return None
    if type(old) is not type(new):
        if type(old) is int and type(new) is float and old == new:
            return None  # PEP 484: an int is acceptable where a float is declared
        reason = f"{name_type(old)} would come back as {name_type(new)}; declare its type"
        return Difference(path, reason)
    if isinstance(old, dict):
        return _compare_maps(old, new, path)
    if isinstance(old, set | frozenset):
        return _compare_sets(old, new, path)
    if isinstance(old, BaseModel):
        private = old.__pydantic_private__ or {}
        if private != (new.__pydantic_private__ or {}):
            return Difference(path, f"private attributes of {name_type(old)} aren't recorded")
    parts, others = list_parts(old), list_parts(new)
    if not parts and not others:
        return None if _equals(old, new) else _differ(path, old)
    return _compare_parts(parts, others, old, path)


def _compare_parts(
    parts: list[tuple[Step, Any]], others: list[tuple[Step, Any]], old: Any, path: str
) -> Difference | None:
    if len(parts) != len(others):
        return _differ(path, old)
    for (step, part), (other_step, other) in zip(parts, others, strict=True):
        inner = path if step is None else extend_path(path, step)
        if step != other_step:
            return _differ(inner, old)
        difference = find_difference(part, other, inner)
        if difference is not None:
            return difference
    return None


def _compare_maps(old: dict[Any, Any], new: dict[Any, Any], path: str) -> Difference | None:
    if len(old) != len(new):
        return Difference(path, "two of its keys have the same JSON form, or some are lost")
    if isinstance(old, OrderedDict) and list(map(str, old)) != sorted(map(str, old)):
        return Difference(path, "maps are recorded in the order of their keys; use a list of pairs")
    keys = {key: key for key in new}
    for key, item in old.items():
        inner = extend_path(path, name_key(key))
        if key not in keys:
            return Difference(inner, f"its key of type {name_type(key)} would come back as another")
        difference = find_difference(key, keys[key], inner) or find_difference(
            item, new[key], inner
        )
        if difference is not None:
            return difference
    return None


def _compare_sets(
    old: set[Any] | frozenset[Any], new: set[Any] | frozenset[Any], path: str
) -> Difference | None:
    if len(old) != len(new):
        return _differ(path, old)
    found = {item: item for item in new}
    for item in old:
        # An aware datetime in a gap of its zone equals none of another zone: refused here.
        if item not in found:
            return _differ(path, item)
        difference = find_difference(item, found[item], path)
        if difference is not None:
            return difference
    return None


def _equals(old: Any, new: Any) -> bool:
    """Whether two leaves of the same type are the same value."""
    if isinstance(old, float):
        same = old == new and copysign(1.0, old) == copysign(1.0, new)
        return same or (isnan(old) and isnan(new))
    if isinstance(old, Decimal):
        return bool(old.as_tuple() == new.as_tuple())
    if isinstance(old, datetime | time):
        # Not `==`: by PEP 495 a time that its zone skips or repeats equals nothing elsewhere.
        offset = old.utcoffset()
        same = offset == new.utcoffset() and old.replace(tzinfo=None) == new.replace(tzinfo=None)
        return same and (offset is not None or old.fold == new.fold)
    try:
        return bool(old == new)
    except (ValueError, TypeError):  # such as arrays, whose comparison is an array
        return False


def _differ(path: str, value: Any) -> Difference:
    reason = f"{name_type(value)} would come back as another value of its type"
    return Difference(path, reason)
