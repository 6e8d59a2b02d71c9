"""Workflows as people write them in Python, compiled to LWIR on the spot, or left to a planner."""

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from planaria.protocol.findings import Finding
from planaria.protocol.ids import check_workflow_id
from planaria.protocol.locks import find_large_numbers

from .compilation import (
    FILE_TOOLS,
    SKILL_TOOLS,
    check_document,
    choose_slot,
    hash_definition,
    make_lock,
    make_schema,
    raise_findings,
)
from .declarations import Planner, Skill
from .runnable import Runnable
from .steps import Step, normalize_steps
from .tools import Tool


class Workflow(Runnable):
    """A workflow: its document, or its planner, and the Python objects that its steps name.

    `input` and `output` are types (pydantic models or any other) or JSON Schemas. `models` maps
    slots to a pydantic-ai model name, Model, Agent or AgentWorker. `workflows` are those that its
    `workflow.call` steps may start. `env` names the environment variables that children of this
    workflow see besides their providers' keys. `include` names files that are pinned with the
    modules (glob patterns below the project's root).

    With a `planner` there is no `document` (None) and no `version_id` (None): each run has the
    version that was drafted for it.

    Not to be changed once made: its lock and its version are those of the document at first.

    Raises:
        WorkflowInvalidError: lists every finding of the document at once.
        UsageError: an id, a tool, a slot or a type that can't be one.
    """

    document: dict[str, Any] | None
    planner: Planner | None

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
        workflows: Sequence[Runnable] = (),
        memory: Sequence[str] = (),
        skills: Sequence[Skill] = (),
    ) -> None:
        self._declare(id, input, output)
        _check_alternatives(id, planner, steps, output_step)
        slots = dict(models or {})
        if planner is not None:
            self._planner_slot, slots = choose_slot("planner", planner.model, slots)
        self._set_up(
            id,
            tools=tools,
            models=slots,
            workflows=workflows,
            memory=memory,
            skills=skills,
            env=env,
            include=include,
            reserved=_reserve(memory, skills),
        )
        self.description = description
        self.planner = planner
        self.document = None
        if planner is None:
            self.document = self._make_document(steps, output_step)
            check_document(id, self.document, self.tools, self.models, self.workflows)
            return
        found = find_large_numbers(self._define(description))
        if found:
            raise_findings(id, found)

    def _make_document(self, steps: Sequence[Step], output_step: str | None) -> dict[str, Any]:
        definition = self._define(self.description)
        document: dict[str, Any] = {
            "apiVersion": "lwir/v1",
            "kind": "Workflow",
            "metadata": {"name": self.id, "description": self.description},
        }
        for name in ("input", "output"):
            if name in definition:
                document[name] = definition[name]
        if output_step is not None:
            document.setdefault("output", {})["step"] = output_step
        document["permissions"] = definition["permissions"]
        if not self.workflows:
            del document["permissions"]["workflows"]
        document["steps"] = normalize_steps(steps)
        return copy.deepcopy(document)  # what it was made of may change

    @classmethod
    def from_document(
        cls,
        document: dict[str, Any],
        *,
        tools: Sequence[Tool[..., Any]] = (),
        models: Mapping[str, Any] | None = None,
        workflows: Sequence[Runnable] = (),
        memory: Sequence[str] = (),
        skills: Sequence[Skill] = (),
        env: Sequence[str] = (),
        include: Sequence[str] = (),
    ) -> "Workflow":
        """Returns the workflow of an LWIR document; its metadata's name is the id.

        `tools`, `models` and `workflows` may be more than the document's permissions name.

        Raises:
            WorkflowInvalidError, UsageError: as the class.
        """
        workflow = cls.__new__(cls)
        metadata = document.get("metadata") if isinstance(document, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        workflow._set_up(
            str(name),
            tools=tools,
            models=models or {},
            workflows=workflows,
            memory=memory,
            skills=skills,
            env=env,
            include=include,
            reserved=_reserve(memory, skills),
        )
        check_document(
            name if isinstance(name, str) else "",
            document,
            workflow.tools,
            workflow.models,
            workflow.workflows,
        )
        check_workflow_id(name)
        workflow._input = workflow._output = None
        workflow.declared_input = workflow.declared_output = None
        workflow.planner = None
        workflow.description = str(document["metadata"].get("description", ""))
        workflow.document = copy.deepcopy(document)  # the caller's may change
        workflow.input_schema = workflow.document.get("input", {}).get("schema")
        workflow.output_schema = workflow.document.get("output", {}).get("schema")
        return workflow

    @classmethod
    def from_parts(cls, *, input: Any, output: Any, **parts: Any) -> "Workflow":
        """Returns the workflow that has these types and this document, or planner."""
        if "planner" in parts:
            return cls(input=input, output=output, **parts)
        workflow = cls.from_document(**parts)
        name = workflow.id
        workflow.declared_input, workflow.declared_output = input, output
        workflow._input = make_schema(name, "input", input)[1]
        workflow._output = make_schema(name, "output", output)[1]
        return workflow

    def parts(self) -> dict[str, Any]:
        """Returns what `from_parts` takes."""
        if self.document is not None:
            return {"document": self.document, **self._shared_parts()}
        named = {"id": self.id, "description": self.description, "planner": self.planner}
        return {**named, **self._shared_parts()}

    @cached_property
    def lock(self) -> dict[str, Any]:
        """The document with the descriptors of all that it may use: what a version is made of.

        With a planner, what a version will be made of: the planner and the definition instead.
        """
        if self.document is not None:
            return make_lock(self, {"lwir": self.document}, self.document.get("permissions", {}))
        definition = self._define(self.description)
        head = {"planner": self._describe_planner(), "definition": definition}
        return make_lock(self, head, definition["permissions"])

    @cached_property
    def definition_hash(self) -> str:
        """The hash of what the definition is, whatever its steps."""
        return hash_definition(self, planner=self._describe_planner())

    @property
    def version_id(self) -> str | None:
        """`wv_` and the first 32 hex digits of the lock's hash; None with a planner."""
        return None if self.planner is not None else super().version_id

    def _describe_planner(self) -> dict[str, Any] | None:
        return None if self.planner is None else self.planner.describe(self._planner_slot)

    _planner_slot: str


def _check_alternatives(
    id: str, planner: Planner | None, steps: Any, output_step: str | None
) -> None:
    """Refuses a workflow that has both steps and a planner, or neither."""
    if planner is None:
        if isinstance(steps, Sequence) and not steps:
            text = (
                "a workflow has steps, or a planner that drafts them: give steps=[...] or "
                "planner=Planner(model=...)"
            )
            raise_findings(id, [Finding("lwir.invalid_value", "$.steps", text)])
        return
    if not isinstance(planner, Planner):
        text = f"expected Planner(model=...), got {type(planner).__name__}"
        raise_findings(id, [Finding("lwir.invalid_value", "$.planner", text)])
    if not isinstance(steps, Sequence) or steps or output_step is not None:
        text = (
            "the planner drafts the steps, so there can't be any beside it: leave out the "
            "planner, or steps and output_step"
        )
        raise_findings(id, [Finding("lwir.invalid_value", "$.planner", text)])


def _reserve(memory: Sequence[str], skills: Sequence[Skill]) -> frozenset[str]:
    return (FILE_TOOLS if memory else frozenset()) | (SKILL_TOOLS if skills else frozenset())
