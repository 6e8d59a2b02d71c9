"""A model that says what a script says, turn by turn, and counts how often it was asked."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

Turn = Sequence[TextPart | ToolCallPart] | Callable[[list[ModelMessage]], Any]


def call(tool_name: str, label: str, /, **args: Any) -> ToolCallPart:
    return ToolCallPart(tool_name, args, tool_call_id=label)


def say(text: str) -> list[TextPart]:
    return [TextPart(text)]


class ScriptedModel(FunctionModel):
    """Turn n of the script answers the request that follows n responses."""

    def __init__(self, *turns: Turn) -> None:
        self.turns = turns
        self.requests: list[list[ModelMessage]] = []
        self.infos: list[AgentInfo] = []
        super().__init__(self._answer, stream_function=self._stream)

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> Sequence[Any]:
        self.requests.append(messages)
        self.infos.append(info)
        turn = self.turns[sum(isinstance(message, ModelResponse) for message in messages)]
        parts: Sequence[Any] = turn(messages) if callable(turn) else turn
        return parts

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=list(self._next(messages, info)))

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        for index, part in enumerate(self._next(messages, info)):
            if isinstance(part, TextPart):
                yield part.content
            else:
                args = part.args_as_json_str()
                yield {index: DeltaToolCall(part.tool_name, args, tool_call_id=part.tool_call_id)}
