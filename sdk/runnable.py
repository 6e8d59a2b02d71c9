"""What a run can be of: the face that workflows and orchestrators share."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from planaria.protocol.codec import Json
from planaria.protocol.errors import (
    InputSchemaError,
    UsageError,
    ValueRefusedError,
    describe_type,
)
from planaria.protocol.ids import check_workflow_id
from planaria.protocol.locks import make_version_id
from planaria.protocol.schemas import validate_value
from planaria.protocol.values import ValueType, check_json

from .compilation import collect_models, collect_skills, collect_tools, make_schema, sort_memory
from .declarations import Skill
from .origins import Origin
from .tools import Tool

# Each takes three levels of the 64 that a JSON value may have, and the innermost needs some.
WORKFLOWS_NESTED_MAX = 12
_REASONS_SHOWN = 5


class Runnable:
    """A definition with its tools, models and the workflows that it may start.

    `memory` names the stores that its agents reach, `skills` maps the names of its skills to their
    paths, below the project's root. Not to be changed once made.
    """

    id: str
    description: str
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    # What another process needs to make the same definition; see prompt_definition.py.
    declared_input: Any
    declared_output: Any
    _input: ValueType | None
    _output: ValueType | None

    def _set_up(
        self,
        id: str,
        *,
        tools: Sequence[Tool[..., Any]],
        models: Mapping[str, Any],
        workflows: Sequence["Runnable"],
        memory: Sequence[str],
        skills: Sequence[Skill],
        env: Sequence[str],
        include: Sequence[str],
        reserved: frozenset[str] = frozenset(),
    ) -> None:
        self.id = id
        self.memory: tuple[str, ...] = sort_memory(id, memory)
        self.declared_skills: tuple[Skill, ...] = collect_skills(id, skills)
        self.skills: dict[str, str] = {skill.name: skill.path for skill in self.declared_skills}
        self.tools: dict[str, Tool[..., Any]] = collect_tools(id, tools, reserved)
        self.models: dict[str, Any] = collect_models(models)
        self.workflows: dict[str, Runnable] = collect_workflows(id, workflows)
        self.env = tuple(env)
        self.include = tuple(include)
        self.origin: Origin | None = None  # set by definition.load_target

    def _declare(self, id: str, input: Any, output: Any) -> None:
        """Notes the types of input and output."""
        check_workflow_id(id)
        self.declared_input, self.declared_output = input, output
        schema, self._input = make_schema(id, "input", input)
        self.input_schema = schema or None
        schema, self._output = make_schema(id, "output", output)
        self.output_schema = schema or None

    def _define(self, description: str) -> dict[str, Any]:
        """Returns the `definition` of a lock without steps."""
        definition: dict[str, Any] = {"id": self.id, "description": description}
        if self.input_schema:
            definition["input"] = {"schema": self.input_schema}
        if self.output_schema:
            definition["output"] = {"schema": self.output_schema}
        definition["permissions"] = {
            "models": sorted(self.models),
            "tools": sorted(self.tools),
            "workflows": sorted(self.workflows),
        }
        return definition

    @cached_property
    def lock(self) -> dict[str, Any]:
        """All that a run may use, described: what a version is made of."""
        raise NotImplementedError

    @cached_property
    def definition_hash(self) -> str:
        """The hash of what the definition is, whatever its steps."""
        raise NotImplementedError

    @property
    def version_id(self) -> str | None:
        """`wv_` and the first 32 hex digits of the lock's hash.

        None for a workflow with a planner: each of its runs has the version that is drafted there.
        """
        return make_version_id(self.lock)

    def parts(self) -> dict[str, Any]:
        """Returns what makes the same definition in another process; see prompt_definition.py."""
        raise NotImplementedError

    def _shared_parts(self) -> dict[str, Any]:
        return {
            "input": self.declared_input,
            "output": self.declared_output,
            "tools": list(self.tools.values()),
            "models": self.models,
            "workflows": list(self.workflows.values()),
            "memory": self.memory,
            "skills": self.declared_skills,
            "env": self.env,
        }

    def family(self) -> Iterator["Runnable"]:
        """Yields this definition and all that it may start, each once."""
        seen: set[int] = set()
        pending: list[Runnable] = [self]
        while pending:
            one = pending.pop(0)
            if id(one) not in seen:
                seen.add(id(one))
                yield one
                pending += one.workflows.values()

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.id} {self.version_id or 'planned'}>"

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
        findings = validate_value(self.input_schema, dumped) if self.input_schema else []
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


def collect_workflows(name: str, workflows: Sequence[Any]) -> dict[str, Runnable]:
    """Returns the definitions that one may start, by id.

    Raises:
        UsageError: one is no workflow, two have the same id, or they are nested too deeply.
    """
    found: dict[str, Runnable] = {}
    for index, one in enumerate(workflows):
        if not isinstance(one, Runnable):
            raise UsageError(
                message=f"workflows[{index}] of {name!r} is {describe_type(one)}; expected the "
                "Workflow or Orchestrator itself"
            )
        if one.id in found or one.id == name:
            whose = "its own id" if one.id == name else "an id that another one has"
            raise UsageError(
                message=f"workflows[{index}] of {name!r} has {whose}, {one.id!r}: the steps and "
                "agents of a workflow call others by id, so give it an id of its own"
            )
        found[one.id] = one
    if found and 1 + max(_depth_of(one) for one in found.values()) > WORKFLOWS_NESTED_MAX:
        raise UsageError(
            message=f"workflows are nested {WORKFLOWS_NESTED_MAX} deep in {name!r} and deeper; "
            "let a workflow start the inner ones itself"
        )
    return found


def _depth_of(one: Runnable) -> int:
    return 1 + max((_depth_of(inner) for inner in one.workflows.values()), default=0)
