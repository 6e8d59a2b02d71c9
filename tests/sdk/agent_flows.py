"""People's own agents as workers of model slots; see sdk_flows.py."""

import os
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from planaria import AgentWorker, Workflow, generate


class Answer(BaseModel):
    town: str
    degrees: Decimal
    asked_by: str


class Deps(BaseModel):
    user: str
    pid: int


def make_deps() -> Deps:
    """Made where the agent runs: the tool below finds its own process there."""
    return Deps(user="ada", pid=os.getpid())


def _script(messages: list[ModelMessage], info: AgentInfo) -> list[TextPart | ToolCallPart]:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    if turn == 0:
        return [ToolCallPart("temperature", {"town": "Bern"}, tool_call_id="a")]
    [output] = info.output_tools
    degrees = messages[-1].parts[0].content  # type: ignore[union-attr]
    answer = {"town": "Bern", "degrees": degrees, "asked_by": "ada"}
    return [ToolCallPart(output.name, answer, tool_call_id="b")]


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=_script(messages, info))


async def stream(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    for index, part in enumerate(_script(messages, info)):
        assert isinstance(part, ToolCallPart)
        text = part.args_as_json_str()
        yield {index: DeltaToolCall(part.tool_name, text[:5], tool_call_id=part.tool_call_id)}
        yield {index: DeltaToolCall(None, text[5:])}


agent = Agent(
    FunctionModel(answer), name="weather", deps_type=Deps, output_type=Answer,
    instructions="Say how warm it is.",
)  # fmt: skip


@agent.tool
def temperature(context: RunContext[Deps], town: str) -> str:
    assert context.deps.pid == os.getpid() and context.deps.user == "ada"
    return "12.5"


agent_flow = Workflow("agents.tools", output=Answer,
    models={"weather": AgentWorker(agent, deps=make_deps, effects={"temperature": "read"})},
    steps=[generate("ask", model="weather", prompt="How warm is Bern?", output=Answer)],
)  # fmt: skip


async def _note_events(context: RunContext[Deps], events: Any) -> None:
    """Who hears the events of a run makes pydantic-ai ask for its responses as streams."""
    async for event in events:
        print(type(event).__name__, flush=True)


streaming_agent = Agent(
    FunctionModel(stream_function=stream), name="stream", deps_type=Deps,  # no other way to answer
    output_type=Answer, tools=[temperature], capabilities=[ProcessEventStream(_note_events)],
)  # fmt: skip
stream_flow = Workflow("agents.stream", output=Answer,
    models={"weather": AgentWorker(streaming_agent, deps=make_deps)},
    steps=[generate("ask", model="weather", prompt="How warm is Bern?", output=Answer)],
)  # fmt: skip
