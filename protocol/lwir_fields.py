"""The fields of a workflow document: what each may hold, and which kinds of steps have it.

A kind has only the fields that something is done with: any other is reported, never ignored.
"""

import ast
import re
import warnings

from .codec import Json
from .limits import STEPS_PER_SCOPE_MAX
from .lwir_report import (
    Check,
    Field,
    Report,
    a_boolean,
    a_duration,
    a_list,
    a_name,
    a_schema,
    a_template,
    a_text,
    a_text_template,
    an_integer,
    an_object,
    any_text,
    check_fields,
    one_of,
)
from .moments import parse_moment
from .templates import Keys

VISITS_MAX = 100
ATTEMPTS_MAX = 10
BRANCHES_MAX = 10_000
TURNS_MAX = 1_000  # a turn is two events at least; SESSION_EVENTS_MAX leaves room for its tools
CODE_CHARS_MAX = 20_000  # ast.parse took 0.24 s for as much, on a busy machine

WORKER_KINDS = frozenset({"ai.generate", "tool.call", "code.run"})
ON_TIMEOUT = ("reject", "fail")  # of an approval that nobody has decided in time
OUTPUT_MODES = ("text", "object", "array", "choice", "json")

_VERSION_ID = re.compile(r"wv_[0-9a-f]{32}")


def a_template_of(kind: type, expected: str) -> Check:
    """A value of that type with expressions in it, or one expression that yields such a value."""

    def check(report: Report, keys: Keys, value: Json) -> None:
        template = report.add_template(keys, value)
        if template is None:
            return
        if template.is_expression and template.is_constant:
            value = template.evaluate({})
        elif template.is_expression:
            return
        if not isinstance(value, kind):
            report.add_value(keys, f"{expected}, or one expression that yields it", value)

    return check


def a_condition(report: Report, keys: Keys, value: Json) -> None:
    """One expression, or true or false; other text would always hold."""
    template = report.add_template(keys, value)
    if template is not None and not (template.is_expression or isinstance(value, bool)):
        report.add_value(keys, "one expression, like '{{ input.ok }}'", value)


def _template_or(check: Check) -> Check:
    def check_constant(report: Report, keys: Keys, value: Json) -> None:
        template = report.add_template(keys, value)
        if template is not None and template.is_constant:
            check(report, keys, template.evaluate({}))

    return check_constant


def a_moment(report: Report, keys: Keys, value: Json) -> None:
    try:
        parse_moment(value)
    except ValueError:
        report.add_value(keys, "a time with its offset, like '2030-01-31T09:00:00Z'", value)


def a_version_id(report: Report, keys: Keys, value: Json) -> None:
    if not isinstance(value, str) or not _VERSION_ID.fullmatch(value):
        report.add_value(keys, "'wv_' and 32 hexadecimal digits", value)


def a_step_id(report: Report, keys: Keys, value: Json) -> None:
    if not isinstance(value, str):
        report.add_value(keys, "a text", value)
    elif not value or value == "end" or "@attempt_" in value or any(c in value for c in ".[]"):
        report.add(
            "lwir.reserved_id",
            keys,
            f"{value[:60]!r} can't be an id: it must not be empty, be 'end', or hold "
            "'.', '[', ']' or '@attempt_'; choose another",
        )


def a_source(report: Report, keys: Keys, value: Json) -> None:
    code = "lwir.invalid_code_run_source"
    if not isinstance(value, str):
        report.add_value(keys, "Python source as one text", value)
        return
    if len(value) > CODE_CHARS_MAX:
        report.add(code, keys, f"{len(value)} characters; at most {CODE_CHARS_MAX} are read")
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of doubtful escapes: no reason to refuse the source
            ast.parse(value)
    except SyntaxError as error:
        where = f" (line {error.lineno})" if error.lineno else ""
        report.add(code, keys, f"not valid Python: {error.msg}{where}; correct it")
    except (ValueError, RecursionError, MemoryError) as error:
        report.add(code, keys, f"not readable as Python: {type(error).__name__}; simplify it")


def an_output(report: Report, keys: Keys, value: Json) -> None:
    mode = value.get("mode") if isinstance(value, dict) else None
    fields = dict(_OUTPUT)
    if mode == "choice":
        fields = {"mode": fields["mode"], "values": Field(fields["values"].check, True)}
    elif isinstance(mode, str) and mode in OUTPUT_MODES:
        del fields["values"]
    check_fields(report, keys, value, fields)


def a_group(report: Report, keys: Keys, value: Json) -> None:
    """The `with` of a parallel step."""
    check_fields(report, keys, value, _GROUP)
    if not isinstance(value, dict):
        return
    branches, concurrency = (*keys, "maxBranches"), (*keys, "maxConcurrency")
    if not report.refused & {branches, concurrency} and (
        value.get("maxConcurrency", 1) > value.get("maxBranches", BRANCHES_MAX)
    ):
        report.add_value(
            concurrency, f"at most maxBranches ({value['maxBranches']})", value["maxConcurrency"]
        )
    fan_in = value.get("fanIn")
    if isinstance(fan_in, dict) and isinstance(fan_in.get("outputStep"), str):
        report.output_steps[(*keys[:-1], "steps")] = (*keys, "fanIn", "outputStep")


def a_call(report: Report, keys: Keys, value: Json) -> None:
    """The `with` of a workflow.call step."""
    check_fields(report, keys, value, _CALL)
    _check_alternatives(report, keys, value, ("workflow", "workflowVersionId"))


def a_wait(report: Report, keys: Keys, value: Json) -> None:
    """The `with` of a wait step."""
    fields = dict(_WAIT)
    if isinstance(value, dict) and "signal" not in value:
        del fields["expiresIn"]  # a time comes by itself: nothing would ever expire
    check_fields(report, keys, value, fields)
    _check_alternatives(report, keys, value, ("signal", "until", "for"))


def _check_alternatives(report: Report, keys: Keys, value: Json, names: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        return
    given = [name for name in value if name in names]
    if not given:
        message = f"one of {', '.join(names)} is required: add it"
        report.add("lwir.missing_field", (*keys, names[0]), message)
    for name in given[1:]:
        message = f"only one of {', '.join(names)} can be given: remove it"
        report.add("lwir.invalid_value", (*keys, name), message)


def a_step_list(report: Report, keys: Keys, value: Json) -> None:
    if not isinstance(value, list) or not value:
        report.add_value(keys, "a non-empty list of steps", value)
        return
    if len(value) > STEPS_PER_SCOPE_MAX:
        report.add_value(keys, f"at most {STEPS_PER_SCOPE_MAX} steps", len(value))
        return
    around = report.step
    for index, step in enumerate(value):
        report.step = (*keys, index)
        _check_step(report, report.step, step)
    report.step = around


def _check_step(report: Report, keys: Keys, step: Json) -> None:
    if not isinstance(step, dict):
        report.add_value(keys, "a step (an object)", step)
        return
    kind = step.get("uses")
    if "uses" in step and not (isinstance(kind, str) and kind in WITH_FIELDS):
        shown = repr(kind)[:60] if isinstance(kind, str) else type(kind).__name__
        known = ", ".join(WITH_FIELDS)
        report.add("lwir.unknown_kind", (*keys, "uses"), f"{shown} is no kind; there are {known}")
        kind = None
    check_fields(report, keys, step, _step_fields(kind))


def _step_fields(kind: str | None) -> dict[str, Field]:
    """Returns the fields that a step of this kind has: only those that something is done with."""
    if kind is None:
        return {**dict.fromkeys(_STEP_FIELD_NAMES, Field(lambda *_: None)), **_COMMON}
    fields = {**_COMMON, "with": Field(WITH_FIELDS[kind], True)}
    if kind != "decision":
        fields["output"] = Field(an_output)
    if kind in WORKER_KINDS:
        fields["input"] = Field(a_template)
    if kind in WORKER_KINDS or kind in ("parallel", "workflow.call"):
        fields["retry"] = _RETRY
        fields["timeout"] = Field(a_duration)
    if kind == "ai.generate":
        fields["onFailure"] = Field(an_object({"repair": _REPAIR}))
    if kind == "code.run":
        fields["onFailure"] = Field(an_object({"fixer": _FIXER}))
    if kind == "parallel":
        fields["steps"] = Field(a_step_list, True)
    return fields


_STEP_FIELD_NAMES = (
    "id uses needs with input output maxVisits retry timeout onFailure sensitive steps".split()
)
_COMMON: dict[str, Field] = {
    "id": Field(a_step_id, True),
    "uses": Field(lambda *_: None, True),  # checked first: the other fields depend on it
    "needs": Field(a_list(a_text)),
    "maxVisits": Field(an_integer(1, VISITS_MAX, "lwir.invalid_max_visits")),
    "sensitive": Field(a_boolean),
}
_ATTEMPTS = Field(an_integer(1, ATTEMPTS_MAX), True)
_RETRY = Field(
    an_object(
        {
            "maxAttempts": _ATTEMPTS,
            "backoff": Field(one_of("fixed", "exponential")),
            "delay": Field(a_duration),
            "maxDelay": Field(a_duration),
        }
    )
)
_REPAIR = Field(an_object({"maxAttempts": _ATTEMPTS}))
_FIXER = Field(
    an_object(
        {
            "model": Field(a_name("model"), True),
            "maxAttempts": _ATTEMPTS,
            "instructions": Field(a_text),
        }
    )
)
_OUTPUT: dict[str, Field] = {
    "mode": Field(one_of(*OUTPUT_MODES), True),
    "schema": Field(a_schema),
    "values": Field(a_list(a_text, is_empty_allowed=False)),
}
_TOOLS = Field(a_list(a_name("tool")))
_GROUP: dict[str, Field] = {
    "items": Field(a_template_of(list, "a list"), True),
    "itemKey": Field(a_template, True),
    "maxBranches": Field(an_integer(1, BRANCHES_MAX), True),
    "maxConcurrency": Field(an_integer(1, BRANCHES_MAX), True),
    "failureMode": Field(one_of("fail_fast", "all_settled"), True),
    "fanIn": Field(
        an_object({"order": Field(one_of("input", "itemKey"), True), "outputStep": Field(a_text)}),
        True,
    ),
}
_CALL: dict[str, Field] = {
    "workflow": Field(a_name("workflow")),
    "workflowVersionId": Field(a_version_id),
    "input": Field(a_template, True),
    "wait": Field(a_boolean),
}
_WAIT: dict[str, Field] = {
    "signal": Field(a_text),
    "until": Field(_template_or(a_moment)),
    "for": Field(_template_or(a_duration)),
    "expiresIn": Field(a_duration),
}
_CASE = an_object({"when": Field(a_condition, True), "to": Field(a_text, True)})
WITH_FIELDS: dict[str, Check] = {
    "ai.generate": an_object(
        {
            "model": Field(a_name("model"), True),
            "prompt": Field(a_text_template, True),
            "tools": _TOOLS,
            "instructions": Field(a_text_template),
            "maxTurns": Field(an_integer(1, TURNS_MAX)),
        }
    ),
    "tool.call": an_object(
        {
            "tool": Field(a_name("tool"), True),
            "args": Field(a_template_of(dict, "an object"), True),
        }
    ),
    "code.run": an_object({"source": Field(a_source, True), "tools": _TOOLS}),
    "parallel": a_group,
    "decision": an_object({"cases": Field(a_list(_CASE), True), "default": Field(a_text, True)}),
    "workflow.call": a_call,
    "approval": an_object(
        {
            "prompt": Field(a_text_template, True),
            "data": Field(a_template),
            "expiresIn": Field(a_duration),
            "onTimeout": Field(one_of(*ON_TIMEOUT)),
        }
    ),
    "wait": a_wait,
}
DOCUMENT_FIELDS: dict[str, Field] = {
    "apiVersion": Field(one_of("lwir/v1"), True),
    "kind": Field(one_of("Workflow"), True),
    "metadata": Field(
        an_object(
            {"name": Field(a_text, True), "version": Field(a_text), "description": Field(any_text)}
        ),
        True,
    ),
    "input": Field(an_object({"schema": Field(a_schema, True)})),
    "output": Field(an_object({"schema": Field(a_schema), "step": Field(a_text)})),
    "permissions": Field(
        an_object(
            {
                "models": Field(a_list(a_text)),
                "tools": Field(a_list(a_text)),
                "workflows": Field(a_list(a_text)),
            }
        )
    ),
    "steps": Field(a_step_list, True),
}
