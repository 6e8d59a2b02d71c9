"""What a model request may use at most, as far as that is known before it is made."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from planaria.protocol.codec import Json

BYTES_PER_TOKEN = 3  # of English JSON some 4: an estimate that is rather too high
OUTPUT_TOKENS = 4_096  # where the settings don't limit the response: what many providers default to


def estimate_reserve(
    model: Any,
    messages: list[ModelMessage],
    settings: Mapping[str, Any] | None,
    parameters: Any,
) -> dict[str, Json]:
    """Returns {model, provider, inputTokens, outputTokens} of a request."""
    size = len(ModelMessagesTypeAdapter.dump_json(messages))
    tools = [*getattr(parameters, "function_tools", ()), *getattr(parameters, "output_tools", ())]
    for tool in tools:
        size += len(tool.name) + len(tool.description or "")
        size += len(json.dumps(tool.parameters_json_schema))
    most = (settings or {}).get("max_tokens")
    provider = getattr(model, "system", None)
    return {
        "model": str(getattr(model, "model_name", model)),
        "provider": provider if isinstance(provider, str) else None,
        "inputTokens": -(-size // BYTES_PER_TOKEN),
        "outputTokens": most if type(most) is int else OUTPUT_TOKENS,
    }
