"""The expression language: what it means, what it refuses, and that it never does much work."""

import hashlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planaria.protocol.errors import error_from_wire, error_to_wire
from planaria.protocol.expressions import Budget, ExpressionError, Reference, parse_expression

ROOTS = {
    "input": {"n": 3, "text": "abc", "list": [1, 2, 3], "from": {"class": 1}, "items": [9], "": 0},
    "item": {"id": "k"},
    "itemKey": "k",
    "steps": {
        "a": {"output": {"ok": True}, "lastOutput": {"ok": True}, "allVisits": [{"ok": True}]},
        "fetch-data": {"output": 5},
        "open": None,
    },
    "cycle": 2,
}


def evaluate(source: str, roots: dict[str, Any] = ROOTS) -> Any:
    return parse_expression(source).evaluate(roots)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 / 2", 3.5),
        ("7 % 4", 3),
        ("-input.n", -3),
        ("'a' + \"b\"", "ab"),
        (r"'it\'s \"\u00e9\ud83d\ude00\n'", "it's \"é😀\n"),
        ("[1, 'a', null, true, []]", [1, "a", None, True, []]),
        ("1 < 2 < 3", True),
        ("1 < input.n < 3", False),
        ("'a' <= 'b'", True),
        ("true == 1", False),
        ("[true] == [1]", False),
        ("1 == 1.0", True),
        ("input.from == input.from", True),
        ("input.list == [1, 2, 3.0]", True),
        ("null == null", True),
        ("null < 1", False),
        ("null >= null", False),
        ("not input.list", False),
        ("not not input.missing", False),
        ("input.missing or 'x'", "x"),
        ("input.n and 'x'", "x"),
        ("not input.n == 3", False),
        ("input.missing.deeper[3].still", None),
        ("input.from.class", 1),
        ("input.items[0]", 9),
        ("input.list[-1]", 3),
        ("input.list[99]", None),
        ('input["text"]', "abc"),
        ('input[""]', 0),
        ("input.\n  n", 3),
        ("item.id + itemKey", "kk"),
        ("steps.a.output.ok", True),
        ("(steps.a).allVisits[0].ok", True),
        ('steps["fetch-data"].output - 1', 4),
        ("steps.a.output", {"ok": True}),
        ("steps.open.lastOutput.x", None),
        ("steps.ghost.allVisits", None),
        ("steps.a.output == steps.a.lastOutput", True),
        ("workflow.id", None),
        ("cycle", 2),
        ("coalesce(null, input.missing, 0, 1)", 0),
        ("default(input.missing, 'd')", "d"),
        ("size(input.text) + size(input.list) + size(input.from) + size(null)", 7),
        ("upper(input.text) + lower('X')", "ABCx"),
        ("contains(input.text, 'bc')", True),
        ("contains(input.list, 2.0)", True),
        ("contains([1], true)", False),
        ("contains(input, 'n')", True),
        ("contains(null, 'n')", False),
        ("keys(input.from)", ["class"]),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_expression_has_the_value_the_language_says(source: str, value: Any) -> None:
    result = evaluate(source)

    assert value == result
    assert type(value) is type(result)


@pytest.mark.parametrize(
    "source",
    [
        *(
            "",
            "   ",
            "\n",
            "\0",
            "{",
            "}}",
            "# no",
            "a = 1",
            "x := 1",
            "...",
            "1 2",
            "1,",
            "()",
            ")(",
        ),
        *("9**9**9", "7 // 2", "1 @ 2", "1 | 2", "~1", "1 << 9", "+1", "- ", "not", "and", "1 and"),
        *("1j", "0x10", "1_000", "007", "1.", ".5", "1e999", "1e308 * 10", "18446744073709551616"),
        *("9223372036854775807 * 4", "1 / 0", "1 % 0.0", "f'{1}'", "b'x'", "r'x'", "'abc", '"abc'),
        *("'a' 'b'", r"'\d'", r"'\ud83d'", r"'\u12'", "'\ud800'", "'x' * 1000000000", "1 + 'a'"),
        *("'a' + 1", "true + 1", "null + 1", "-'a'", "-true", "[] + []", "'%9d' % 1", "[1] < [2]"),
        *("true < 1", "'a' < 1", "open", "open('/etc/passwd')", "true or open('x')", "size"),
        *(
            "size()",
            "size(1, 2)",
            "size(*input)",
            "size(x=1)",
            "default(1)",
            "coalesce()",
            "(size)(1)",
        ),
        *("input()", "input.get('n')", "'a'.center(9)", "'a'.upper()", "__import__('os')"),
        *("input.__class__", "input.a.__dict__", "__name__", "input.0", "input.", ".a", "1 .a"),
        *("input and .x", "input..a", "[x for x in input]", "lambda: 1", "1 if true else 2"),
        *("1 in [1]", "input is null", "[1][1:2]", "input[1, 2]", "[*input]", "{}", "{'a': 1}"),
        *(
            "True",
            "None",
            "import os",
            "steps",
            "steps.a",
            "steps.a.other",
            "steps[input.n].output",
        ),
        *("steps['a' + 'b'].output", "steps[0].output", "steps.fetch-data.output", "null()"),
        *("true.x", "'a'.b", "[1].b", "[1]['a']", "[1][true]", "(((((" * 7 + "1" + ")))))" * 7),
        *("-" * 1_500 + "1", "not " * 450 + "1", "+".join("1" * 900), "input" + ".a" * 900),
        *(
            "x" * 2_001,
            "'" + "x" * 2_000 + "'",
            "upper(1)",
            "size(1)",
            "keys([1])",
            "contains(1, 1)",
        ),
    ],
)
def test_what_is_not_in_the_language_is_refused_before_it_is_evaluated(source: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_expression(source)

    assert caught.value.message


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("steps.fetch-my-data.output", 'steps["fetch-my-data"].output'),
        ("steps.fetch-from.output", 'steps["fetch-from"].output'),
        ("steps.a", 'steps["a"].output'),
        ("open(1)", "coalesce, contains"),
        ("inputs.a", "starts from cycle, input"),
        ("input.a = 1", "'=='"),
    ],
)
def test_refusal_says_what_to_write(source: str, advice: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_expression(source)

    assert advice in caught.value.message


def test_subtraction_of_two_outputs_is_no_hyphen() -> None:
    roots = {"steps": {"a": {"output": 5}, "b": {"output": 3}}}

    assert evaluate("steps.a.output-steps.b.output", roots) == 2


def test_references_name_root_step_and_member_once_each() -> None:
    expression = parse_expression(
        "input.a + input.b and steps.a.output == [steps['b-c'].allVisits]"
    )

    assert expression.references == (
        Reference("input"),
        Reference("steps", "a", "output"),
        Reference("steps", "b-c", "allVisits"),
    )


def test_references_stand_also_in_parts_that_are_not_evaluated() -> None:
    assert parse_expression("true or item.x").references == (Reference("item"),)


@pytest.mark.parametrize(
    "source", ["input.text + 1", "input.text.x", "input.list.x", "input.n < 'a'", "keys(input.n)"]
)
def test_wrong_operand_at_evaluation_is_an_expression_error(source: str) -> None:
    expression = parse_expression(source)

    with pytest.raises(ExpressionError):
        expression.evaluate(ROOTS)


def test_sha256_is_taken_over_the_canonical_form() -> None:
    expression = parse_expression("sha256(input)")

    one = expression.evaluate({"input": {"a": 1, "b": [2.0, "é"]}})
    other = expression.evaluate({"input": {"b": [2, "é"], "a": 1}})

    expected = "sha256:" + hashlib.sha256('{"a":1,"b":[2,"é"]}'.encode()).hexdigest()
    assert expected == one == other


def test_sha256_of_an_integer_beyond_jcs_is_taken_over_msgpack() -> None:
    hashes = {evaluate(f"sha256({number})") for number in (2**53 + 1, 2**53 + 2, 2**53 + 3)}

    assert len(hashes) == 3


@pytest.mark.parametrize(
    "source",
    [
        "+".join(["sha256(input)"] * 20),
        "[" + ",".join(["contains(input, 'zz')"] * 90) + "]",
        "[" + ",".join(["input == item"] * 100) + "]",
        "[" + ",".join(["upper(input)"] * 100) + "]",
    ],
)
@pytest.mark.parametrize("value", ["aé" * 100_000, '"\n' * 100_000, ["a"] * 60_000])
def test_evaluation_of_large_values_stops_when_its_work_is_spent(source: str, value: Any) -> None:
    expression = parse_expression(source)
    budget = Budget()

    with pytest.raises(ExpressionError, match="too much work|takes a text"):
        expression.evaluate({"input": value, "item": value[:]}, budget)


def test_hash_of_a_value_nested_too_deep_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(ExpressionError, match="nested deeper"):
        evaluate("sha256(input)", {"input": deep})


def test_error_is_the_same_after_the_wire() -> None:
    error = ExpressionError("wrong", ".args[0]")

    again = error_from_wire(error_to_wire(error))

    assert isinstance(again, ExpressionError)
    assert (again.message, again.path, str(again)) == ("wrong", ".args[0]", "wrong")


_WORDS = [
    *(
        "input",
        "item",
        "itemKey",
        "steps",
        ".a",
        ".output",
        ".from",
        ".__x",
        '["a"]',
        "[0]",
        "[-1]",
    ),
    *("1", "0", "2.5", "1e308", "9223372036854775807", "'a'", '"b"', r"'\u00e9'", "true", "null"),
    *("==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "and", "or", "not", "(", ")"),
    *("[", "]", ",", "size(", "sha256(", "coalesce(", "keys(", "contains(", "lower(", "default("),
    *("**", "=", "lambda", "for", "in", "{", "}", ":", "\\", "'", "\0", "é", "\ud800", "f''", "_"),
]
_LEAVES = ["1", "0", "2.5", "'a'", "true", "null", "input", "input.a", "item[0]", "steps.a.output"]


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from("== != < <= > >= + - * / % and or".split())
    return st.one_of(
        st.builds("({} {} {})".format, inner, operators, inner),
        st.builds("{}({})".format, st.sampled_from(["size", "sha256", "keys", "upper"]), inner),
        st.builds("contains({}, {})".format, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("not {}".format, inner),
        st.builds("({})[{}]".format, inner, inner),
    )


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=5,
)


def _only_expression_errors_come_out(source: str, value: Any) -> None:
    try:
        result = parse_expression(source).evaluate(
            {"input": value, "item": value, "steps": {"a": {"output": value}}}
        )
    except ExpressionError:
        return
    parse_expression("sha256(input)").evaluate({"input": result})


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(_WORDS), max_size=12).map(" ".join), _JSON)
def test_random_tokens_never_raise_anything_else(source: str, value: Any) -> None:
    _only_expression_errors_come_out(source, value)


@settings(max_examples=300, deadline=None)
@given(st.recursive(st.sampled_from(_LEAVES), _grow, max_leaves=8), _JSON)
def test_random_expressions_never_raise_anything_else(source: str, value: Any) -> None:
    _only_expression_errors_come_out(source, value)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_random_text_never_raises_anything_else(source: str) -> None:
    _only_expression_errors_come_out(source, None)
