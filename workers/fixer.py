"""A fixer: an agent that corrects the source of a `code.run` step that failed.

It may try sources as often as its turns allow. Each try runs in the sandbox with the step's input
and tools, from its beginning: an effect that succeeded before, in the failed attempt or in an
earlier try, isn't performed again but answered from the record.
"""

import json
from collections.abc import Sequence
from typing import Any

from pydantic_ai import Agent, ModelRetry, StructuredDict, ToolOutput
from pydantic_ai.exceptions import UserError
from pydantic_ai.toolsets import AbstractToolset

from planaria.protocol.codec import Json
from planaria.protocol.errors import PlanariaError
from planaria.protocol.findings import Finding
from planaria.protocol.lwir_fields import CODE_CHARS_MAX
from planaria.protocol.schemas import validate_value

from .agent_hosted import HostedCall, HostedTool
from .agent_loop import TURNS_MAX, run_agent
from .agent_step import describe_findings, schema_of
from .code_body import IMPORTS, SandboxError
from .code_runner import CodeRunner
from .definitions import Definition, find_tool
from .failures import StepConfigError
from .generate_step import resolve_slot_model
from .journal import Journal
from .session import Session

OUTPUT_TOOL = "submit_source"
REPAIRS_MAX = 3  # answers without a source, or with one that is too long
SHOWN_CHARS_MAX = 20_000  # of the input, as the fixer sees it: the source gets it whole

_SOURCE = StructuredDict(
    {"type": "object", "properties": {"source": {"type": "string"}}, "required": ["source"]},
    name=OUTPUT_TOOL,
)
_INSTRUCTIONS = f"""\
You correct Python code that failed. It runs in a sandbox: `input` and the listed tools, called like
functions with named arguments, are the only names that it has besides Python's own; it may import
{", ".join(sorted(IMPORTS))}, and has no files, network, clock or randomness of the world. Its
result is the value of its last expression, or of a name `result`, and has to be plain JSON.
Keep what the code is for: correct the mistake, and leave the rest as it is. Tool calls that
succeeded before aren't made again when the code asks for the same: they give their recorded result.
Try your source with try_source before you hand it in with {OUTPUT_TOOL}."""


class FixedOutputError(PlanariaError):
    """The fixed source runs, but its output doesn't fit the step's schema."""

    template = "{message}"


def try_source(source: str) -> Any:
    """The signature that the model sees; see Fixer."""


class Fixer:
    """One attempt to correct a step's source; `last_source` is what it came to, if anything."""

    def __init__(
        self,
        session: Session,
        input: Json,
        journal: Journal,
        definition: Definition,
        code: CodeRunner,
    ) -> None:
        assert session.fix is not None, f"session {session.id} has nothing to fix"
        self._fix: dict[str, Any] = session.fix
        self._session = session
        self._input = input
        self._journal = journal
        self._definition = definition
        self._code = code
        names = session.step["with"].get("tools", ())
        self._tools = [find_tool(definition, name) for name in names]
        self._outputs: dict[str, Json] = {}  # of the sources that ran to their end
        self.last_source: str | None = None

    async def run(self, toolsets: Sequence[AbstractToolset[Any]] = ()) -> Json:
        """Returns the output of the corrected source, which is `last_source` then.

        Raises:
            SandboxError: the source failed all the same.
            FixedOutputError: its output doesn't fit the step's schema (cause `step_schema_error`).
            StepConfigError: the fixer's model isn't set up.
            RecordedError: the model or a tool of the agent raised.
        """
        source = await self._ask(toolsets)
        self.last_source = source
        if source in self._outputs:
            output = self._outputs[source]
        else:
            output = await self._run_source(source, "")
        findings = self._check(output)
        if findings:
            message = describe_findings(findings)
            raise FixedOutputError(cause_code="step_schema_error", message=message)
        return output

    async def _ask(self, toolsets: Sequence[AbstractToolset[Any]]) -> str:
        fixer = self._fix["fixer"]
        own = fixer.get("instructions")
        try:
            agent: Agent[Any, Any] = Agent(
                resolve_slot_model(self._definition, fixer["model"]),
                name="fixer",
                instructions=f"{_INSTRUCTIONS}\n\n{own}" if own else _INSTRUCTIONS,
                output_type=ToolOutput(
                    _SOURCE, name=OUTPUT_TOOL, description="Hands in the corrected source, whole."
                ),
                retries=REPAIRS_MAX,
            )
            agent.output_validator(_check_answer)
            outcome = await run_agent(
                agent,
                self._make_prompt(),
                journal=self._journal,
                session_id=self._session.id,
                run_id=self._session.run_id,
                extra_toolsets=toolsets,
                hosted=[
                    HostedTool(
                        try_source,
                        self._try,
                        "Runs a source with the step's input and tools; returns its output or its "
                        "error.",
                        is_sequential=True,  # two at once would make the same effects twice
                    )
                ],
                max_turns=TURNS_MAX,
            )
        except UserError as error:
            raise StepConfigError(message=f"the fixer can't be set up: {error}") from error
        assert isinstance(outcome.output, dict)
        return str(outcome.output["source"])

    async def _try(self, call: HostedCall) -> Json:
        source = str(call.args["source"])
        _check_length(source)

        async def body() -> Json:
            return await self._judge(source, f"{call.position}.")

        result = await self._journal.call_tool(
            position=call.position,
            caller="model",
            tool_name=call.tool_name,
            args={"source": source},
            effect="read",
            details=call.details,
            body=body,
            is_compound=True,
        )
        self.last_source = source
        if isinstance(result, dict) and "output" in result:
            self._outputs[source] = result["output"]
        return result

    async def _judge(self, source: str, prefix: str) -> Json:
        """Returns what the model is told of a try: its output with findings, or its error."""
        try:
            output = await self._run_source(source, prefix)
        except SandboxError as error:
            return {"error": {"kind": error.kind, "message": error.display}}
        findings = self._check(output)
        if findings:
            return {"output": output, "findings": describe_findings(findings)}
        return {"output": output}

    async def _run_source(self, source: str, prefix: str) -> Json:
        self._journal.keys.begin_try(f"{prefix}c")
        return await self._code.run(
            source, self._input, self._tools, self._session, self._journal, prefix=prefix
        )

    def _check(self, output: Json) -> list[Finding]:
        declared = self._session.step.get("output")
        return [] if declared is None else validate_value(schema_of(declared), output)

    def _make_prompt(self) -> str:
        step, fix = self._session.step, self._fix
        shown = json.dumps(self._input, ensure_ascii=False, indent=1)
        if len(shown) > SHOWN_CHARS_MAX:
            shown = shown[:SHOWN_CHARS_MAX] + "\n[… cut off: the source gets it whole]"
        tools = [
            {"name": tool.name, "effect": tool.effect, "description": tool.description}
            | {"parameters": self._session.tools.get(tool.name, {}).get("parameters")}
            for tool in self._tools
        ]
        parts = [
            f"The source of step {step['id']!r}:\n```python\n{fix['source']}\n```",
            f"It failed:\n{_describe_error(fix['error'])}",
            f"Its input:\n{shown}",
            f"Its tools:\n{json.dumps(tools, ensure_ascii=False, indent=1, sort_keys=True)}",
        ]
        if "output" in step:
            wanted = json.dumps(schema_of(step["output"]), ensure_ascii=False, sort_keys=True)
            parts.append(f"Its output has to fit this schema:\n{wanted}")
        for number, earlier in enumerate(fix.get("earlier", ()), 1):
            tried = earlier.get("source")
            code = "no source" if tried is None else f"\n```python\n{tried}\n```"
            parts.append(f"Fix {number} failed too: {code}\n{_describe_error(earlier['error'])}")
        return "\n\n".join(parts)


def _check_answer(answer: dict[str, Json]) -> dict[str, Json]:
    source = answer.get("source")
    if not isinstance(source, str):
        raise ModelRetry("the member 'source' is missing: hand in the corrected source as a text")
    _check_length(source)
    return answer


def _check_length(source: str) -> None:
    if len(source) > CODE_CHARS_MAX:
        raise ModelRetry(f"the source has {len(source)} characters; at most {CODE_CHARS_MAX}")


def _describe_error(error: dict[str, Any]) -> str:
    return f"{error.get('name')}: {error.get('message')}"
