"""Outputs: which one a scope has, and whether one fits what its step or run declares."""

from planaria.protocol.codec import Json
from planaria.protocol.schemas import validate_value

from .plan import Plan, StepPlan
from .run_state import ScopeState, StepState, Value

_MODE_TYPES: dict[str, tuple[type, str]] = {
    "text": (str, "text"),
    "object": (dict, "an object"),
    "array": (list, "a list"),
}


def scope_output(scope: ScopeState) -> Value:
    """Returns the output of a scope that ended well; null if no step of it was committed."""
    step = _output_step(scope)
    return step.outputs[-1] if step is not None and step.outputs else None


def scope_output_path(scope: ScopeState) -> str | None:
    """Returns the path of the visit that the scope's output comes from."""
    step = _output_step(scope)
    if step is None or not step.outputs:
        return None
    visit = f".visit[{len(step.outputs) - 1}]" if step.plan.multi else ""
    prefix = f"{scope.path}." if scope.path else ""
    return f"{prefix}{step.plan.id}{visit}"


def _output_step(scope: ScopeState) -> StepState | None:
    """Returns the last step in document order that was committed and that no committed one needs.

    Decisions count on neither side: the review that a decision looks at is still the output.
    """
    if scope.plan.output_step is not None:
        return scope.steps[scope.plan.output_step]
    working = [s for s in scope.steps if s.outputs and s.plan.kind != "decision"]
    needed = {need for s in working for need in scope.plan.graph.needs[s.plan.index]}
    for step in reversed(working):
        if step.plan.index not in needed:
            return step
    return None


def check_output(step: StepPlan, value: Json) -> str | None:
    """Returns what is wrong with a step's output, as a sentence, or None."""
    if step.output_mode == "choice" and value not in step.output_values:
        return f"step {step.id!r}: the output is none of the {len(step.output_values)} choices"
    expected = _MODE_TYPES.get(step.output_mode)
    if expected is not None and not isinstance(value, expected[0]):
        return f"step {step.id!r}: expected {expected[1]}, got {type(value).__name__}"
    return _check_schema(f"step {step.id!r}: the output", step.output_schema, value)


def check_run_output(plan: Plan, value: Json) -> str | None:
    """Returns what is wrong with a run's output, as a sentence, or None."""
    return _check_schema("the run's output", plan.output_schema, value)


def _check_schema(what: str, schema: Json, value: Json) -> str | None:
    findings = validate_value(schema, value) if schema else []
    if not findings:
        return None
    listed = "; ".join(f"{f.path}: {f.message}" for f in findings[:5])
    return f"{what} doesn't fit its schema: {listed}"
