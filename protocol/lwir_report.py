"""What is found while a workflow document is checked, and the checks that any field can have.

A check reads one field and writes what is wrong with it to the Report. What it learns on the way
(names of tools and models, templates, output steps) stays there for the checks in lwir.py, which
look at several fields together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce

from .codec import Json
from .durations import parse_duration
from .findings import Finding
from .json_paths import extend_path
from .schemas import check_schema
from .templates import Keys, Template, scan_template


@dataclass(slots=True)
class Report:
    """Everything that is known of a document while it is checked."""

    findings: list[tuple[Keys, Finding]] = field(default_factory=list)
    refused: set[Keys] = field(default_factory=set)  # fields that have a finding of their own
    names: list[tuple[str, Keys, str]] = field(default_factory=list)  # ("tool", where, name)
    templates: dict[Keys, list[tuple[Keys, Template]]] = field(default_factory=dict)  # by step
    output_steps: dict[Keys, Keys] = field(default_factory=dict)  # field, by list of steps
    step: Keys = ()  # the step whose fields are being checked

    def add(self, code: str, keys: Keys, message: str) -> None:
        self.refused.add(keys)
        self.findings.append((keys, Finding(code, reduce(extend_path, keys, "$"), message)))

    def add_value(self, keys: Keys, expected: str, value: Json) -> None:
        shown = repr(value)[:60] if isinstance(value, str | int | float) else type(value).__name__
        self.add("lwir.invalid_value", keys, f"expected {expected}, got {shown}")

    def add_template(self, keys: Keys, value: Json) -> Template | None:
        """Returns the template that a field is, or None after reporting what is wrong in it."""
        template, errors = scan_template(value)
        for inner, error in errors:
            self.add("expression.invalid", keys + inner, error.message)
        if errors:
            self.refused.add(keys)
            return None
        self.templates.setdefault(self.step, []).append((keys, template))
        return template


Check = Callable[[Report, Keys, Json], None]


@dataclass(frozen=True, slots=True)
class Field:
    check: Check
    is_required: bool = False


def check_fields(report: Report, keys: Keys, value: Json, fields: Mapping[str, Field]) -> None:
    """Checks an object that may have these fields and no others."""
    if not isinstance(value, dict):
        report.add_value(keys, "an object", value)
        return
    for name, item in value.items():
        if name in fields:
            fields[name].check(report, (*keys, name), item)
        else:
            known = ", ".join(fields)
            report.add("lwir.unknown_field", (*keys, name), f"remove it; there are {known} here")
    for name, one in fields.items():
        if one.is_required and name not in value:
            report.add("lwir.missing_field", (*keys, name), f"{name!r} is required: add it")


def an_object(fields: Mapping[str, Field]) -> Check:
    return lambda report, keys, value: check_fields(report, keys, value, fields)


def a_text(report: Report, keys: Keys, value: Json) -> None:
    if not isinstance(value, str) or not value:
        report.add_value(keys, "a non-empty text", value)


def any_text(report: Report, keys: Keys, value: Json) -> None:
    if not isinstance(value, str):
        report.add_value(keys, "a text", value)


def a_boolean(report: Report, keys: Keys, value: Json) -> None:
    if not isinstance(value, bool):
        report.add_value(keys, "true or false", value)


def an_integer(least: int, most: int, code: str = "lwir.invalid_value") -> Check:
    def check(report: Report, keys: Keys, value: Json) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            shown = type(value).__name__ if isinstance(value, list | dict) else repr(value)[:60]
            report.add(code, keys, f"expected a whole number from {least} to {most}, got {shown}")

    return check


def one_of(*allowed: str) -> Check:
    def check(report: Report, keys: Keys, value: Json) -> None:
        if not isinstance(value, str) or value not in allowed:
            report.add_value(keys, " or ".join(map(repr, allowed)), value)

    return check


def a_list(of: Check, *, is_empty_allowed: bool = True) -> Check:
    def check(report: Report, keys: Keys, value: Json) -> None:
        if not isinstance(value, list) or not (value or is_empty_allowed):
            report.add_value(keys, "a list" if is_empty_allowed else "a non-empty list", value)
            return
        for index, item in enumerate(value):
            of(report, (*keys, index), item)

    return check


def a_name(kind: str) -> Check:
    def check(report: Report, keys: Keys, value: Json) -> None:
        if isinstance(value, str) and value:
            report.names.append((kind, keys, value))
        else:
            report.add_value(keys, f"the name of a {kind}", value)

    return check


def a_template(report: Report, keys: Keys, value: Json) -> None:
    report.add_template(keys, value)


def a_text_template(report: Report, keys: Keys, value: Json) -> None:
    if isinstance(value, str):
        report.add_template(keys, value)
    else:
        report.add_value(keys, "a text", value)


def a_duration(report: Report, keys: Keys, value: Json) -> None:
    try:
        parse_duration(value)
    except ValueError as error:
        report.add("lwir.invalid_value", keys, str(error))


def a_schema(report: Report, keys: Keys, value: Json) -> None:
    for finding in check_schema(value, reduce(extend_path, keys, "$")):
        report.refused.add(keys)
        report.findings.append((keys, finding))
