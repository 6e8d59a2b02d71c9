"""Templates: types kept, text made, braces escaped, errors located."""

from typing import Any

import pytest

from planaria.protocol.expressions import Budget, ExpressionError, Reference
from planaria.protocol.templates import parse_template, scan_template

ROOTS = {"input": {"n": 3, "s": "text", "o": {"b": 1, "a": [None, 1.5, "é"]}}}


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("plain", "plain"),
        ("", ""),
        (5, 5),
        (None, None),
        ("{{ input.n }}", 3),
        ("{{input.o}}", {"b": 1, "a": [None, 1.5, "é"]}),
        ("{{ input.missing }}", None),
        (" {{ input.n }}", " 3"),
        ("{{ input.n }}{{ input.n }}", "33"),
        ("n={{ input.n }}, s={{ input.s }}", "n=3, s=text"),
        ("{{ input.o }}!", '{"a":[null,1.5,"é"],"b":1}!'),
        ("{{ null }} {{ true }} {{ 'x' }}", "null true x"),
        ("{{{{ not an expression }}", "{{ not an expression }}"),
        ("{{{{{{{{", "{{{{"),
        ("a {{{{ b }} {{ input.n }} c", "a {{ b }} 3 c"),
        ("{{ '}}' + \"{{\" }}", "}}{{"),
        ("it's {{ input.n }} and it's }}", "it's 3 and it's }}"),
        ("{ input.n } {", "{ input.n } {"),
        ({"a": [{"{{ b }}": "{{ input.n }}"}]}, {"a": [{"{{ b }}": 3}]}),
    ],
)
def test_template_has_the_value_the_page_says(value: Any, result: Any) -> None:
    assert parse_template(value).evaluate(ROOTS) == result


@pytest.mark.parametrize(
    "text", ["{{", "{{ input", "{{ input }", "{{ 'a }}", "x {{ it's }}", "{{ }}", "{{{ input }}"]
)
def test_broken_expression_in_text_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_template(text)


def test_error_says_where_it_is() -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_template({"args": [1, {"a b": "{{ 1 + 'a' }}"}]})

    assert caught.value.path == '.args[1]["a b"]'


def test_error_of_evaluation_says_where_it_is() -> None:
    template = parse_template({"args": ["{{ input.s - 1 }}"]})

    with pytest.raises(ExpressionError) as caught:
        template.evaluate(ROOTS)

    assert caught.value.path == ".args[0]"


def test_all_errors_are_found_at_once() -> None:
    _, errors = scan_template(["{{ a }} {{ b }}", "{{ input.n }}", {"x": "{{"}])

    assert [keys for keys, _ in errors] == [(0,), (0,), (2, "x")]


def test_references_are_listed_once_in_document_order() -> None:
    template = parse_template({"a": "{{ input.x }}", "b": "{{ steps.s.output }} {{ input.y }}"})

    assert template.references == (Reference("input"), Reference("steps", "s", "output"))


def test_constant_template_is_known_as_such() -> None:
    assert parse_template(["{{ 1 + 1 }}", "a"]).is_constant
    assert not parse_template(["{{ input }}"]).is_constant


def test_all_expressions_of_a_template_share_one_budget() -> None:
    template = parse_template(["{{ input }}!"] * 30)

    with pytest.raises(ExpressionError, match="too much work"):
        template.evaluate({"input": "x" * 1_000_000})
    assert template.evaluate({"input": "x" * 1_000_000}, Budget(10_000_000))


def test_value_nested_too_deep_is_refused() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]

    with pytest.raises(ExpressionError, match="nested deeper"):
        parse_template(deep)
