"""The models of the code review: two that work locally and always alike, or one that is named.

The local ones need no key. They work from what the tools really return; a real model gets the
same prompts, tools and output schemas in their place.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from ledger import noted
from measures import Measures
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

POINTS_FIRST = 2  # what the reviewer writes at its first visit; each visit adds one
LINES_FOR_A_POINT = (350, 1_200)  # the critic wants one more from so many lines on
# A provider takes seconds. So much is enough for a kill to find requests in flight.
ANSWER_SECONDS = 0.04


class NotedModel(WrapperModel):
    """A model whose requests stand in the ledger, as `<session>/m<turn>`."""

    def __init__(self, name: str, wrapped: Model | str) -> None:
        super().__init__(wrapped)
        self._noted_as = name

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        # planaria runs an agent under its session's id, so that messages bear it.
        session = str(messages[0].conversation_id)
        call = f"{session}/m{count_turns(messages) + 1}"
        with noted("model", self._noted_as, session, call):
            return await super().request(messages, model_settings, model_request_parameters)


def make_models(name: str | None) -> dict[str, Model]:
    """Returns the models of both slots: those of a provider's model, or the local ones."""
    return {
        "reviewer": NotedModel("reviewer", name or FunctionModel(write_review, model_name="local")),
        "critic": NotedModel("critic", name or FunctionModel(judge_review, model_name="local")),
    }


async def write_review(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Reads and measures the file in one turn, writes the points in the next one."""
    await asyncio.sleep(ANSWER_SECONDS)
    asked = read_input(messages)
    if count_turns(messages) == 0:
        path = {"path": asked["path"]}
        return ModelResponse([ToolCallPart("read_source", path), ToolCallPart("measure", path)])
    returned = {
        part.tool_name: part.content
        for part in messages[-1].parts
        if isinstance(part, ToolReturnPart)
    }
    measures = Measures.model_validate(returned["measure"])
    points = find_points(returned["read_source"], measures)
    written = points[: POINTS_FIRST + asked["visit"]]
    return answer(info, {"lines": measures.lines, "points": written})


async def judge_review(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Passes a review that has enough points for the size of its file."""
    await asyncio.sleep(ANSWER_SECONDS)
    review = read_input(messages)["review"]
    wanted = POINTS_FIRST + sum(review["lines"] >= lines for lines in LINES_FOR_A_POINT)
    found = len(review["points"])
    feedback = "" if found >= wanted else f"{found} points for {review['lines']} lines: look again"
    return answer(info, {"passed": found >= wanted, "feedback": feedback})


def find_points(source: str, measures: Measures) -> list[dict[str, Any]]:
    """Returns at least four points about a file, what matters most first."""
    lines = source.splitlines()
    points = list(_find_defects(lines, measures))
    points += list(_find_burdens(measures))
    share = sum(line.lstrip().startswith("#") for line in lines) * 100 // max(1, len(lines))
    points += [
        make_point(1, "low", f"{measures.classes} classes and {measures.functions} functions"),
        make_point(1, "low", f"{share}% of the lines are comments"),
        make_point(1, "low", f"{measures.branches} branches in {measures.lines} lines"),
        make_point(1, "low", f"{len(measures.undocumented)} public names without a docstring"),
    ]
    return points


def _find_defects(lines: list[str], measures: Measures) -> Iterator[dict[str, Any]]:
    if measures.error is not None:
        yield make_point(1, "high", f"it can't be parsed: {measures.error}")
    for line in measures.silent_handlers[:2]:
        yield make_point(line, "high", f"an error is swallowed: `{_quote(lines, line)}`")
    for line in measures.notes_to_do[:1]:
        yield make_point(line, "medium", f"something is left to do: `{_quote(lines, line)}`")


def _find_burdens(measures: Measures) -> Iterator[dict[str, Any]]:
    longest, branched, wide = measures.longest, measures.most_branched, measures.most_parameters
    if branched is not None and branched.count > 10:
        text = f"`{branched.name}` has {branched.count} branches: take cases out of it"
        yield make_point(branched.line, "high", text)
    if longest is not None and longest.count > 60:
        text = f"`{longest.name}` has {longest.count} lines: name its parts"
        yield make_point(longest.line, "medium", text)
    if wide is not None and wide.count > 7:
        text = f"`{wide.name}` takes {wide.count} parameters: group what belongs together"
        yield make_point(wide.line, "medium", text)
    for place in measures.undocumented[:1]:
        yield make_point(place.line, "low", f"`{place.name}` has no docstring")
    for line in measures.long_lines[:1]:
        yield make_point(line, "low", f"{len(measures.long_lines)} lines are too long")


def make_point(line: int, severity: str, text: str) -> dict[str, Any]:
    """Returns a point as the output schema of the review has it."""
    return {"line": line, "severity": severity, "text": text}


def _quote(lines: list[str], number: int) -> str:
    # A long file is read in part only; its measures go beyond that.
    text = lines[number - 1] if number <= len(lines) else ""
    return text.strip().replace("`", "'")[:80]


def read_input(messages: list[ModelMessage]) -> Any:
    """Returns the step's input, which follows its prompt as JSON."""
    first = messages[0]
    assert isinstance(first, ModelRequest)
    for part in first.parts:
        if isinstance(part, UserPromptPart) and isinstance(part.content, str):
            return json.loads(part.content.partition("\n\nInput:\n")[2])
    raise AssertionError("a step's first message is its prompt")


def count_turns(messages: list[ModelMessage]) -> int:
    """Returns how often the model has answered already."""
    return sum(isinstance(message, ModelResponse) for message in messages)


def answer(info: AgentInfo, output: dict[str, Any]) -> ModelResponse:
    """Returns a response that gives the step's output."""
    return ModelResponse([ToolCallPart(info.output_tools[0].name, output)])
