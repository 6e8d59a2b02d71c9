"""Workflows as people write them in Python, compiled to LWIR on the spot."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from planaria.protocol.codec import Json, hash_jcs
from planaria.protocol.errors import InputSchemaError, ValueRefusedError, WorkflowInvalidError
from planaria.protocol.ids import check_workflow_id
from planaria.protocol.lwir import validate_lwir
from planaria.protocol.schemas import validate_value
from planaria.protocol.values import ValueType

from .steps import Step, normalize
from .tools import Tool


@dataclass(frozen=True, slots=True)
class AgentWorker:
    """Any pydantic-ai agent as the worker of a model slot, made crash-proof by its session.

    `deps` makes the agent's dependencies in the child, once per session. `effects` declares the
    effect class of tools by name; an undeclared one counts as `once`.
    """

    agent: Any
    deps: Callable[[], Any] | None = None
    effects: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Planner:
    """An agent that designs the steps of a workflow itself. Not built yet: refused by name."""

    model: str
    instructions: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """Answer of an outer loop's `supervise`: the loop ends with this output."""

    final_output: Any


@dataclass(frozen=True, slots=True)
class Continue:
    """Answer of an outer loop's `supervise`: another cycle, with a note for its planner."""

    prompt_note: str | None = None


class Workflow:
    """A workflow: its document, and the Python objects that its steps name.

    `input` and `output` are types (pydantic models or any other) or JSON Schemas. `models` maps
    slots to a pydantic-ai model name, Model, Agent or AgentWorker. `env` names the environment
    variables that children of this workflow see besides their providers' keys. `include` names
    files that are pinned with the modules (glob patterns below the project's root).

    Raises:
        WorkflowInvalidError: lists every finding of the document at once.
    """

    def __init__(
        self,
        id: str,
        *,
        steps: Sequence[Step] = (),
        description: str = "",
        input: Any = None,
        output: Any = None,
        models: Mapping[str, Any] | None = None,
        tools: Sequence[Tool] = (),
        output_step: str | None = None,
        env: Sequence[str] = (),
        include: Sequence[str] = (),
        planner: Planner | None = None,
    ) -> None:
        self.id = check_workflow_id(id)
        self.description = description
        self.models: dict[str, Any] = dict(models or {})
        self.tools: dict[str, Tool] = {}
        for tool in tools:
            if not isinstance(tool, Tool):
                raise TypeError(f"workflow {id!r}: {tool!r} is no tool; decorate it with @tool")
            if self.tools.setdefault(tool.name, tool) is not tool:
                raise ValueError(f"workflow {id!r} has two tools named {tool.name!r}")
        self.env = tuple(env)
        self.include = tuple(include)
        if planner is not None:
            message = "planners aren't built yet; give the workflow its steps"
            raise _invalid(id, [("lwir.not_built_yet", "$", message)])
        self._input = None if isinstance(input, dict) else ValueType(_annotation(input))
        self._output = None if isinstance(output, dict) else ValueType(_annotation(output))
        document: dict[str, Any] = {
            "apiVersion": "lwir/v1",
            "kind": "Workflow",
            "metadata": {"name": id, "description": description},
            "input": {"schema": _schema(id, "input", input, self._input)},
            "output": {"schema": _schema(id, "output", output, self._output)},
            "permissions": {"models": sorted(self.models), "tools": sorted(self.tools)},
            "steps": normalize(list(steps)),
        }
        if output_step is not None:
            document["output"]["step"] = output_step
        self.document = document
        self._check()

    @classmethod
    def from_document(
        cls,
        document: dict[str, Any],
        *,
        tools: Sequence[Tool] = (),
        models: Mapping[str, Any] | None = None,
        env: Sequence[str] = (),
    ) -> "Workflow":
        """Returns the workflow of an LWIR document; its metadata's name is the id."""
        workflow = cls.__new__(cls)
        metadata = document.get("metadata") if isinstance(document, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        workflow.tools = {tool.name: tool for tool in tools}
        workflow.models = dict(models or {})
        workflow.env, workflow.include = tuple(env), ()
        workflow.document = document
        workflow._input = workflow._output = None
        workflow.id = str(name)
        workflow._check()
        workflow.id = check_workflow_id(name)
        workflow.description = str(document["metadata"].get("description", ""))
        return workflow

    def _check(self) -> None:
        findings = validate_lwir(
            self.document, tools=set(self.tools), models=set(self.models)
        )
        if findings:
            raise _invalid(self.id, [(f.code, f.path, f.message) for f in findings])

    @cached_property
    def lock(self) -> dict[str, Any]:
        """The document with the descriptors of all that it may use: what a version is made of."""
        return {
            "lwir": self.document,
            "tools": {name: tool.describe() for name, tool in sorted(self.tools.items())},
            "models": {slot: _describe_model(m) for slot, m in sorted(self.models.items())},
        }

    @cached_property
    def version_id(self) -> str:
        """`wv_` and the first 32 hex digits of the lock's hash."""
        return "wv_" + hash_jcs(self.lock).removeprefix("sha256:")[:32]

    @cached_property
    def definition_hash(self) -> str:
        """The hash of what the definition is: id, description, schemas, slots, tool names."""
        return hash_jcs(
            {
                "id": self.id,
                "description": self.description,
                "inputSchema": self.document.get("input", {}).get("schema"),
                "outputSchema": self.document.get("output", {}).get("schema"),
                "models": sorted(self.models),
                "tools": sorted(self.tools),
                "memory": [],
            }
        )

    def dump_input(self, value: Any) -> Json:
        """Returns an input as JSON: a value of the declared type, or JSON that fits it.

        Raises:
            InputSchemaError: it fits neither.
        """
        schema = self.document.get("input", {}).get("schema") or {}
        try:
            if self._input is None:
                dumped = ValueType().dump(value)
            else:
                dumped = self._dump_typed(self._input, value)
        except ValueRefusedError as error:
            raise InputSchemaError(name=self.id, reason=str(error)) from error
        findings = validate_value(schema, dumped) if schema else []
        if findings:
            reason = "; ".join(f"{f.path}: {f.message}" for f in findings[:5])
            raise InputSchemaError(name=self.id, reason=reason)
        return dumped

    def _dump_typed(self, declared: ValueType, value: Any) -> Json:
        try:
            return declared.dump(value)
        except ValueRefusedError:
            return declared.dump(declared.load(value))  # JSON, as the command gives it

    def load_output(self, value: Json) -> Any:
        """Returns an output with the declared type."""
        return value if self._output is None else self._output.load(value)


def _annotation(declared: Any) -> Any:
    return Any if declared is None else declared


def _schema(id: str, what: str, declared: Any, value_type: ValueType | None) -> dict[str, Any]:
    if isinstance(declared, dict):
        return declared
    if declared is None or value_type is None:
        return {}
    try:
        return value_type.schema()
    except (ValueError, TypeError) as error:
        raise ValueError(f"workflow {id!r}: the {what} type has no schema: {error}") from error


def _describe_model(model: Any) -> dict[str, Any]:
    name: str | None = model if isinstance(model, str) else None
    inner = getattr(model, "agent", model)
    described = {
        "model": name,
        "kind": "name" if name is not None else type(inner).__name__,
        "name": name or _model_name(inner),
    }
    return {"model": name, "descriptorHash": hash_jcs(described)}


def _model_name(model: Any) -> str | None:
    """Returns a name that stays the same over processes; an object's address doesn't."""
    found = getattr(model, "model_name", None)
    return found if isinstance(found, str) else getattr(model, "name", None)


def _invalid(name: str, findings: list[tuple[str, str, str]]) -> WorkflowInvalidError:
    listed = [{"code": code, "path": path, "message": text} for code, path, text in findings]
    return WorkflowInvalidError(name=name, findings=listed)
