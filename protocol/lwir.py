"""Validation of workflow documents: every finding at once, in the order of the document."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from .codec import Json
from .errors import ValueRefusedError
from .expressions import Expression, Reference
from .findings import Finding
from .graph import Node, ScopeGraph, build_graph
from .lwir_fields import DOCUMENT_FIELDS
from .lwir_report import Report, check_fields
from .templates import Keys
from .values import check_json

CODES = frozenset(
    "lwir.unknown_field lwir.missing_field lwir.invalid_value lwir.unknown_kind "
    "lwir.invalid_max_visits lwir.invalid_cycle lwir.output_ambiguous_for_multi_visit "
    "lwir.unknown_tool lwir.unknown_model lwir.unknown_workflow lwir.invalid_decision_target "
    "lwir.invalid_code_run_source lwir.unknown_need lwir.duplicate_step_id lwir.reserved_id "
    "expression.invalid schema.unsupported_keyword".split()
)
IDS_SHOWN_MAX = 10


def validate_lwir(
    document: object,
    *,
    tools: Collection[str] | None = None,
    models: Collection[str] | None = None,
    workflows: Collection[str] | None = None,
) -> list[Finding]:
    """Returns all findings of a workflow document, in its order; none means it is valid.

    `tools`, `models` and `workflows` are what the definition has, or None if that isn't known;
    the document's permissions must lie within them.
    """
    try:
        check_json(document)
    except ValueRefusedError as error:
        return [Finding("lwir.invalid_value", error.path, f"no JSON value: {error.reason}")]
    report = Report()
    check_fields(report, (), document, DOCUMENT_FIELDS)
    if isinstance(document, dict):
        _check_names(report, document, {"tool": tools, "model": models, "workflow": workflows})
        output = document.get("output")
        if isinstance(output, dict) and isinstance(output.get("step"), str):
            report.output_steps[("steps",)] = ("output", "step")
        _check_scope(report, document, ("steps",), document.get("steps"), ())
    positions = _Positions(document)
    return [finding for _, finding in sorted(report.findings, key=lambda f: positions.of(f[0]))]


@dataclass(frozen=True, slots=True)
class _Scope:
    """The steps of one list, and the place in it from where a template looks."""

    steps: list[dict[str, Any]]
    index: dict[str, int]
    graph: ScopeGraph | None  # None: its edges have findings, so only existence is checked
    repeated: frozenset[int]  # steps with several visits
    viewer: int = -1

    def sees(self, step: int) -> bool:
        assert self.graph is not None, "asked only where the edges are sound"
        if step in self.graph.ancestors[self.viewer]:
            return True
        if step == self.viewer:
            return any(step in loop.members for loop in self.graph.loops)
        return self.graph.share_cycle(step, self.viewer)


class _Positions:
    """The order of a document: where each field stands, as a list of positions."""

    def __init__(self, document: object) -> None:
        self._document = document
        self._orders: dict[int, dict[str, int]] = {}

    def of(self, keys: Keys) -> tuple[int, ...]:
        """Returns the position of a field; one that is missing stands after those that aren't."""
        position: list[int] = []
        value: Any = self._document
        for key in keys:
            if isinstance(key, int):
                position.append(key)
                value = value[key] if isinstance(value, list) and key < len(value) else None
                continue
            if not isinstance(value, dict):
                break
            order = self._orders.get(id(value))
            if order is None:
                order = self._orders[id(value)] = {name: i for i, name in enumerate(value)}
            position.append(order.get(key, len(order)))
            value = value.get(key)
        return tuple(position)


def _check_names(
    report: Report, document: dict[str, Any], defined: dict[str, Collection[str] | None]
) -> None:
    """Checks permissions against the definition, and the steps' names against the permissions."""
    permissions = document.get("permissions", {})
    permitted: dict[str, set[str] | None] = {}
    for kind, known in defined.items():
        field: Keys = ("permissions", f"{kind}s")
        names = permissions.get(f"{kind}s") if isinstance(permissions, dict) else None
        if names is None and kind == "workflow":
            permitted[kind] = None if known is None else set(known)
            continue
        if not isinstance(permissions, dict) or field in report.refused:
            permitted[kind] = None
            continue
        permitted[kind] = {name for name in names or () if isinstance(name, str)}
        for index, name in enumerate(names or ()):
            keys = (*field, index)
            if known is not None and keys not in report.refused and name not in known:
                shown = _list_names(known)
                message = f"the definition has no {kind} {name[:60]!r}; it has {shown}"
                report.add(f"lwir.unknown_{kind}", keys, message)
    for kind, keys, name in report.names:
        allowed = permitted[kind]
        if allowed is not None and name not in allowed:
            message = (
                f"{name[:60]!r} is not among the permitted {kind}s ({_list_names(allowed)}): "
                f"use one of them, or add it to permissions.{kind}s"
            )
            report.add(f"lwir.unknown_{kind}", keys, message)


def _list_names(names: Collection[str]) -> str:
    shown = sorted(names)[:IDS_SHOWN_MAX]
    return (", ".join(map(repr, shown)) or "none") + (" …" if len(names) > len(shown) else "")


def _check_scope(
    report: Report, document: Json, keys: Keys, value: Json, around: tuple[_Scope, ...]
) -> None:
    """Checks what the steps of one list say of each other, then the lists inside them."""
    if not isinstance(value, list) or keys in report.refused:
        return
    steps = [step if isinstance(step, dict) else {} for step in value]
    index: dict[str, int] = {}
    is_sound = not any((*keys, i) in report.refused for i in range(len(steps)))
    for i, step in enumerate(steps):
        is_sound &= _check_id(report, (*keys, i, "id"), step.get("id"), index, i)
    nodes: list[Node] = []
    for i, step in enumerate(steps):
        needs = list(_read_needs(report, (*keys, i), step, index))
        targets = list(_read_targets(report, (*keys, i), step, index))
        is_sound &= None not in needs and None not in targets
        is_sound &= not report.refused & {(*keys, i, "uses"), (*keys, i, "needs")}
        is_decision = step.get("uses") == "decision"
        nodes.append(
            Node(
                str(step.get("id")),
                tuple(need for need in needs if need is not None),
                is_decision,
                tuple(t for t in targets if t is not None and t != "end") if is_decision else (),
            )
        )
    graph = build_graph(nodes) if is_sound else None
    if graph is not None and _check_cycles(report, keys, steps, graph):
        graph = None
    _check_output_step(report, document, keys, steps, index)
    scope = _Scope(steps, index, graph, frozenset(_find_repeated(report, keys, steps, graph)))
    for i, step in enumerate(steps):
        view = _Scope(scope.steps, scope.index, scope.graph, scope.repeated, i)
        scopes = (*around, view)
        for field, template in report.templates.get((*keys, i), ()):
            if field not in report.refused:
                _check_references(report, field, template.expressions, scopes)
        if step.get("uses") == "parallel":
            _check_scope(report, document, (*keys, i, "steps"), step.get("steps"), scopes)


def _check_id(report: Report, keys: Keys, value: Json, index: dict[str, int], i: int) -> bool:
    """Notes the step under its id, and says whether the id is sound."""
    if not isinstance(value, str):
        return False
    if value in index:
        message = f"step {index[value]} of this list has the id {value[:60]!r} too: choose another"
        if keys not in report.refused:
            report.add("lwir.duplicate_step_id", keys, message)
        return False
    index[value] = i
    return keys not in report.refused


def _read_needs(
    report: Report, keys: Keys, step: dict[str, Any], index: dict[str, int]
) -> Iterator[str | None]:
    """Yields what the step needs; None for what has a finding."""
    needs = step.get("needs", [])
    if not isinstance(needs, list):
        return
    for i, need in enumerate(needs):
        field = (*keys, "needs", i)
        if field not in report.refused and need not in index:
            message = f"no step {need[:60]!r} in this list; there are {_list_names(index)}"
            report.add("lwir.unknown_need", field, message)
        yield None if field in report.refused else need


def _read_targets(
    report: Report, keys: Keys, step: dict[str, Any], index: dict[str, int]
) -> Iterator[str | None]:
    """Yields the targets of a decision; None for what is missing or has a finding."""
    if step.get("uses") != "decision":
        return
    for field, target in _list_targets(keys, step):
        if isinstance(target, str) and field not in report.refused:
            if target != "end" and target not in index:
                report.add(
                    "lwir.invalid_decision_target",
                    field,
                    f"no step {target[:60]!r} in this list: a decision goes to 'end' or to one of "
                    + _list_names(index),
                )
        yield target if isinstance(target, str) and field not in report.refused else None


def _list_targets(keys: Keys, step: dict[str, Any]) -> Iterator[tuple[Keys, Json]]:
    config = step.get("with")
    config = config if isinstance(config, dict) else {}
    cases = config.get("cases")
    for i, case in enumerate(cases if isinstance(cases, list) else (None,)):
        yield (*keys, "with", "cases", i, "to"), case.get("to") if isinstance(case, dict) else None
    yield (*keys, "with", "default"), config.get("default")


def _check_cycles(
    report: Report, keys: Keys, steps: list[dict[str, Any]], graph: ScopeGraph
) -> bool:
    """Reports cycles that can't run or would never end, and says whether there are any."""
    if graph.stuck:
        _report_stuck(report, keys, graph)
        return True
    found = False
    reported: set[int] = set()
    for loop in graph.loops:
        workers = [i for i in sorted(loop.members) if steps[i].get("uses") != "decision"]
        target = steps[loop.target].get("id")
        if not workers:
            found = True
            message = "this choice goes round without running any step: let it go back to a step"
            for field, name in _list_targets((*keys, loop.decision), steps[loop.decision]):
                if name == target:
                    report.add("lwir.invalid_cycle", field, message)
                    break
        for i in workers:
            field = (*keys, i, "maxVisits")
            if field in report.refused or i in reported or steps[i].get("maxVisits", 1) >= 2:
                continue
            reported.add(i)
            found = True
            decision = str(steps[loop.decision].get("id"))[:60]
            message = f"decision {decision!r} runs this step again: give it maxVisits of at least 2"
            report.add("lwir.invalid_cycle", field, message)
    return found


def _report_stuck(report: Report, keys: Keys, graph: ScopeGraph) -> None:
    """Reports each cycle of needs once, at its first step."""
    seen: set[int] = set()
    for i in graph.stuck:
        ring = {j for j in graph.ancestors[i] if i in graph.ancestors[j]}
        if i in ring and i not in seen:
            names = _list_names([graph.ids[j][:60] for j in ring])
            message = f"these steps wait for each other and never start: {names}; remove a need"
            report.add("lwir.invalid_cycle", (*keys, i, "needs"), message)
        seen |= ring
    if not seen:
        message = "two cycles cross, so this step would wait for itself: nest them or part them"
        report.add("lwir.invalid_cycle", (*keys, graph.stuck[0], "needs"), message)


def _find_repeated(
    report: Report, keys: Keys, steps: list[dict[str, Any]], graph: ScopeGraph | None
) -> Iterator[int]:
    for i, step in enumerate(steps):
        visits = step.get("maxVisits", 1)
        if (*keys, i, "maxVisits") not in report.refused and isinstance(visits, int) and visits > 1:
            yield i
        elif step.get("uses") == "decision" and graph is not None:
            if any(i in loop.members for loop in graph.loops):
                yield i


def _check_output_step(
    report: Report, document: Json, keys: Keys, steps: list[dict[str, Any]], index: dict[str, int]
) -> None:
    field = report.output_steps.get(keys)
    if field is None or field in report.refused:
        return
    name: Any = document
    for key in field:
        name = name[key]
    if name not in index or steps[index[name]].get("uses") == "decision":
        there = [str(s.get("id"))[:60] for s in steps if s.get("uses") != "decision"]
        report.add_value(field, f"a step that is no decision: {_list_names(there)}", name)


def _check_references(
    report: Report,
    field: Keys,
    expressions: tuple[tuple[Keys, Expression], ...],
    scopes: tuple[_Scope, ...],
) -> None:
    in_branch = len(scopes) > 1
    # The key of an item is evaluated with the item, and gives the key.
    has_item = in_branch or field[-2:] == ("with", "itemKey")
    for inner, expression in expressions:
        for reference in expression.references:
            keys = field + inner
            if reference.root == "steps":
                code, message = _judge_reference(reference, scopes)
                if code:
                    report.add(code, keys, message)
            elif (reference.root == "item" and not has_item) or (
                reference.root == "itemKey" and not in_branch
            ):
                message = f"{reference.root} is known only inside a parallel step's branches"
                report.add("expression.invalid", keys, message)


def _judge_reference(reference: Reference, scopes: tuple[_Scope, ...]) -> tuple[str, str]:
    """Returns the code and sentence of what is wrong with a reference, or empty texts."""
    name = reference.step_id or ""
    for scope in reversed(scopes):
        step = scope.index.get(name)
        if step is None:
            continue
        if scope.graph is None:
            return "", ""
        if not scope.sees(step):
            viewer = scope.graph.ids[scope.viewer][:60]
            return "expression.invalid", (
                f"{name[:60]!r} need not have run when {viewer!r} starts: "
                f"add it to the needs of {viewer!r}"
            )
        if reference.member == "output" and step in scope.repeated:
            return "lwir.output_ambiguous_for_multi_visit", (
                f"{name[:60]!r} may be visited more than once: write lastOutput or allVisits"
            )
        return "", ""
    known = _list_names([known for scope in scopes for known in scope.index])
    return "expression.invalid", f"no step {name[:60]!r} here or around; there are {known}"
