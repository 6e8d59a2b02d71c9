"""What expressions can do with JSON values: operators, functions, and the count of their work."""

import json
import math
from collections.abc import Callable
from typing import Any

import rfc8785

from .codec import Json, canonical_bytes, hash_bytes
from .errors import UsageError
from .limits import VALUE_DEPTH_MAX

# One unit of work is about 0.1 µs: the worst of 20 hostile expressions kept the supervisor's loop
# for 37 ms, on a busy machine. A child, which delays nobody, may evaluate with a larger Budget.
WORK_MAX = 200_000
NODE_WORK = 5
CHARS_PER_WORK = 16  # the slowest text operation (upper of non-ASCII text) takes 5 ns a character
EQUAL_WORK = 3  # per pair of values that is compared
JSON_WORK = 6  # per value that is written as JSON
JCS_WORK = 32  # rfc8785 is Python: 3 µs per value ...
JCS_TEXT_FACTOR = 4  # ... 20 ns per character of a text ...
JCS_ESCAPE_WORK = 4  # ... and 0.3 µs per character that has to be escaped
INT_MIN = -(2**63)  # the integers that msgpack, hence the log, can hold
INT_MAX = 2**64 - 1


class ExpressionError(UsageError):
    """An expression is not in the language, or can't be evaluated; `message` says what to do.

    `path` is where it stands inside the value it was found in (`.args[0]`), empty for the whole.
    """

    template = "{message}"

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message=message, path=path)


class Budget:
    """The work that evaluations may still do together."""

    __slots__ = ("work_left",)

    def __init__(self, work_max: int = WORK_MAX) -> None:
        self.work_left = work_max

    def spend(self, work: int) -> None:
        """Takes `work` off before it is done.

        Raises:
            ExpressionError: not that much is left.
        """
        self.work_left -= work
        if self.work_left < 0:
            raise ExpressionError("too much work for one evaluation: give it smaller values")

    def spend_text(self, text: str, factor: int = 1) -> None:
        self.spend(1 + factor * len(text) // CHARS_PER_WORK)


def name_type(value: Json) -> str:
    """Returns the name of the value's JSON type with its article, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"


def is_true(value: Json) -> bool:
    """Says whether a condition holds: not for null, false, 0, "", [] and {}."""
    return bool(value)


def is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_number(number: int | float) -> int | float:
    """Returns a number that can be recorded, and refuses any other."""
    if isinstance(number, float):
        if not math.isfinite(number):
            raise ExpressionError("the result is infinite or no number: use smaller numbers")
    elif not INT_MIN <= number <= INT_MAX:
        raise ExpressionError("the result has more than 64 bits: use smaller numbers")
    return number


def measure(value: Json, budget: Budget, work_per_value: int, text_factor: int = 1) -> None:
    """Spends what reading every part of `value` costs, and refuses what can't be written."""
    level = [value]
    for _ in range(VALUE_DEPTH_MAX + 1):
        deeper: list[Any] = []
        for item in level:
            budget.spend(work_per_value)
            if isinstance(item, str):
                budget.spend_text(item, text_factor)
            elif isinstance(item, dict):
                budget.spend(len(item) * work_per_value)
                for key in item:
                    budget.spend_text(key, text_factor)
                deeper.extend(item.values())
            elif isinstance(item, list):
                budget.spend(len(item))
                deeper.extend(item)
        if not deeper:
            return
        level = deeper
    raise ExpressionError(f"a value is nested deeper than {VALUE_DEPTH_MAX} levels")


def write_text(value: Json, budget: Budget) -> str:
    """Returns a value as it stands inside text: a text as it is, anything else as compact JSON."""
    if isinstance(value, str):
        budget.spend_text(value)
        return value
    measure(value, budget, JSON_WORK)
    return _write_json(value)


def _write_json(value: Json) -> str:
    # Keys are sorted because the log sorts them: a replay must write the same text.
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def get_member(budget: Budget, value: Json, key: Json) -> Json:
    """Returns a member of an object or list; null where there is none, or nothing to look into."""
    if isinstance(value, dict):
        if isinstance(key, str):
            return value.get(key)
        raise ExpressionError(f"{name_type(key)} is no key of an object: write a text")
    if isinstance(value, list):
        if isinstance(key, int) and not isinstance(key, bool):
            return value[key] if -len(value) <= key < len(value) else None
        raise ExpressionError(f"{name_type(key)} is no position in a list: write a whole number")
    if value is None:
        return None
    raise ExpressionError(f"{name_type(value)} has no members; {_show(key)} was asked of it")


def _show(key: Json) -> str:
    return repr(key[:60]) if isinstance(key, str) else name_type(key)


def make_list(budget: Budget, *items: Json) -> Json:
    return list(items)


def are_equal(budget: Budget, left: Json, right: Json) -> bool:
    """Says whether two JSON values are equal; true is not 1, but 1 is 1.0."""
    budget.spend(NODE_WORK)
    pending = [(left, right)]
    while pending:
        one, other = pending.pop()
        budget.spend(EQUAL_WORK)
        if isinstance(one, dict):
            if not isinstance(other, dict) or len(one) != len(other):
                return False
            budget.spend(len(one) * 2)
            if one.keys() != other.keys():
                return False
            pending.extend((one[key], other[key]) for key in one)
        elif isinstance(one, list):
            if not isinstance(other, list) or len(one) != len(other):
                return False
            budget.spend(len(one))
            pending.extend(zip(one, other, strict=True))
        elif isinstance(one, str):
            budget.spend_text(one)
            if one != other:
                return False
        elif isinstance(one, bool) or isinstance(other, bool):
            if one is not other:
                return False
        elif one != other:
            return False
    return True


def are_different(budget: Budget, left: Json, right: Json) -> bool:
    return not are_equal(budget, left, right)


def _order(symbol: str, holds: Callable[[Any, Any], bool]) -> Callable[..., Json]:
    def compare(budget: Budget, left: Json, right: Json) -> Json:
        if left is None or right is None:
            return False
        if isinstance(left, str) and isinstance(right, str):
            budget.spend_text(left)
        elif not (is_number(left) and is_number(right)):
            raise ExpressionError(
                f"{name_type(left)} {symbol} {name_type(right)}: "
                "only two numbers or two texts have an order"
            )
        return holds(left, right)

    return compare


def _arithmetic(symbol: str, calculate: Callable[[Any, Any], Any]) -> Callable[..., Json]:
    def apply(budget: Budget, left: Json, right: Json) -> Json:
        if not (is_number(left) and is_number(right)):
            hint = "; default(…, 0) replaces null" if left is None or right is None else ""
            raise ExpressionError(
                f"{name_type(left)} {symbol} {name_type(right)}: {symbol!r} takes two numbers{hint}"
            )
        try:
            return check_number(calculate(left, right))
        except ZeroDivisionError:
            raise ExpressionError(f"{symbol!r} by zero") from None
        except OverflowError:
            raise ExpressionError("the result is too large: use smaller numbers") from None

    return apply


_add_numbers = _arithmetic("+", lambda a, b: a + b)


def add(budget: Budget, left: Json, right: Json) -> Json:
    if isinstance(left, str) and isinstance(right, str):
        budget.spend_text(left)
        budget.spend_text(right)
        return left + right
    if isinstance(left, str) or isinstance(right, str):
        raise ExpressionError(
            f"{name_type(left)} + {name_type(right)}: '+' takes two numbers or two texts"
        )
    return _add_numbers(budget, left, right)


def negate(budget: Budget, value: Json) -> Json:
    if not is_number(value):
        raise ExpressionError(f"-{name_type(value)}: '-' takes numbers")
    return check_number(-value)


def invert(budget: Budget, value: Json) -> Json:
    return not is_true(value)


OPERATORS: dict[str, Callable[..., Json]] = {
    "==": are_equal,
    "!=": are_different,
    "<": _order("<", lambda a, b: a < b),
    "<=": _order("<=", lambda a, b: a <= b),
    ">": _order(">", lambda a, b: a > b),
    ">=": _order(">=", lambda a, b: a >= b),
    "+": add,
    "-": _arithmetic("-", lambda a, b: a - b),
    "*": _arithmetic("*", lambda a, b: a * b),
    "/": _arithmetic("/", lambda a, b: a / b),
    "%": _arithmetic("%", lambda a, b: a % b),
}


def coalesce(budget: Budget, *values: Json) -> Json:
    """Returns the first value that is not null."""
    return next((value for value in values if value is not None), None)


def sha256(budget: Budget, value: Json) -> Json:
    """Returns `sha256:<hex>` over the value's RFC 8785 form.

    That form refuses integers over 2**53; a value that has one is hashed over its canonical
    msgpack instead.
    """
    measure(value, budget, JCS_WORK, JCS_TEXT_FACTOR)
    try:
        text = _write_json(value)
        budget.spend(JCS_ESCAPE_WORK * text.count("\\"))
        return hash_bytes(rfc8785.dumps(value))
    except rfc8785.IntegerDomainError:
        pass
    except (rfc8785.CanonicalizationError, TypeError, ValueError) as error:
        raise ExpressionError(f"the value has no canonical form: {error}") from error
    try:
        return hash_bytes(canonical_bytes(value))
    except (OverflowError, TypeError, ValueError) as error:
        raise ExpressionError(f"the value has no canonical form: {error}") from error


def size(budget: Budget, value: Json) -> Json:
    """Returns the characters of a text, the items of a list, the members of an object."""
    if value is None:
        return 0
    if isinstance(value, str | list | dict):
        return len(value)
    raise ExpressionError(f"size of {name_type(value)}: it takes a text, a list or an object")


def _on_text(name: str, change: Callable[[str], str]) -> Callable[..., Json]:
    def apply(budget: Budget, value: Json) -> Json:
        if value is None:
            return None
        if not isinstance(value, str):
            raise ExpressionError(f"{name} of {name_type(value)}: it takes a text")
        budget.spend_text(value)
        return change(value)

    return apply


def contains(budget: Budget, whole: Json, part: Json) -> Json:
    """Says whether a text has a part, a list an item, or an object a key."""
    if whole is None:
        return False
    if isinstance(whole, list):
        return any(are_equal(budget, item, part) for item in whole)
    if isinstance(whole, str | dict):
        if not isinstance(part, str):
            raise ExpressionError(
                f"{name_type(whole)} contains texts, and was asked for {name_type(part)}"
            )
        if isinstance(whole, str):
            budget.spend_text(whole)
        return part in whole
    raise ExpressionError(f"contains of {name_type(whole)}: it takes a list, a text or an object")


def keys(budget: Budget, value: Json) -> Json:
    """Returns the keys of an object in order."""
    if value is None:
        return []
    if not isinstance(value, dict):
        raise ExpressionError(f"keys of {name_type(value)}: it takes an object")
    budget.spend(len(value) * NODE_WORK)
    return sorted(value)


# Each with the least and the most arguments; None is any number.
FUNCTIONS: dict[str, tuple[Callable[..., Json], int, int | None]] = {
    "coalesce": (coalesce, 1, None),
    "sha256": (sha256, 1, 1),
    "size": (size, 1, 1),
    "lower": (_on_text("lower", str.lower), 1, 1),
    "upper": (_on_text("upper", str.upper), 1, 1),
    "default": (coalesce, 2, 2),
    "contains": (contains, 2, 2),
    "keys": (keys, 1, 1),
}
