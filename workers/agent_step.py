"""An `ai.generate` step as an agent: its tools, and an output that fits the step's schema.

The step is LWIR with its expressions already evaluated.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pydantic_ai import Agent, ModelRetry, StructuredDict
from pydantic_ai import Tool as AgentTool
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models import Model
from pydantic_ai.toolsets import AbstractToolset

from planaria.lookups import Reattach
from planaria.protocol.codec import Json
from planaria.protocol.errors import PlanariaError, ValueRefusedError
from planaria.protocol.findings import Finding
from planaria.protocol.schemas import validate_value
from planaria.protocol.values import ValueType

from .agent_durability import Journal
from .agent_effects import METADATA_KEY
from .agent_hosted import HostedTool
from .agent_loop import TURNS_MAX, AgentOutcome, run_agent

REPAIRS_MAX = 3  # how often one attempt is asked again, unless the step says otherwise
TOOL_RETRIES = 3  # arguments that don't fit, in a row and for one tool, before the attempt fails
FINDINGS_SHOWN = 20  # a model can act on so many; the rest shows up in the next repair

# Models give objects to output tools: other outputs travel as the one member of an object.
_MEMBER = {"array": "items", "choice": "choice", "json": "value"}


class Tool(Protocol):
    """What a step's tool has to have; planaria's own tools do."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def effect(self) -> str: ...
    @property
    def reattach(self) -> Reattach | None: ...


class StepOutputError(PlanariaError):
    """The model's output didn't fit after every repair; `findings` are those of the last one."""

    template = "the output didn't fit its schema after {repairs} repair(s): {message}"


@dataclasses.dataclass(slots=True)
class OutputCheck:
    """Checks outputs against the step's schema and remembers what was found last."""

    output: Mapping[str, Json]
    value_type: ValueType | None = None
    on_repair: Callable[[list[Finding]], None] | None = None
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def check(self, value: Any) -> Json:
        """Returns the output, out of the object that it travelled in.

        Raises:
            ModelRetry: it doesn't fit; the text tells the model each finding.
        """
        output = _unwrap(self.output, value)
        self.findings = self._find(output)
        if not self.findings:
            return output
        if self.on_repair is not None:
            self.on_repair(self.findings)
        raise ModelRetry(describe_findings(self.findings))

    def _find(self, output: Json) -> list[Finding]:
        findings = validate_value(schema_of(self.output), output)
        if not findings and self.value_type is not None:
            try:
                # What the schema subset can't say (formats, tuples, bounds) only the type knows.
                self.value_type.load(output)
            except ValueRefusedError as error:
                findings = [Finding("schema.mismatch", error.path, error.reason)]
        return findings


def build_agent(
    step: Mapping[str, Any],
    tools: Sequence[Tool],
    *,
    model: Model,
    check: OutputCheck | None = None,
) -> Agent[Any, Json]:
    """Returns the agent of an `ai.generate` step; its output is the step's, checked."""
    check = check or OutputCheck(step.get("output") or {"mode": "text"})
    agent: Agent[Any, Any] = Agent(
        model,
        name=step["id"],
        instructions=step["with"].get("instructions"),
        output_type=_output_type(check.output),
        tools=[make_agent_tool(tool) for tool in tools],
        retries={"tools": TOOL_RETRIES, "output": repairs_of(step)},
    )
    agent.output_validator(check.check)
    return agent


async def run_generate(
    step: Mapping[str, Any],
    tools: Sequence[Tool],
    *,
    input: Json,
    model: Model,
    journal: Journal,
    session_id: str,
    run_id: str,
    extra_toolsets: Sequence[AbstractToolset[Any]] = (),
    hosted: Sequence[HostedTool] = (),
    value_type: ValueType | None = None,
    on_repair: Callable[[list[Finding]], None] | None = None,
    streaming: bool = False,
) -> AgentOutcome:
    """Returns the outcome of an `ai.generate` step.

    `on_repair` hears the findings of each output that was refused, on every replay again.

    Raises:
        StepOutputError: no output fitted (cause `step_schema_error`).
        RecordedError: a tool or the model raised.
    """
    output = step.get("output") or {"mode": "text"}
    check = OutputCheck(output, value_type=value_type, on_repair=on_repair)
    agent = build_agent(step, tools, model=model, check=check)
    try:
        return await run_agent(
            agent,
            prompt_with_input(step["with"]["prompt"], input),
            journal=journal,
            session_id=session_id,
            run_id=run_id,
            reattach=collect_lookups(tools),
            extra_toolsets=extra_toolsets,
            hosted=hosted,
            max_turns=step["with"].get("maxTurns", TURNS_MAX),
            streaming=streaming,
        )
    except UnexpectedModelBehavior as error:
        if "output retries" not in str(error):
            raise
        message = describe_findings(check.findings) if check.findings else str(error)
        raise StepOutputError(
            cause_code="step_schema_error",
            repairs=repairs_of(step),
            message=message,
            findings=[
                {"code": f.code, "path": f.path, "message": f.message} for f in check.findings
            ],
        ) from error


def repairs_of(step: Mapping[str, Any]) -> int:
    """Returns how often the attempt may be asked again with the findings."""
    repair = (step.get("onFailure") or {}).get("repair") or {}
    return int(repair.get("maxAttempts", REPAIRS_MAX))


def prompt_with_input(prompt: str, value: Json) -> str:
    """Returns the prompt and after it the step's input: text as it is, all else as JSON."""
    if value is None:
        return prompt
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    return f"{prompt}\n\nInput:\n{shown}"


def describe_findings(
    findings: Sequence[Finding], heading: str = "The output does not fit the schema:"
) -> str:
    """Returns the findings as lines that a model can act on."""
    lines = [f"- {finding.path}: {finding.message}" for finding in findings[:FINDINGS_SHOWN]]
    more = len(findings) - FINDINGS_SHOWN
    if more > 0:
        lines.append(f"- and {more} more")
    return "\n".join([heading, *lines])


def make_agent_tool(tool: Tool) -> AgentTool[Any]:
    return AgentTool(
        tool.function,
        name=tool.name,
        description=tool.description,
        metadata={METADATA_KEY: {"effect": tool.effect}},
    )


def collect_lookups(tools: Sequence[Tool]) -> dict[str, Reattach]:
    """Returns the lookups of the `managed` ones, by name."""
    return {tool.name: tool.reattach for tool in tools if tool.reattach is not None}


def schema_of(output: Mapping[str, Json]) -> dict[str, Json]:
    if output["mode"] == "choice":
        return {"enum": list(output["values"])}
    types = {"text": "string", "object": "object", "array": "array"}
    schema = dict(output.get("schema") or {})
    if output["mode"] in types:
        schema.setdefault("type", types[output["mode"]])
    return schema


def _output_type(output: Mapping[str, Json]) -> Any:
    mode = output["mode"]
    if mode == "text":
        return str
    schema = schema_of(output)
    if mode != "object":
        member = _MEMBER[mode]
        schema = {"type": "object", "properties": {member: schema}, "required": [member]}
    return StructuredDict(schema, name="output")


def _unwrap(output: Mapping[str, Json], value: Any) -> Json:
    member = _MEMBER.get(output["mode"])
    if member is None:
        return value
    if member not in value:
        raise ModelRetry(f"The output does not fit the schema:\n- $: member {member!r} is missing")
    return value[member]
