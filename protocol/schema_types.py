"""Schemas of Python types: pydantic's JSON Schema, compiled into the subset of schemas.py.

What the subset can't say (`format`, `prefixItems`, `pattern`, `gt=`, discriminators, ...) is left
out, so the compiled schema only ever accepts more than the type does: the type itself checks the
rest, in the child.
"""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from .limits import VALUE_DEPTH_MAX
from .round_trips import make_adapter, name_annotation
from .schemas import (
    BOUND_KEYWORDS,
    BRANCH_KEYWORDS,
    COUNT_KEYWORDS,
    SCHEMA_KEYWORDS,
    check_schema,
)
from .values import is_plain

# Types that share parts are written out at every use. A generous form of 500 fields has some
# 1,500 nodes; doubling types reach this limit in 13 levels.
SCHEMA_NODES_MAX = 10_000

_COPIED = COUNT_KEYWORDS | BOUND_KEYWORDS | {"type", "required", "const", "enum"}
_LENGTHS = frozenset({"minLength", "maxLength"})


def derive_schema(annotation: object) -> dict[str, Any]:
    """Returns the schema of a Python type in the subset; {} for one that allows any JSON value.

    It is the schema of what `ValueType(annotation).load` accepts, by alias. A default makes a
    field optional and is not in the schema otherwise.

    Raises:
        ValueError: the type contains itself, or its schema is too large to be written out.
        ValueRefusedError: no JSON form is known for the type.
    """
    if is_plain(annotation):
        return {}
    raw = make_adapter(annotation).json_schema(
        by_alias=True, mode="validation", schema_generator=_Generator
    )
    return compile_schema(raw, name_annotation(annotation))


def compile_schema(raw: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns any JSON Schema compiled into the subset; `name` is what errors call it.

    Raises:
        ValueError: it refers to itself, to something outside, or is too large when written out.
    """
    compiled = _Compiler(raw, name).compile(raw, refs=("#",), depth=1)
    if isinstance(compiled, bool):
        raise ValueError(f"the schema of {name!r} is {compiled}; expected an object")
    findings = check_schema(compiled, "$")
    if findings:
        first = findings[0]
        raise ValueError(
            f"the schema of {name!r} is malformed at {first.path}: {first.message}. "
            "Look at its json_schema_extra"
        )
    return compiled


class _Generator(GenerateJsonSchema):
    """pydantic's generator, with {} for what has no schema, and silent about lost defaults."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        return None


class _Compiler:
    """Writes out the references of one document."""

    __slots__ = ("_name", "_nodes_left", "_root")

    def __init__(self, root: dict[str, Any], name: str) -> None:
        self._root = root
        self._name = name
        self._nodes_left = SCHEMA_NODES_MAX

    def compile(self, schema: Any, refs: tuple[str, ...], depth: int) -> dict[str, Any] | bool:
        if isinstance(schema, bool):
            return schema
        self._nodes_left -= 1
        if self._nodes_left < 0 or depth > VALUE_DEPTH_MAX:
            raise ValueError(
                f"the schema of {self._name!r} is too large: more than {SCHEMA_NODES_MAX:,} "
                f"nodes or {VALUE_DEPTH_MAX} levels when its parts are written out. Use fewer or "
                "smaller types, or declare the large part as dict[str, Any]"
            )
        if "$ref" in schema:
            return self._inline(schema, refs, depth)
        compiled: dict[str, Any] = _keep_annotations(schema)
        for keyword, value in schema.items():
            if keyword in _COPIED:
                compiled[keyword] = value
            elif keyword in SCHEMA_KEYWORDS and isinstance(value, dict | bool):
                compiled[keyword] = self.compile(value, refs, depth + 1)
            elif keyword == "properties":
                compiled[keyword] = {
                    key: self.compile(member, refs, depth + 1) for key, member in value.items()
                }
            elif keyword in BRANCH_KEYWORDS and "anyOf" not in compiled:
                # oneOf becomes anyOf: alternatives that differ in a part that was left out
                # would both fit, and exactly one no longer be true.
                compiled["anyOf"] = [self.compile(branch, refs, depth + 1) for branch in value]
        return _loosen(schema, compiled)

    def _inline(
        self, schema: dict[str, Any], refs: tuple[str, ...], depth: int
    ) -> dict[str, Any] | bool:
        ref = schema["$ref"]
        name = str(ref).rpartition("/")[2]
        if ref in refs:
            raise ValueError(
                f"{name!r} in the schema of {self._name!r} is a recursive type: it contains "
                "itself, and a workflow's schema can't say that. Flatten it (ids instead of "
                "nested objects), or declare that part as Any"
            )
        compiled = self.compile(self._find(ref), (*refs, ref), depth + 1)
        if isinstance(compiled, bool):
            return compiled
        return {**compiled, **_keep_annotations(schema)}

    def _find(self, ref: Any) -> Any:
        target: Any = self._root
        head, *parts = str(ref).split("/")
        for part in parts:
            key = part.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, dict) else None
        if head != "#" or not isinstance(target, dict | bool):
            raise ValueError(
                f"the schema of {self._name!r} refers to {ref!r}, which is not in it; "
                "only parts of the same document can be written out"
            )
        return target


def _keep_annotations(schema: dict[str, Any]) -> dict[str, Any]:
    kept = ((keyword, schema.get(keyword)) for keyword in ("title", "description"))
    return {keyword: text for keyword, text in kept if isinstance(text, str)}


def _loosen(schema: dict[str, Any], compiled: dict[str, Any]) -> dict[str, Any]:
    """Drops what would refuse good values once its neighbour is left out."""
    dropped: set[str] = set()
    if "prefixItems" in schema:  # then `items` is only about those after the prefix
        dropped.add("items")
    if "patternProperties" in schema:  # then `additionalProperties` is only about the others
        dropped.add("additionalProperties")
    if "format" in schema:  # a length in bytes, beside a text in base64
        dropped |= _LENGTHS
    return {keyword: value for keyword, value in compiled.items() if keyword not in dropped}
