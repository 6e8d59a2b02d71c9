"""The JSON Schema subset of workflow documents: which schemas are in it, which values fit one.

It runs in the supervisor's kernel, on schemas that a planner wrote: no regular expressions, no
references, and a budget of steps. Schemas derived from Python types are made in schema_types.py,
which loads pydantic; this module doesn't.
"""

import json
from collections.abc import Callable
from math import isfinite
from typing import Any, TypeAlias

from .codec import Json
from .findings import Finding
from .json_paths import extend_path
from .limits import VALUE_DEPTH_MAX

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
ANNOTATIONS = frozenset({"title", "description", "examples", "$comment"})
SCHEMA_KEYWORDS = frozenset({"items", "additionalProperties", "propertyNames"})
BRANCH_KEYWORDS = frozenset({"anyOf", "oneOf"})
COUNT_KEYWORDS = frozenset({"minItems", "maxItems", "minLength", "maxLength"})
BOUND_KEYWORDS = frozenset({"minimum", "maximum"})

UNSUPPORTED_KEYWORD = "schema.unsupported_keyword"
INVALID_VALUE = "lwir.invalid_value"
MISMATCH = "schema.mismatch"

# A list of 65,536 objects with ten members each needs about 800,000 steps, some two seconds.
VALIDATION_STEPS_MAX = 1_000_000
FINDINGS_MAX = 50  # a model that repairs its output reads the first few; a person too
SHOWN_CHARS_MAX = 60  # of a const or an enum in a message

Check: TypeAlias = Callable[[Any], str | None]
# A path, written out only when there is a finding: most values fit, and have many members.
Where: TypeAlias = "str | tuple[Where, str | int]"


def check_schema(schema: object, path: str) -> list[Finding]:
    """Returns what keeps `schema` out of the subset, in the order of the document."""
    if not isinstance(schema, dict):
        return [Finding(INVALID_VALUE, path, "expected a schema (an object); write {} for any")]
    findings: list[Finding] = []
    _check_node(schema, path, findings, depth=1)
    return findings


def validate_value(
    schema: dict[str, Any],
    value: Json,
    *,
    path: str = "$",
    steps_max: int = VALIDATION_STEPS_MAX,
) -> list[Finding]:
    """Returns where `value` doesn't fit `schema`, at most FINDINGS_MAX; it must be checked before.

    Numbers as in JSON Schema: 1.0 is an integer and equals 1; true is neither.
    """
    try:
        return _Validation(steps_max).check(schema, value, path)[:FINDINGS_MAX]
    except _BudgetSpentError:
        text = f"not checked to the end: more than {steps_max:,} steps; simplify it"
        return [Finding(MISMATCH, path, text)]


def derive_schema(annotation: object) -> dict[str, Any]:
    """Returns the schema of a Python type, compiled into the subset; see schema_types.py.

    Raises:
        ValueError: the type contains itself, or its schema is too large to be written out.
    """
    # Imported here: the supervisor validates but never derives, and pydantic costs it 0.2 s.
    from .schema_types import derive_schema as derive

    return derive(annotation)


def _check_node(schema: Any, path: str, findings: list[Finding], depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        findings.append(Finding(INVALID_VALUE, path, "expected a schema (an object)"))
        return
    if depth > VALUE_DEPTH_MAX:
        text = f"schemas nested deeper than {VALUE_DEPTH_MAX} levels; flatten it"
        findings.append(Finding(INVALID_VALUE, path, text))
        return
    for keyword, value in schema.items():
        where = extend_path(path, str(keyword))
        if keyword in SCHEMA_KEYWORDS:
            _check_node(value, where, findings, depth + 1)
        elif keyword in BRANCH_KEYWORDS:
            if not isinstance(value, list) or not value:
                text = "expected a list of at least one schema"
                findings.append(Finding(INVALID_VALUE, where, text))
                continue
            for index, branch in enumerate(value):
                _check_node(branch, extend_path(where, index), findings, depth + 1)
        elif keyword == "properties":
            if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
                text = "expected an object of schemas by property name"
                findings.append(Finding(INVALID_VALUE, where, text))
                continue
            for name, member in value.items():
                _check_node(member, extend_path(where, name), findings, depth + 1)
        elif keyword in _LEAF_CHECKS:
            reason = _LEAF_CHECKS[keyword](value)
            if reason is not None:
                findings.append(Finding(INVALID_VALUE, where, reason))
        else:
            text = f"the keyword {str(keyword)[:SHOWN_CHARS_MAX]!r} is not acted on; remove it"
            findings.append(Finding(UNSUPPORTED_KEYWORD, where, text))


def _check_type(value: Any) -> str | None:
    names = value if isinstance(value, list) else [value]
    known = all(isinstance(name, str) and name in TYPES for name in names)
    if not names or not known or len(set(names)) < len(names):
        return f"expected one of {', '.join(TYPES)}, or a list of several"
    return None


def _check_required(value: Any) -> str | None:
    texts = isinstance(value, list) and all(isinstance(name, str) for name in value)
    if not texts or len(set(value)) < len(value):
        return "expected a list of property names, each once"
    return None


def _check_enum(value: Any) -> str | None:
    return None if isinstance(value, list) and value else "expected a list of at least one value"


def _check_count(value: Any) -> str | None:
    counts = type(value) is int and value >= 0
    return None if counts else "expected a whole number, 0 or more"


def _check_bound(value: Any) -> str | None:
    bounds = type(value) is int or (type(value) is float and isfinite(value))
    return None if bounds else "expected a number"


def _check_text(value: Any) -> str | None:
    return None if isinstance(value, str) else "expected a text"


def _check_examples(value: Any) -> str | None:
    return None if isinstance(value, list) else "expected a list of values"


def _accept(value: Any) -> str | None:
    return None


_LEAF_CHECKS: dict[str, Check] = {
    "type": _check_type,
    "required": _check_required,
    "const": _accept,
    "enum": _check_enum,
    "examples": _check_examples,
    **dict.fromkeys(COUNT_KEYWORDS, _check_count),
    **dict.fromkeys(BOUND_KEYWORDS, _check_bound),
    **dict.fromkeys(("title", "description", "$comment"), _check_text),
}


class _BudgetSpentError(Exception):
    """More steps than allowed; never leaves this module."""


class _Validation:
    """One validation: counts its steps, so that a hostile schema can't hold the kernel up.

    Recursion descends the schema at every step, and a schema has at most 64 levels.
    """

    __slots__ = ("_steps_left",)

    def __init__(self, steps_max: int) -> None:
        self._steps_left = steps_max

    def check(self, schema: Any, value: Json, where: Where) -> list[Finding]:
        self._spend()
        if schema is True:
            return []
        if schema is False:
            return [_mismatch(where, f"expected nothing here, got {_name_type(value)}")]
        expected = schema.get("type")
        if expected is not None and not _fits_type(expected, value):
            names = expected if isinstance(expected, str) else " or ".join(expected)
            return [_mismatch(where, f"expected {names}, got {_name_type(value)}")]
        found: list[Finding] = []
        if "const" in schema or "enum" in schema:
            found += self._check_choice(schema, value, where)
        if isinstance(value, dict):
            found += self._check_object(schema, value, where)
        elif isinstance(value, list):
            found += _check_size(schema, _ITEM_COUNTS, len(value), where)
            found += self._check_items(schema, value, where)
        elif isinstance(value, str):
            found += _check_size(schema, _TEXT_LENGTHS, len(value), where)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found += _check_bounds(schema, value, where)
        if "anyOf" in schema:
            found += self._check_any(schema["anyOf"], value, where)
        if "oneOf" in schema:
            found += self._check_one(schema["oneOf"], value, where)
        return found

    def _spend(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise _BudgetSpentError

    def _check_choice(self, schema: dict[str, Any], value: Json, where: Where) -> list[Finding]:
        found = []
        if "const" in schema and not self._equals(schema["const"], value):
            text = f"expected {_show(schema['const'])}, got another {_name_type(value)}"
            found.append(_mismatch(where, text))
        if "enum" in schema and not any(self._equals(item, value) for item in schema["enum"]):
            text = f"expected one of {_show(schema['enum'])}, got another {_name_type(value)}"
            found.append(_mismatch(where, text))
        return found

    def _check_object(
        self, schema: dict[str, Any], value: dict[str, Json], where: Where
    ) -> list[Finding]:
        found = [
            _mismatch((where, name), "expected a value, got none: it is required")
            for name in schema.get("required", ())
            if name not in value
        ]
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        names = schema.get("propertyNames", True)
        for name, member in value.items():
            if len(found) >= FINDINGS_MAX:
                break
            inner = (where, name)
            if names is not True:
                found += [
                    _mismatch(inner, f"the property's name: {finding.message}")
                    for finding in self.check(names, name, inner)
                ]
            if name in properties:
                found += self.check(properties[name], member, inner)
            elif others is False:
                found.append(_mismatch(inner, "expected no such property, got one: remove it"))
            else:
                found += self.check(others, member, inner)
        return found

    def _check_items(
        self, schema: dict[str, Any], value: list[Json], where: Where
    ) -> list[Finding]:
        found: list[Finding] = []
        rule = schema.get("items", True)
        if rule is True or rule == {}:
            return found
        for index, item in enumerate(value):
            if len(found) >= FINDINGS_MAX:
                break
            found += self.check(rule, item, (where, index))
        return found

    def _check_any(self, branches: list[Any], value: Json, where: Where) -> list[Finding]:
        here = _write_path(where)
        near = []
        for branch in branches:
            found = self.check(branch, value, where)
            if not found:
                return []
            if all(finding.path != here for finding in found):
                near.append(found)
        if len(near) == 1:  # the value is of that kind, and wrong further inside: say where
            return near[0]
        got = _name_type(value)
        text = f"expected one of {len(branches)} alternatives, got {got} that fits none"
        return [_mismatch(where, text)]

    def _check_one(self, branches: list[Any], value: Json, where: Where) -> list[Finding]:
        fitting = sum(1 for branch in branches if not self.check(branch, value, where))
        if fitting == 0:
            return self._check_any(branches, value, where)
        if fitting > 1:
            text = f"expected exactly one of {len(branches)} alternatives to fit, {fitting} do"
            return [_mismatch(where, text)]
        return []

    def _equals(self, left: Json, right: Json) -> bool:
        self._spend()
        if isinstance(left, bool) or isinstance(right, bool):
            return left is right
        if isinstance(left, list):
            same = isinstance(right, list) and len(left) == len(right)
            return same and all(map(self._equals, left, right))
        if isinstance(left, dict):
            same = isinstance(right, dict) and left.keys() == right.keys()
            return same and all(self._equals(left[key], right[key]) for key in left)
        return bool(left == right)


_ITEM_COUNTS = ("minItems", "maxItems", "items")
_TEXT_LENGTHS = ("minLength", "maxLength", "characters")


def _check_size(
    schema: dict[str, Any], keywords: tuple[str, str, str], size: int, where: Where
) -> list[Finding]:
    least_keyword, most_keyword, unit = keywords
    least, most = schema.get(least_keyword, 0), schema.get(most_keyword, size)
    if size < least:
        return [_mismatch(where, f"expected at least {least} {unit}, got {size}")]
    if size > most:
        return [_mismatch(where, f"expected at most {most} {unit}, got {size}")]
    return []


def _check_bounds(schema: dict[str, Any], value: int | float, where: Where) -> list[Finding]:
    least, most = schema.get("minimum", value), schema.get("maximum", value)
    if value < least:
        return [_mismatch(where, f"expected {least} or more, got less")]
    if value > most:
        return [_mismatch(where, f"expected {most} or less, got more")]
    return []


def _fits_type(expected: str | list[str], value: Json) -> bool:
    got = _name_type(value)
    if got == expected:
        return True
    names = [expected] if isinstance(expected, str) else expected
    if got in names:
        return True
    if got == "integer":
        return "number" in names
    return got == "number" and "integer" in names and float(value).is_integer()


def _name_type(value: Json) -> str:
    return _TYPE_NAMES.get(type(value)) or type(value).__name__


_TYPE_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def _show(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "..."


def _mismatch(where: Where, message: str) -> Finding:
    return Finding(MISMATCH, _write_path(where), message)


def _write_path(where: Where) -> str:
    steps = []
    while not isinstance(where, str):
        where, step = where
        steps.append(step)
    for step in reversed(steps):
        where = extend_path(where, step)
    return where
