"""Compiling a definition: its LWIR document, its findings, its lock and its hashes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planaria.protocol.codec import hash_jcs
from planaria.protocol.errors import (
    UsageError,
    ValueRefusedError,
    WorkflowInvalidError,
    describe_type,
)
from planaria.protocol.findings import Finding
from planaria.protocol.json_paths import extend_path
from planaria.protocol.locks import find_large_numbers
from planaria.protocol.lwir import validate_lwir
from planaria.protocol.values import ValueType, check_json

from .declarations import Skill
from .model_slots import check_slot, describe_slot, is_agent, is_model_name
from .tools import Tool

if TYPE_CHECKING:
    from .runnable import Runnable

MEMORY_STORES = ("org", "pipeline", "workflow")
# Tools that sessions have by themselves: for memory and scratch, and for skills.
FILE_TOOLS = frozenset({"list_files", "read_file", "write_file"})
SKILL_TOOLS = frozenset({"read_skill"})
_NAMES_SHOWN = 10


def collect_tools(
    name: str, tools: Sequence[Any], reserved: Collection[str] = ()
) -> dict[str, Tool[..., Any]]:
    """Returns the tools by name; `reserved` are names of tools that its agents have already.

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
        if tool.name in reserved:
            raise UsageError(
                message=f"a tool of {name!r} is named {tool.name!r}, as one that its agents have "
                "by themselves: give it another name, @tool(name=...)"
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


def choose_slot(whose: str, model: Any, models: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the slot that an agent's `model` means, and the slots with it.

    A model that isn't in a slot gets one: named as it is, or by whose it is.

    Raises:
        WorkflowInvalidError, UsageError: it is neither a slot nor a model.
    """
    slots = dict(models)
    if not isinstance(model, str):
        if whose in slots:
            raise UsageError(
                message=f"model={type(model).__name__}(...) of an {whose} would stand in the slot "
                f"{whose!r}, which is taken: put it in models under a name of its own"
            )
        check_slot(whose, model)
        return whose, {**slots, whose: model}
    if model in slots:
        return model, slots
    if is_model_name(model):
        return model, {**slots, model: model}
    known = ", ".join(map(repr, sorted(slots)[:_NAMES_SHOWN])) or "none"
    text = f"there is no model slot {model[:60]!r}: name one of models ({known})"
    raise_findings(whose, [Finding("lwir.unknown_model", f"$.{whose}.model", text)])
    raise AssertionError("findings are raised")


def sort_memory(name: str, memory: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of memory stores, sorted, each once.

    Raises:
        UsageError: there is no such store.
    """
    expected = f"a list of {', '.join(map(repr, MEMORY_STORES))}"
    if isinstance(memory, str) or not isinstance(memory, Sequence):
        raise UsageError(message=f"the memory of {name!r} is {memory!r}; expected {expected}")
    for store in memory:
        if store not in MEMORY_STORES:
            raise UsageError(
                message=f"the memory of {name!r} has {str(store)[:60]!r}; expected {expected}"
            )
    return tuple(sorted(set(memory)))


def collect_skills(name: str, skills: Sequence[Any]) -> tuple[Skill, ...]:
    """Returns the skills, sorted by name.

    Raises:
        UsageError: one is no Skill, or two have the same name.
    """
    found: dict[str, Skill] = {}
    for index, skill in enumerate(skills):
        if not isinstance(skill, Skill):
            raise UsageError(
                message=f"skills[{index}] of {name!r} is {describe_type(skill)}; expected "
                "Skill(name, description, path)"
            )
        if skill.name in found:
            raise UsageError(message=f"{name!r} has two skills named {skill.name!r}: rename one")
        found[skill.name] = skill
    return tuple(found[skill] for skill in sorted(found))


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


def check_document(
    name: str,
    document: Any,
    tools: Mapping[str, Any],
    models: Mapping[str, Any],
    workflows: Mapping[str, Any],
) -> None:
    """Raises every finding of a document at once.

    Raises:
        WorkflowInvalidError: with the findings.
    """
    permissions = document.get("permissions") if isinstance(document, dict) else None
    # What isn't permitted isn't in the lock, so a step that names it would find nothing.
    is_named = isinstance(permissions, dict) and "workflows" in permissions
    findings = validate_lwir(
        document,
        tools=set(tools),
        models=set(models),
        workflows=set(workflows) if is_named else set(),
    )
    if not findings:
        findings = find_large_numbers(document)
    if isinstance(document, dict) and _is_json(document):
        findings += _check_arguments(document.get("steps"), "$.steps", tools)
    if findings:
        raise_findings(name, findings)


def raise_findings(name: str, findings: Sequence[Finding]) -> None:
    """Raises findings as the error that a user meets."""
    listed = [{"code": f.code, "path": f.path, "message": f.message} for f in findings]
    raise WorkflowInvalidError(name=name, findings=listed)


def make_lock(of: "Runnable", head: dict[str, Any], permitted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a lock: its head, and the descriptors of all that is permitted."""
    lock: dict[str, Any] = {
        **head,
        "tools": {n: of.tools[n].describe() for n in sorted(permitted.get("tools", ()))},
        "models": {s: describe_slot(of.models[s]) for s in sorted(permitted.get("models", ()))},
    }
    workflows = sorted(permitted.get("workflows", ()))
    if workflows:
        lock["workflows"] = {name: _describe_workflow(of.workflows[name]) for name in workflows}
    if of.memory:
        lock["memory"] = list(of.memory)
    if of.declared_skills:
        lock["skills"] = [skill.describe() for skill in of.declared_skills]
    return lock


def _describe_workflow(one: "Runnable") -> dict[str, Any]:
    return {
        "definitionHash": one.definition_hash,
        "description": one.description,
        "lock": one.lock,
    }


def hash_definition(
    of: "Runnable", *, planner: dict[str, Any] | None = None, **more: dict[str, Any]
) -> str:
    """Returns the hash of a definition's identity; its steps are the version's, not part of it.

    `planner` is its configuration, `more` are other agents' ones, by role.
    """
    identity: dict[str, Any] = {
        "id": of.id,
        "description": of.description,
        "inputSchemaHash": hash_jcs(of.input_schema),
        "outputSchemaHash": hash_jcs(of.output_schema),
        "models": sorted(of.models),
        "plannerHash": None if planner is None else hash_jcs(planner),
        "workerHashes": {
            slot: describe_slot(value)["descriptorHash"]
            for slot, value in of.models.items()
            if is_agent(value)
        },
        "tools": sorted(of.tools),
        "memory": list(of.memory),
    }
    # What came later stands there only where it is used: the hashes of the others stay.
    identity.update({f"{role}Hash": hash_jcs(described) for role, described in more.items()})
    if of.workflows:
        identity["workflows"] = sorted(of.workflows)
    return hash_jcs(identity)


def _is_json(document: dict[str, Any]) -> bool:
    try:
        check_json(document)
    except ValueRefusedError:
        return False  # it may hold itself, and a walk over it would never end
    return True


def _check_arguments(
    steps: Any, path: str, tools: Mapping[str, Tool[..., Any]]
) -> Iterator[Finding]:
    """Yields the arguments of `tool.call` steps that their tool doesn't have, or that it lacks.

    Where the document is malformed there are findings already, and nothing is yielded.
    """
    listed: list[Any] = steps if isinstance(steps, list) else []
    for index, step in enumerate(listed):
        if not isinstance(step, dict):
            continue
        here = f"{path}[{index}]"
        if step.get("uses") == "parallel":
            yield from _check_arguments(step.get("steps"), f"{here}.steps", tools)
        asked: Any = step.get("with")
        if step.get("uses") != "tool.call" or not isinstance(asked, dict):
            continue
        named: Any = asked.get("tool")
        args: Any = asked.get("args")
        tool = tools.get(named) if isinstance(named, str) else None
        if tool is None or not isinstance(args, dict):
            continue
        parameters = tool.parameters
        known = ", ".join(list(parameters["properties"])[:_NAMES_SHOWN]) or "none"
        for name in args:
            if name not in parameters["properties"]:
                text = f"the tool has no such argument: remove it, or take one of: {known}"
                yield Finding("lwir.unknown_field", extend_path(f"{here}.with.args", name), text)
        for name in parameters["required"]:
            if name not in args:
                text = f"the tool needs the argument {name!r}: add it"
                yield Finding("lwir.missing_field", extend_path(f"{here}.with.args", name), text)
