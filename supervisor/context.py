"""What a step's expressions see: the roots, from the state of its run at its attempt's start."""

from typing import Any

from planaria.protocol.codec import Json
from planaria.protocol.payloads import Ref
from planaria.protocol.templates import Template

from .run_state import Library, RunState, ScopeState, StepState, Value


def evaluate(run: RunState, step: StepState, template: Template, library: Library) -> Json:
    """Returns a template's value for the step's running attempt.

    Raises:
        ExpressionError: an operand of a wrong type, or too much work.
    """
    return template.evaluate(make_roots(run, step, library))


def make_roots(run: RunState, step: StepState, library: Library) -> dict[str, Json]:
    """Returns every root with its values loaded; for what the kernel evaluates itself."""
    read = library.value
    item, item_key = find_item(step.scope)
    return {
        "input": read(run.input),
        "item": read(item),
        "itemKey": item_key,
        "steps": {
            step_id: {
                "output": read(found.outputs[count - 1]) if count else None,
                "lastOutput": read(found.outputs[count - 1]) if count else None,
                "allVisits": [read(value) for value in found.outputs[:count]],
            }
            for step_id, found, count in step.context
        },
        **_describe_run(run),
        "cycle": read(run.cycle),
    }


def pack_context(run: RunState, step: StepState) -> dict[str, Any]:
    """Returns the roots for a child, each value as {"v": value} or {"r": blob reference}.

    Only what the step's templates refer to is in it, besides the default input.
    """
    item, item_key = find_item(step.scope)
    members: dict[str, set[str | None]] = {}
    roots = {reference.root for reference in step.plan.references}
    for reference in step.plan.references:
        if reference.step_id is not None:
            members.setdefault(reference.step_id, set()).add(reference.member)
    in_branch = step.scope.group is not None
    steps: dict[str, Any] = {}
    for step_id, found, count in step.context:
        wanted = members[step_id]
        entry: dict[str, Any] = {}
        if wanted - {"allVisits"}:
            entry["lastOutput"] = wrap_value(found.outputs[count - 1] if count else None)
        if wanted - {"lastOutput", "output"}:
            entry["allVisits"] = [wrap_value(value) for value in found.outputs[:count]]
        steps[step_id] = entry
    needs_input = "input" in roots or (not in_branch and "input" not in step.plan.document)
    needs_item = in_branch and ("item" in roots or "input" not in step.plan.document)
    return {
        "input": wrap_value(run.input if needs_input else None),
        "item": wrap_value(item if needs_item else None),
        "itemKey": item_key,
        "inBranch": in_branch,
        "steps": steps,
        **_describe_run(run),
        "cycle": wrap_value(run.cycle),
    }


def find_item(scope: ScopeState) -> tuple[Value, str | None]:
    """Returns the item and its key of the innermost branch around a scope, or None twice."""
    group = scope.group
    if group is None:
        return None, None
    return group.items[scope.branch_index], group.keys[scope.branch_index]


def _describe_run(run: RunState) -> dict[str, Json]:
    assert run.plan is not None
    return {
        "workflow": {
            "id": run.admission["workflowId"],
            "name": run.plan.name,
            "runId": run.run_id,
            "versionId": run.plan.version_id,
        },
    }


def unwrap_value(wrapped: dict[str, Any]) -> Value:
    """Returns what `wrap_value` was given."""
    return wrapped["v"] if "v" in wrapped else Ref(wrapped["r"])


def wrap_value(value: Value) -> dict[str, Any]:
    """Returns a value as {"v": value} or {"r": blob reference}."""
    return {"r": value.fields} if isinstance(value, Ref) else {"v": value}
