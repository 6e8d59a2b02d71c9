"""Workflows as people write them in Python, compiled to LWIR on the spot."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from planaria.protocol.codec import Json, hash_jcs
from planaria.protocol.errors import InputSchemaError, ValueRefusedError
from planaria.protocol.findings import Finding
from planaria.protocol.ids import check_workflow_id
from planaria.protocol.schemas import validate_value
from planaria.protocol.values import ValueType, check_json

from .compilation import (
    check_document,
    collect_models,
    collect_tools,
    hash_definition,
    make_lock,
    make_schema,
    raise_findings,
)
from .model_slots import AgentWorker as AgentWorker
from .origins import Origin
from .steps import Step, normalize_steps
from .tools import Tool

_REASONS_SHOWN = 5


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

    Not to be changed once made: its lock and its version are those of the document at first.

    Raises:
        WorkflowInvalidError: lists every finding of the document at once.
        UsageError: an id, a tool, a slot or a type that can't be one.
    """

    def __init__(
        self,
        id: str,
        description: str = "",
        *,
        input: Any = None,
        output: Any = None,
        models: Mapping[str, Any] | None = None,
        tools: Sequence[Tool[..., Any]] = (),
        steps: Sequence[Step] = (),
        output_step: str | None = None,
        env: Sequence[str] = (),
        include: Sequence[str] = (),
        planner: Planner | None = None,
    ) -> None:
        check_workflow_id(id)
        if planner is not None:
            text = "this version of planaria has no planners yet: give the workflow its steps"
            raise_findings(id, [Finding("lwir.not_built_yet", "$.planner", text)])
        input_schema, self._input = make_schema(id, "input", input)
        output_schema, self._output = make_schema(id, "output", output)
        # What another process needs to make the same workflow; see prompt_definition.py.
        self.declared_input, self.declared_output = input, output
        document: dict[str, Any] = {
            "apiVersion": "lwir/v1",
            "kind": "Workflow",
            "metadata": {"name": id, "description": description},
        }
        if input_schema:
            document["input"] = {"schema": input_schema}
        if output_schema:
            document["output"] = {"schema": output_schema}
        if output_step is not None:
            document.setdefault("output", {})["step"] = output_step
        document["permissions"] = {
            "models": sorted(models or {}),
            "tools": sorted(collect_tools(id, tools)),
        }
        document["steps"] = normalize_steps(steps)
        self._set_up(id, document, tools, models or {}, env, include)

    @classmethod
    def from_document(
        cls,
        document: dict[str, Any],
        *,
        tools: Sequence[Tool[..., Any]] = (),
        models: Mapping[str, Any] | None = None,
        env: Sequence[str] = (),
        include: Sequence[str] = (),
    ) -> "Workflow":
        """Returns the workflow of an LWIR document; its metadata's name is the id.

        `tools` and `models` may be more than the document's permissions name.

        Raises:
            WorkflowInvalidError, UsageError: as the class.
        """
        workflow = cls.__new__(cls)
        metadata = document.get("metadata") if isinstance(document, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        workflow._input = workflow._output = None
        workflow.declared_input = workflow.declared_output = None
        workflow._set_up(str(name), document, tools, models or {}, env, include)
        check_workflow_id(name)
        return workflow

    @classmethod
    def from_parts(cls, *, input: Any, output: Any, **parts: Any) -> "Workflow":
        """Returns the workflow that has this document and these types, in another process."""
        workflow = cls.from_document(**parts)
        name = workflow.id
        workflow.declared_input, workflow.declared_output = input, output
        workflow._input = make_schema(name, "input", input)[1]
        workflow._output = make_schema(name, "output", output)[1]
        return workflow

    def _set_up(
        self,
        id: str,
        document: dict[str, Any],
        tools: Sequence[Tool[..., Any]],
        models: Mapping[str, Any],
        env: Sequence[str],
        include: Sequence[str],
    ) -> None:
        self.tools: dict[str, Tool[..., Any]] = collect_tools(id, tools)
        self.models: dict[str, Any] = collect_models(models)
        check_document(id, document, self.tools, self.models)
        self.id = id
        self.description = str(document["metadata"].get("description", ""))
        self.document = copy.deepcopy(document)  # the caller's may change
        self.env = tuple(env)
        self.include = tuple(include)
        self.origin: Origin | None = None  # set by definition.load_target

    def __repr__(self) -> str:
        return f"<workflow {self.id} {self.version_id}>"

    @cached_property
    def lock(self) -> dict[str, Any]:
        """The document with the descriptors of all that it may use: what a version is made of."""
        return make_lock(self.document, self.tools, self.models)

    @cached_property
    def version_id(self) -> str:
        """`wv_` and the first 32 hex digits of the lock's hash."""
        return "wv_" + hash_jcs(self.lock).removeprefix("sha256:")[:32]

    @cached_property
    def definition_hash(self) -> str:
        """The hash of what the definition is, whatever its steps."""
        return hash_definition(self.document, self.tools, self.models)

    def dump_input(self, value: Any) -> Json:
        """Returns an input as JSON: a value of the declared type, or JSON that fits it.

        JSON that fits is written as the type writes it, defaults filled in, so that an input
        has one hash however it was given.

        Raises:
            InputSchemaError: it fits neither; names the path.
        """
        try:
            dumped = self._dump(value)
        except ValueRefusedError as error:
            reason = f"{error.fields['path']}: {error.fields['reason']}"
            raise InputSchemaError(name=self.id, reason=reason) from error
        schema = self.document.get("input", {}).get("schema")
        findings = validate_value(schema, dumped) if schema else []
        if findings:
            reason = "; ".join(f"{f.path}: {f.message}" for f in findings[:_REASONS_SHOWN])
            raise InputSchemaError(name=self.id, reason=reason)
        return dumped

    def _dump(self, value: Any) -> Json:
        if self._input is None:
            check_json(value)
            return value
        try:
            return self._input.dump(value)
        except ValueRefusedError:
            if not isinstance(value, dict | list | str | int | float | None):
                raise
            # JSON, as the command line and files give it.
            return self._input.dump(self._input.load(value))

    def load_output(self, value: Json) -> Any:
        """Returns a recorded output as a value of the declared type.

        Raises:
            ValueRefusedError: it doesn't fit; names the path.
        """
        return value if self._output is None else self._output.load(value)

    _input: ValueType | None
    _output: ValueType | None
    declared_input: Any
    declared_output: Any
