"""Prices of model calls in USD, by the tables of genai-prices; an unpriced model is unknown."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from planaria.protocol.usage import UNNAMED, Usage


def find_price(
    model: str, provider: str | None, input_tokens: int, output_tokens: int
) -> float | None:
    """Returns what a call costs in USD, or None: the model has no known price."""
    return _calculate(model, provider, input_tokens, output_tokens)


def price_usage(usage: Usage) -> float | None:
    """Returns what recorded calls have cost in USD, or None if one of their models has no price."""
    total = 0.0
    for model, counts in usage.items():
        tokens = [_count(counts, kind) for kind in ("input", "output")]
        cost = None if model == UNNAMED else find_price(model, None, *tokens)
        if cost is None:
            return None
        total += cost
    return total


def _count(counts: Mapping[str, int], kind: str) -> int:
    return counts.get(f"{kind}_tokens", 0)


@lru_cache(maxsize=1_000)
def _calculate(model: str, provider: str | None, inputs: int, outputs: int) -> float | None:
    # Imported late: its tables take 0.2 s, and most supervisors never price anything.
    import genai_prices

    used: Any = genai_prices.Usage(input_tokens=inputs, output_tokens=outputs)
    try:
        return float(genai_prices.calc_price(used, model, provider_id=provider).total_price)
    except LookupError:
        if provider is not None:
            return _calculate(model, None, inputs, outputs)
        return None
