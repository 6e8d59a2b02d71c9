"""Compiling a definition: its LWIR document, its findings, its lock and its hashes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planaria.protocol.codec import hash_jcs
from planaria.protocol.errors import UsageError, ValueRefusedError, WorkflowInvalidError
from planaria.protocol.findings import Finding
from planaria.protocol.json_paths import extend_path
from planaria.protocol.lwir import find_not_built, validate_lwir
from planaria.protocol.values import ValueType

from .model_slots import check_slot, describe_slot, is_agent
from .tools import Tool

JCS_INTEGER_MAX = 2**53 - 1  # RFC 8785: numbers are those of IEEE 754 doubles
_NAMES_SHOWN = 10


def collect_tools(name: str, tools: Sequence[Any]) -> dict[str, Tool[..., Any]]:
    """Returns the tools by name.

    Raises:
        UsageError: one is no tool, or two have the same name.
    """
    found: dict[str, Tool[..., Any]] = {}
    for index, tool in enumerate(tools):
        if not isinstance(tool, Tool):
            shown = getattr(tool, "__name__", None) or type(tool).__name__
            raise UsageError(
                message=f"tools[{index}] of workflow {name!r} is {shown!r}, which is no tool: "
                "decorate the function with @tool(effect=...)"
            )
        if found.setdefault(tool.name, tool) is not tool:
            raise UsageError(
                message=f"workflow {name!r} has two tools named {tool.name!r}: give one another "
                "name, @tool(name=...)"
            )
    return found


def collect_models(models: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model slots.

    Raises:
        UsageError: something stands in one that is no model.
    """
    for slot, value in models.items():
        check_slot(slot, value)
    return dict(models)


def make_schema(
    name: str, what: str, declared: Any
) -> tuple[dict[str, Any] | None, ValueType | None]:
    """Returns the schema of a workflow's input or output, and its type if it isn't a schema.

    Raises:
        UsageError: the type has no schema; says why.
    """
    if declared is None:
        return None, None
    if isinstance(declared, Mapping):
        return dict(declared), None
    try:
        value_type = ValueType(declared)
        return value_type.schema(), value_type
    except (ValueError, ValueRefusedError) as error:
        reason = error.fields["reason"] if isinstance(error, ValueRefusedError) else error
        raise UsageError(message=f"the {what} of workflow {name!r}: {reason}") from error


def check_document(name: str, document: Any, tools: Mapping[str, Any], models: Any) -> None:
    """Raises every finding of a document at once.

    Raises:
        WorkflowInvalidError: with the findings.
    """
    findings = validate_lwir(document, tools=set(tools), models=set(models))
    if not findings:
        findings = [
            *find_not_built(document),
            *_check_numbers(document, "$"),
            *_check_arguments(document["steps"], "$.steps", tools),
        ]
    if findings:
        raise_findings(name, findings)


def raise_findings(name: str, findings: Sequence[Finding]) -> None:
    """Raises findings as the error that a user meets."""
    listed = [{"code": f.code, "path": f.path, "message": f.message} for f in findings]
    raise WorkflowInvalidError(name=name, findings=listed)


def make_lock(
    document: dict[str, Any], tools: Mapping[str, Tool[..., Any]], models: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the document with the descriptors of all that it may use: what a version is."""
    permitted = document.get("permissions", {})
    return {
        "lwir": document,
        "tools": {n: tools[n].describe() for n in sorted(permitted.get("tools", ()))},
        "models": {s: describe_slot(models[s]) for s in sorted(permitted.get("models", ()))},
    }


def hash_definition(
    document: dict[str, Any], tools: Mapping[str, Any], models: Mapping[str, Any]
) -> str:
    """Returns the hash of a definition's identity; its steps are the version's, not part of it."""
    metadata = document["metadata"]
    return hash_jcs(
        {
            "id": metadata["name"],
            "description": metadata.get("description", ""),
            "inputSchemaHash": hash_jcs(document.get("input", {}).get("schema")),
            "outputSchemaHash": hash_jcs(document.get("output", {}).get("schema")),
            "models": sorted(models),
            "plannerHash": None,
            "workerHashes": {
                slot: describe_slot(value)["descriptorHash"]
                for slot, value in models.items()
                if is_agent(value)
            },
            "tools": sorted(tools),
            "memory": [],
        }
    )


def _check_numbers(value: Any, path: str) -> Iterator[Finding]:
    """Yields integers that the canonical form, which versions are hashes of, doesn't have."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _check_numbers(item, extend_path(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _check_numbers(item, extend_path(path, index))
    elif isinstance(value, int) and not -JCS_INTEGER_MAX <= value <= JCS_INTEGER_MAX:
        text = "an integer beyond 2**53 - 1 has no canonical form in a document: write it as text"
        yield Finding("lwir.invalid_value", path, text)


def _check_arguments(
    steps: list[dict[str, Any]], path: str, tools: Mapping[str, Tool[..., Any]]
) -> Iterator[Finding]:
    """Yields the arguments of `tool.call` steps that their tool doesn't have, or that it lacks."""
    for index, step in enumerate(steps):
        here = f"{path}[{index}]"
        if step["uses"] == "parallel":
            yield from _check_arguments(step["steps"], f"{here}.steps", tools)
        args = step["with"].get("args")
        if step["uses"] != "tool.call" or not isinstance(args, dict):
            continue
        parameters = tools[step["with"]["tool"]].parameters
        known = ", ".join(list(parameters["properties"])[:_NAMES_SHOWN]) or "none"
        for name in args:
            if name not in parameters["properties"]:
                text = f"the tool has no such argument: remove it, or take one of: {known}"
                yield Finding("lwir.unknown_field", extend_path(f"{here}.with.args", name), text)
        for name in parameters["required"]:
            if name not in args:
                text = f"the tool needs the argument {name!r}: add it"
                yield Finding("lwir.missing_field", extend_path(f"{here}.with.args", name), text)
