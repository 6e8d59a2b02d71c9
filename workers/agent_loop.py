"""Runs a pydantic-ai Agent, anybody's and unchanged, so that its session can be replayed."""

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai import Agent, AgentRunResult
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage, UserContent
from pydantic_ai.models import Model
from pydantic_ai.output import NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.run import AgentRunResultEvent
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.usage import UsageLimits

from planaria.lookups import Reattach
from planaria.protocol.codec import Json
from planaria.protocol.errors import RecordedError, UsageError
from planaria.protocol.values import ValueType, check_json

from .agent_codec import dump_usage
from .agent_durability import Durability, Journal
from .agent_hosted import HostedTool, make_hosted_toolset

TURNS_MAX = 25  # model requests of one run, unless the step says otherwise


@dataclasses.dataclass(frozen=True, slots=True)
class AgentOutcome:
    """How an agent run ended: its output as JSON, what it used, and every message of it."""

    output: Json
    usage: dict[str, Json]
    messages: list[ModelMessage]


async def run_agent(
    agent: Agent[Any, Any],
    prompt: str | Sequence[UserContent] | None,
    *,
    journal: Journal,
    session_id: str,
    run_id: str,
    deps: Any = None,
    models: Mapping[str, Model] | None = None,
    model_slot: str | None = None,
    effects: Mapping[str, str] | None = None,
    reattach: Mapping[str, Reattach] | None = None,
    extra_toolsets: Sequence[AbstractToolset[Any]] = (),
    hosted: Sequence[HostedTool] = (),
    usage_limits: UsageLimits | None = None,
    max_turns: int = TURNS_MAX,
    streaming: bool = False,
    output_type: Any = None,
    instructions: Any = None,
) -> AgentOutcome:
    """Returns the outcome of the agent's run; what the journal knows already is not done again.

    `model_slot` names the one of `models` that replaces the agent's own model. `effects` overrides
    effect classes by tool name, `reattach` looks `managed` ones up. `extra_toolsets` are journaled
    like the agent's own; `hosted` tools are the session's, which carries them out. With
    `streaming`, responses are asked for as streams (each is recorded when it is whole).

    Raises:
        RecordedError: a tool or the model raised; the same on the first run and on every replay.
        ReplayMismatchError: the agent asked for something else than was recorded.
        ValueRefusedError: the output can't be recorded exactly.
        UsageError: no such slot or effect class.
    """
    models = dict(models or {})
    _check_slot(model_slot, models)
    extra_toolsets = [*extra_toolsets, *([make_hosted_toolset(hosted)] if hosted else [])]
    durability = Durability(
        journal,
        name=session_id,
        models=models,
        effects=effects,
        reattach=reattach,
        extra_toolsets=extra_toolsets,
        hosted=hosted,
    )
    options: dict[str, Any] = {
        "run_id": run_id,
        # Fixed, like run_id: both stand in every message, random ones would differ on replay.
        "conversation_id": session_id,
        "deps": deps,
        "model": None if model_slot is None else models[model_slot],
        "usage_limits": usage_limits or UsageLimits(request_limit=max_turns),
        "toolsets": extra_toolsets or None,
        "capabilities": [durability],
        "output_type": output_type,
        "instructions": instructions,
        "infer_name": False,
    }
    try:
        result = await _run(agent, prompt, options, streaming=streaming)
    except ModelAPIError as error:
        # The journal's own error, which the model's class stood in for inside of the run.
        if isinstance(error.__cause__, RecordedError):
            raise error.__cause__ from None
        raise
    return AgentOutcome(
        output=dump_output(result.output, output_type or agent.output_type),
        usage=dump_usage(result.usage),
        messages=result.all_messages(),
    )


def _check_slot(slot: str | None, models: Mapping[str, Model]) -> None:
    if slot is not None and slot not in models:
        listed = ", ".join(sorted(models)) or "none"
        raise UsageError(message=f"no model slot {slot!r}; there are: {listed}")


async def _run(
    agent: Agent[Any, Any], prompt: Any, options: dict[str, Any], *, streaming: bool
) -> AgentRunResult[Any]:
    if not streaming:
        return await agent.run(prompt, **options)
    async with agent.run_stream_events(prompt, **options) as events:
        async for event in events:
            if isinstance(event, AgentRunResultEvent):
                return event.result
    raise AssertionError("pydantic-ai ended the stream of a run without its result")


def dump_output(output: Any, declared: Any) -> Json:
    """Returns the output as JSON, by its declared type where there is one, else by its own."""
    if isinstance(declared, ToolOutput):
        declared = declared.output
    elif isinstance(declared, NativeOutput | PromptedOutput):
        declared = declared.outputs
    if declared is str or output is None or isinstance(output, bool | int | str):
        check_json(output)
        return output
    is_annotation = isinstance(declared, type) or typing.get_origin(declared) is not None
    if is_annotation and _is_instance(output, declared):
        return ValueType(declared).dump(output)
    if isinstance(output, dict | list):
        check_json(output)
        return output
    return ValueType(type(output)).dump(output)


def _is_instance(output: Any, declared: Any) -> bool:
    """Returns whether `declared` can describe `output`: StructuredDict is a dict only in name."""
    origin = typing.get_origin(declared) or declared
    return not isinstance(origin, type) or isinstance(output, origin)
