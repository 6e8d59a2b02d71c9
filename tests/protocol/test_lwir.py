"""Validation of workflow documents: the shared cases, and each rule by itself."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from planaria.protocol.lwir import CODES, validate_lwir

FOLDER = Path(__file__).parent / "cases"
CASES = json.loads((FOLDER / "lwir.json").read_text())
FIELD_CASES = json.loads((FOLDER / "lwir_fields.json").read_text())


def step(id: str, **fields: Any) -> dict[str, Any]:
    return {"id": id, "uses": "tool.call", "with": {"tool": "t", "args": {}}, **fields}


def decide(id: str, default: str, *cases: tuple[str, str], **fields: Any) -> dict[str, Any]:
    listed = [{"when": when, "to": to} for when, to in cases]
    return {"id": id, "uses": "decision", "with": {"cases": listed, "default": default}, **fields}


def group(id: str, *steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    config = {
        "items": "{{ input.list }}",
        "itemKey": "{{ item }}",
        "maxBranches": 10,
        "maxConcurrency": 2,
        "failureMode": "fail_fast",
        "fanIn": {"order": "input"},
    }
    config |= fields.pop("config", {})
    return {"id": id, "uses": "parallel", "with": config, "steps": list(steps), **fields}


def document(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "lwir/v1",
        "kind": "Workflow",
        "metadata": {"name": "w"},
        "permissions": {"tools": ["t"], "models": ["m"]},
        "steps": list(steps),
        **fields,
    }


def find(*steps: dict[str, Any], **fields: Any) -> list[tuple[str, str]]:
    return [(f.code, f.path) for f in validate_lwir(document(*steps, **fields))]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_shared_case_has_exactly_its_findings(case: dict[str, Any]) -> None:
    before = copy.deepcopy(case["lwir"])

    findings = validate_lwir(case["lwir"])

    assert sorted(case["findings"]) == sorted(finding.code for finding in findings)
    assert all(finding.message and finding.code in CODES for finding in findings)
    assert before == case["lwir"]


@pytest.mark.parametrize("value", [None, [], "x", 1, True])
def test_document_that_is_no_object_is_one_finding(value: Any) -> None:
    assert [(f.code, f.path) for f in validate_lwir(value)] == [("lwir.invalid_value", "$")]


def test_empty_document_misses_its_required_fields() -> None:
    assert [(f.code, f.path) for f in validate_lwir({})] == [
        ("lwir.missing_field", f"$.{name}") for name in ("apiVersion", "kind", "metadata", "steps")
    ]


def test_value_that_is_not_json_is_one_finding() -> None:
    bad = document(step("a", input={"x": float("nan")}))

    assert [(f.code, f.path) for f in validate_lwir(bad)] == [
        ("lwir.invalid_value", "$.steps[0].input.x")
    ]


def test_findings_come_in_the_order_of_the_document() -> None:
    found = find(
        step("a", needs=["ghost"], cache=1),
        step("b", maxVisits=0, input="{{ steps.nope.output }}"),
        decide("d", "nowhere", ("always", "b"), output={"mode": "json"}),
        extra=1,
        input={},
    )

    assert found == [
        ("lwir.unknown_need", "$.steps[0].needs[0]"),
        ("lwir.unknown_field", "$.steps[0].cache"),
        ("lwir.invalid_max_visits", "$.steps[1].maxVisits"),
        ("expression.invalid", "$.steps[1].input"),
        ("lwir.invalid_value", "$.steps[2].with.cases[0].when"),
        ("lwir.invalid_decision_target", "$.steps[2].with.default"),
        ("lwir.unknown_field", "$.steps[2].output"),
        ("lwir.unknown_field", "$.extra"),
        ("lwir.missing_field", "$.input.schema"),
    ]


CALL = {"workflow": "w2", "input": {}}


@pytest.mark.parametrize("case", FIELD_CASES, ids=json.dumps)
def test_step_has_exactly_the_findings_of_its_fields(case: dict[str, Any]) -> None:
    assert find(case["step"]) == [(code, "$.steps[0]" + path) for code, path in case["findings"]]


@pytest.mark.parametrize("source", ["\0", "(" * 5_000, " " * 20_001, "def f(:"])
def test_source_that_python_does_not_read_is_refused(source: str) -> None:
    broken = {"id": "c", "uses": "code.run", "with": {"source": source}}

    assert find(broken) == [("lwir.invalid_code_run_source", "$.steps[0].with.source")]


def test_permissions_lie_within_the_definition() -> None:
    lwir = document(
        step("a"),
        {"id": "c", "uses": "workflow.call", "with": CALL},
        permissions={"tools": ["t", "u"], "models": ["m"]},
    )

    found = validate_lwir(lwir, tools=["u"], models=[], workflows=["other"])

    assert [(f.code, f.path) for f in found] == [
        ("lwir.unknown_tool", "$.permissions.tools[0]"),
        ("lwir.unknown_model", "$.permissions.models[0]"),
        ("lwir.unknown_workflow", "$.steps[1].with.workflow"),
    ]


def test_without_permissions_no_tool_may_be_named() -> None:
    lwir = document(step("a"))
    del lwir["permissions"]

    assert [f.code for f in validate_lwir(lwir)] == ["lwir.unknown_tool"]


@pytest.mark.parametrize("permissions", [5, {"tools": "t"}])
def test_broken_permissions_are_not_held_against_steps(permissions: Any) -> None:
    assert [code for code, _ in find(step("a"), permissions=permissions)] == ["lwir.invalid_value"]


def test_output_step_is_a_step_of_the_top_level() -> None:
    steps = (group("g", step("x")), decide("d", "end"))

    assert find(*steps, output={"step": "g"}) == []
    assert find(*steps, output={"step": "x"}) == [("lwir.invalid_value", "$.output.step")]
    assert find(*steps, output={"step": "d"}) == [("lwir.invalid_value", "$.output.step")]


def test_branch_sees_its_own_steps_and_what_its_group_needs() -> None:
    inside = [
        step("x", input=["{{ steps.a.output }}", "{{ item }}", "{{ itemKey }}"]),
        step("y", needs=["x"], input="{{ steps.x.output }} {{ steps.b.output }}"),
    ]

    found = find(step("a"), step("b"), group("g", *inside, needs=["a"]))

    assert found == [("expression.invalid", "$.steps[2].steps[1].input")]


def test_inside_of_another_scope_is_never_seen() -> None:
    found = find(
        group("g", step("x")),
        step("b", needs=["g"], input="{{ steps.x.output }}"),
        group("h", step("y", input="{{ steps.x.output }}"), needs=["g"]),
    )

    assert found == [
        ("expression.invalid", "$.steps[1].input"),
        ("expression.invalid", "$.steps[2].steps[0].input"),
    ]


def test_nested_group_sees_out_through_every_level() -> None:
    inner = group("h", step("z", input="{{ steps.a.output }} {{ steps.x.output }}"), needs=["x"])
    inner["with"]["items"] = "{{ item.list }}"

    assert find(step("a"), group("g", step("x"), inner, needs=["a"])) == []


def test_own_step_hides_one_of_the_same_id_around() -> None:
    found = find(
        step("a"), group("g", step("x", input="{{ steps.a.output }}"), step("a"), needs=["a"])
    )

    assert found == [("expression.invalid", "$.steps[1].steps[0].input")]


def test_ancestors_are_found_through_decisions() -> None:
    found = find(
        step("a"),
        decide("d", "c", ("{{ steps.a.output }}", "b"), needs=["a"]),
        step("b", input="{{ steps.a.output }} {{ steps.d.output.chosen }}"),
        step("c", input="{{ steps.b.output }}"),
    )

    assert found == [("expression.invalid", "$.steps[3].input")]


def test_steps_on_a_common_cycle_may_refer_to_each_other_and_themselves() -> None:
    refer = "{{ steps.a.allVisits }} {{ steps.b.lastOutput }} {{ steps.d.lastOutput }}"
    steps = [
        step("a", maxVisits=2, input=refer),
        step("b", maxVisits=2, needs=["a"], input=refer),
        decide("d", "a", ("{{ steps.b.lastOutput.ok }}", "end"), needs=["b"]),
        step("e", needs=["b"], input=refer),
    ]

    assert find(*steps[:3]) == []
    assert find(*steps) == [("expression.invalid", "$.steps[3].input")]


def test_output_of_a_decision_on_a_cycle_is_ambiguous() -> None:
    found = find(
        step("a", maxVisits=2, input="{{ steps.d.output }}"), decide("d", "a", needs=["a"])
    )

    assert found == [("lwir.output_ambiguous_for_multi_visit", "$.steps[0].input")]


def test_each_step_of_a_cycle_that_may_run_only_once_is_found() -> None:
    found = find(
        step("a"),
        step("b", needs=["a"], maxVisits=1),
        step("c", needs=["b"], maxVisits=2),
        decide("d", "a", ("{{ input.x }}", "b"), needs=["c"]),
    )

    assert found == [
        ("lwir.invalid_cycle", "$.steps[0].maxVisits"),
        ("lwir.invalid_cycle", "$.steps[1].maxVisits"),
    ]


def test_two_cycles_of_needs_are_two_findings() -> None:
    found = find(
        step("a", needs=["b"]),
        step("b", needs=["a"]),
        step("c", needs=["d", "a"]),
        step("d", needs=["c"]),
        step("e", needs=["d"], input="{{ steps.x.output }} {{ steps.b.output }}"),
    )

    assert found == [
        ("lwir.invalid_cycle", "$.steps[0].needs"),
        ("lwir.invalid_cycle", "$.steps[2].needs"),
        ("expression.invalid", "$.steps[4].input"),
    ]


def test_scope_with_a_broken_edge_is_only_checked_for_existence() -> None:
    found = find(
        step("a", needs=["ghost"]),
        step("b", maxVisits=2),
        step("c", input="{{ steps.a.output }} {{ steps.b.output }}"),
    )

    assert found == [("lwir.unknown_need", "$.steps[0].needs[0]")]


def test_broken_edge_in_a_branch_leaves_the_scope_around_checked() -> None:
    found = find(step("a"), group("g", step("x", needs=["ghost"], input="{{ steps.a.output }}")))

    assert found == [
        ("lwir.unknown_need", "$.steps[1].steps[0].needs[0]"),
        ("expression.invalid", "$.steps[1].steps[0].input"),
    ]


def test_field_with_a_finding_takes_part_in_no_other_check() -> None:
    broken = group("g", step("x"), config={"items": "a {{ steps.ghost.output }}"})

    assert find(broken) == [("lwir.invalid_value", "$.steps[0].with.items")]


def test_need_of_a_step_with_a_reserved_id_is_no_second_finding() -> None:
    assert find(step("a.b"), step("c", needs=["a.b"])) == [("lwir.reserved_id", "$.steps[0].id")]


JUNK: list[Any] = [None, True, 0, -1, 1.5, "", "x", "{{", [], [None], {}, {"x": 1}]


def _replace_everywhere(value: Any) -> Any:
    """Yields copies of a document, each with one value in it replaced by junk."""
    yield from JUNK
    if isinstance(value, dict):
        for key, item in value.items():
            yield {k: v for k, v in value.items() if k != key}
            for other in _replace_everywhere(item):
                yield {**value, key: other}
    elif isinstance(value, list):
        for index, item in enumerate(value):
            for other in _replace_everywhere(item):
                yield [*value[:index], other, *value[index + 1 :]]


def test_junk_in_any_place_never_breaks_validation() -> None:
    steps = [
        group("g", step("x", input="{{ item }}"), decide("d", "x", ("{{ true }}", "end"))),
        {"id": "c", "uses": "code.run", "with": {"source": "1"}, "needs": ["g"]},
        {"id": "w", "uses": "wait", "with": {"signal": "s"}},
    ]

    for broken in _replace_everywhere(document(*steps, output={"step": "c", "schema": {}})):
        for finding in validate_lwir(broken, tools=["t"], models=["m"]):
            assert finding.code in CODES
