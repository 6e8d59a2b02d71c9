"""Workflows whose models say what they have used; see sdk_flows.py."""

from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from planaria import Workflow, generate

INPUT_TOKENS, OUTPUT_TOKENS = 1_000, 200  # of each response
OUTPUT_TOKENS_MAX = 500
PRICED = "gpt-4o-mini"


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    used = RequestUsage(input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS)
    return ModelResponse(parts=[TextPart("yes")], usage=used)


def model_of(name: str) -> FunctionModel:
    return FunctionModel(
        answer, model_name=name, settings=ModelSettings(max_tokens=OUTPUT_TOKENS_MAX)
    )


def ask(id: str, slot: str, *needs: str) -> dict[str, Any]:
    return generate(id, model=slot, prompt="Well?", needs=list(needs))


steps = [ask("a", "m"), ask("b", "m", "a"), ask("c", "m", "b")]
priced = Workflow("priced", models={"m": model_of(PRICED)}, steps=steps)
unpriced = Workflow("unpriced", models={"m": model_of("made-up-model")}, steps=steps[:1])
mixed = Workflow("mixed", steps=[ask("a", "m"), ask("b", "n", "a")],
    models={"m": model_of(PRICED), "n": model_of("made-up-model")},
)  # fmt: skip
caller = Workflow("caller", models={"m": model_of(PRICED)}, workflows=[priced], steps=[
    ask("a", "m"),
    {"id": "call", "uses": "workflow.call", "needs": ["a"],
        "with": {"workflow": "priced", "input": None}},
])  # fmt: skip
