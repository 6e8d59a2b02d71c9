"""The schema subset: what is in it, and what fits a schema."""

from typing import Any

import pytest

from planaria.protocol.limits import VALUE_DEPTH_MAX
from planaria.protocol.schemas import (
    FINDINGS_MAX,
    check_schema,
    validate_value,
)

FULL = {
    "title": "T",
    "description": "d",
    "$comment": "c",
    "examples": [{"a": 1}],
    "type": ["object", "null"],
    "properties": {
        "a": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 3}},
        "b": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 5}, {"const": None}]},
        "$ref": {"enum": ["x", 1, None]},
        "t": {"type": "array", "items": True, "minItems": 1, "maxItems": 2},
    },
    "required": ["a"],
    "additionalProperties": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 10}]},
    "propertyNames": {"maxLength": 5},
}


def summarize(findings: list[Any]) -> list[tuple[str, str]]:
    return [(finding.code, finding.path) for finding in findings]


def test_every_keyword_of_the_subset_is_accepted() -> None:
    assert [] == check_schema(FULL, "$.input.schema")


@pytest.mark.parametrize(
    "keyword",
    ["$ref", "$defs", "format", "pattern", "default", "if", "not", "allOf", "prefixItems"]
    + [
        "uniqueItems",
        "exclusiveMinimum",
        "multipleOf",
        "patternProperties",
        "Type",
        "minProperties",
    ],
)
def test_other_keywords_are_refused_where_they_stand(keyword: str) -> None:
    places = [
        ({keyword: 1}, "$"),
        ({"properties": {"x": {keyword: 1}}}, "$.properties.x"),
        ({"items": {keyword: 1}}, "$.items"),
        ({"anyOf": [{}, {keyword: 1}]}, "$.anyOf[1]"),
        ({"oneOf": [{keyword: 1}]}, "$.oneOf[0]"),
        ({"additionalProperties": {keyword: 1}}, "$.additionalProperties"),
        ({"propertyNames": {keyword: 1}}, "$.propertyNames"),
    ]
    for schema, path in places:
        expected = [("schema.unsupported_keyword", f"{path}.{keyword}")]
        assert expected == summarize(check_schema(schema, "$"))


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("type", "text"),
        ("type", None),
        ("type", []),
        ("type", ["string", "string"]),
        ("type", [["string"]]),
        ("required", True),
        ("required", ["a", 1]),
        ("required", ["a", "a"]),
        ("properties", ["a"]),
        ("items", [{}]),
        ("additionalProperties", "no"),
        ("propertyNames", 3),
        ("anyOf", []),
        ("oneOf", {}),
        ("enum", []),
        ("enum", "abc"),
        ("minItems", -1),
        ("maxItems", True),
        ("minLength", 1.5),
        ("maxLength", "3"),
        ("minimum", "3"),
        ("maximum", False),
        ("minimum", float("nan")),
        ("title", 3),
        ("examples", "x"),
        ("$comment", None),
    ],
)
def test_wrong_value_of_a_keyword_is_found(keyword: str, value: Any) -> None:
    assert [("lwir.invalid_value", f"$.s.{keyword}")] == summarize(
        check_schema({keyword: value}, "$.s")
    )


@pytest.mark.parametrize("schema", [None, True, [], "object", 3])
def test_schema_that_is_no_object_is_found(schema: object) -> None:
    assert [("lwir.invalid_value", "$.s")] == summarize(check_schema(schema, "$.s"))


def test_all_findings_come_at_once_in_document_order() -> None:
    schema = {"type": "x", "items": {"format": "a", "minItems": "b"}, "anyOf": [1]}

    assert ["$.type", "$.items.format", "$.items.minItems", "$.anyOf[0]"] == [
        finding.path for finding in check_schema(schema, "$")
    ]


def test_schema_nested_too_deeply_is_found_and_harmless() -> None:
    schema: dict[str, Any] = {}
    for _ in range(VALUE_DEPTH_MAX - 1):
        schema = {"items": schema}
    assert [] == check_schema(schema, "$")

    for _ in range(100_000):
        schema = {"items": schema}
    assert ["lwir.invalid_value"] == [finding.code for finding in check_schema(schema, "$")]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, {"anything": [1]}),
        ({"type": "integer"}, 1.0),
        ({"type": "number"}, 1),
        ({"type": ["string", "null"]}, None),
        ({"const": 1}, 1.0),
        ({"enum": [{"a": [1, True]}, "x"]}, {"a": [1.0, True]}),
        ({"minLength": 2, "maxLength": 2}, "😀😀"),
        ({"minimum": 1, "maximum": 1}, 1),
        ({"minimum": 5}, True),
        ({"minLength": 5, "minItems": 3, "required": ["a"]}, 7),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "a"),
        ({"additionalProperties": False, "properties": {"a": {}}}, {"a": 1}),
        (FULL, {"a": ["xyz"], "b": None, "$ref": 1, "t": [[], {}], "other": 3}),
        (FULL, None),
    ],
)
def test_fitting_values_have_no_findings(schema: dict[str, Any], value: Any) -> None:
    assert [] == validate_value(schema, value)


@pytest.mark.parametrize(
    ("schema", "value", "path", "message"),
    [
        ({"type": "integer"}, True, "$", "expected integer, got boolean"),
        ({"type": "integer"}, 1.5, "$", "expected integer, got number"),
        ({"type": "number"}, "1", "$", "expected number, got string"),
        ({"type": ["object", "null"]}, [], "$", "expected object or null, got array"),
        ({"const": True}, 1, "$", "expected true, got another integer"),
        ({"const": 1}, True, "$", "expected 1, got another boolean"),
        ({"enum": [0, "a"]}, False, "$", 'expected one of [0, "a"], got another boolean'),
        ({"const": [1, {"a": 0}]}, [1, {"a": False}], "$", None),
        ({"minLength": 2}, "😀", "$", "expected at least 2 characters, got 1"),
        ({"maxItems": 1}, [1, 2], "$", "expected at most 1 items, got 2"),
        ({"minimum": 0}, -0.5, "$", "expected 0 or more, got less"),
        ({"maximum": 0}, 10**30, "$", "expected 0 or less, got more"),
        ({"items": {"type": "string"}}, ["a", 1], "$[1]", None),
        ({"required": ["a b"]}, {}, '$["a b"]', None),
        ({"additionalProperties": False}, {"x": 1}, "$.x", None),
        ({"properties": {"x": False}}, {"x": 1}, "$.x", None),
        ({"additionalProperties": {"type": "null"}}, {"x": {}}, "$.x", None),
        ({"propertyNames": {"maxLength": 1}}, {"xy": 1}, "$.xy", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "$", None),
        (
            {"anyOf": [{"properties": {"a": {"items": {"type": "null"}}}}, {"type": "null"}]},
            {"a": [None, 1]},
            "$.a[1]",
            "expected null, got integer",
        ),
        ({"oneOf": [{"type": "integer"}, {"minimum": 0}]}, 1, "$", None),
        ({"oneOf": [{"type": "string"}]}, 1, "$", None),
    ],
)
def test_mismatch_names_path_and_what_was_expected(
    schema: dict[str, Any], value: Any, path: str, message: str | None
) -> None:
    findings = validate_value(schema, value)

    assert [("schema.mismatch", path)] == summarize(findings)
    assert message is None or message == findings[0].message


def test_messages_do_not_hold_the_value() -> None:
    secret = "s3cret" * 1000
    schema = {"anyOf": [{"const": "a"}, {"maxLength": 3}], "enum": ["b" * 1000], "type": "string"}

    messages = [finding.message for finding in validate_value(schema, secret)]

    assert len(messages) == 2
    assert all(len(message) < 200 and "s3cret" not in message for message in messages)


def test_findings_are_limited() -> None:
    items = {"items": {"type": "string"}}

    assert FINDINGS_MAX == len(validate_value(items, [1] * 60_000))
    assert FINDINGS_MAX == len(
        validate_value({"additionalProperties": False}, {str(n): n for n in range(1000)})
    )


def test_costly_schema_is_given_up() -> None:
    schema: dict[str, Any] = {"items": {"anyOf": [{"const": n} for n in range(1000)]}}

    findings = validate_value(schema, [999] * 60_000, steps_max=10_000)

    assert [("schema.mismatch", "$")] == summarize(findings)
    assert "steps" in findings[0].message
