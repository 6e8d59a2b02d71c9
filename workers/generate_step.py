"""An `ai.generate` step: its model slot, prompt and tools, run by the durable agent loop."""

from collections.abc import Sequence
from typing import Any

from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.toolsets import AbstractToolset

from planaria.protocol.codec import Json
from planaria.protocol.errors import UsageError
from planaria.protocol.findings import Finding

from .agent_loop import TURNS_MAX, run_agent
from .agent_step import collect_lookups, make_agent_tool, prompt_with_input, run_generate
from .definitions import Definition, Tool, find_model, find_tool
from .failures import StepConfigError
from .journal import Journal
from .session import Session, StepValues


async def run_generate_step(
    session: Session,
    values: StepValues,
    journal: Journal,
    definition: Definition,
    toolsets: Sequence[AbstractToolset[Any]] = (),
) -> Json:
    """Returns the step's output; `toolsets` are there besides the step's tools.

    Raises:
        StepConfigError: the slot, its provider or a key is missing, or the agent is set up wrong.
        StepOutputError: no output fitted the step's schema after the repairs.
        RecordedError: a tool or the model raised.
    """
    asked = session.step["with"]
    evaluated = {**asked, "prompt": values.evaluate_text(asked["prompt"])}
    if "instructions" in asked:
        evaluated["instructions"] = values.evaluate_text(asked["instructions"])
    step = {**session.step, "with": evaluated}
    tools = [find_tool(definition, name) for name in asked.get("tools", ())]
    slot = asked["model"]
    found = find_model(definition, slot)
    try:
        agent: Any = found if isinstance(found, AbstractAgent) else getattr(found, "agent", None)
        if agent is not None:
            return await _run_own(
                agent, found, step, tools, session, values.input(), journal, toolsets
            )
        outcome = await run_generate(
            step,
            tools,
            input=values.input(),
            model=resolve_model(slot, found),
            journal=journal,
            session_id=session.id,
            run_id=session.run_id,
            extra_toolsets=toolsets,
            on_repair=lambda findings: note_repair(session, journal, findings),
        )
    except UserError as error:
        raise StepConfigError(message=f"model slot {slot!r}: {error}") from error
    except UsageError as error:
        if type(error) is not UsageError:
            raise
        raise StepConfigError(message=f"model slot {slot!r}: {error}") from error
    return outcome.output


def resolve_model(slot: str, found: Any) -> Model:
    """Returns the model of a slot: itself, or the one that its name stands for.

    Raises:
        StepConfigError: unknown, its provider's package isn't installed, or its key is missing.
    """
    if isinstance(found, Model):
        return found
    if not isinstance(found, str):
        raise StepConfigError(
            message=f"model slot {slot!r} holds a {type(found).__name__}; expected a name such as "
            "'anthropic:claude-haiku-4-5', a pydantic-ai Model, an Agent or an AgentWorker"
        )
    try:
        return infer_model(found)
    except (ImportError, UserError, ValueError) as error:
        raise StepConfigError(message=f"model slot {slot!r} ({found!r}): {error}") from error


def resolve_slot_model(definition: Definition, slot: str) -> Model:
    """Returns the model of a slot; of an agent, the one that it was built with.

    Raises:
        StepConfigError: there is no such slot, or no model in it.
    """
    found = find_model(definition, slot)
    agent: Any = found if isinstance(found, AbstractAgent) else getattr(found, "agent", None)
    if agent is None:
        return resolve_model(slot, found)
    if agent.model is None:
        raise StepConfigError(message=f"the agent in model slot {slot!r} has no model")
    return resolve_model(slot, agent.model)


async def _run_own(
    agent: Agent[Any, Any],
    worker: Any,
    step: dict[str, Any],
    tools: list[Tool],
    session: Session,
    input: Json,
    journal: Journal,
    toolsets: Sequence[AbstractToolset[Any]],
) -> Json:
    """Runs a user's own agent, with the step's tools besides its own."""
    extra = list(toolsets)
    if tools:
        extra.append(FunctionToolset([make_agent_tool(tool) for tool in tools], id="step"))
    asked = step["with"]
    outcome = await run_agent(
        agent,
        prompt_with_input(asked["prompt"], input),
        journal=journal,
        session_id=session.id,
        run_id=session.run_id,
        deps=_make_deps(asked["model"], worker),
        effects=getattr(worker, "effects", None),
        reattach={**collect_lookups(tools), **getattr(worker, "reattach", {})},
        extra_toolsets=extra,
        max_turns=asked.get("maxTurns", TURNS_MAX),
        instructions=asked.get("instructions"),
    )
    return outcome.output


def _make_deps(slot: str, worker: Any) -> Any:
    factory = None if isinstance(worker, AbstractAgent) else getattr(worker, "deps", None)
    if not callable(factory):
        return factory
    try:
        return factory()
    except Exception as error:
        # Code of the user's own: whatever it raises, the step can't be carried out.
        message = f"the deps of model slot {slot!r} can't be made: {type(error).__name__}: {error}"
        raise StepConfigError(message=message) from error


def note_repair(session: Session, journal: Journal, findings: list[Finding]) -> None:
    told = [
        {"code": f.code, "path": f.path, "message": "" if session.sensitive else f.message}
        for f in findings
    ]
    payload = {"stepPath": session.step_path, "attempt": session.attempt, "findings": told}
    journal.note("StepRepairAttempted", payload)
