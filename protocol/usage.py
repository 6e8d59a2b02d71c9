"""Usage: what recorded model calls have used, as counts by model, then by kind.

{"claude-haiku-4-5": {"requests": 2, "input_tokens": 900, "output_tokens": 120}}
"""

from collections.abc import Mapping

Usage = dict[str, dict[str, int]]

UNNAMED = "unknown"  # a response that doesn't say its model
# Counts that a budget's tokens are: the others are parts of these, or no tokens.
_TOKENS = ("input_tokens", "output_tokens")


def add_counts(usage: Usage, model: str | None, counts: Mapping[str, int]) -> None:
    """Adds the counts of one response to `usage`."""
    total = usage.setdefault(model or UNNAMED, {})
    for name, count in counts.items():
        total[name] = total.get(name, 0) + count


def add_usage(usage: Usage, more: Mapping[str, Mapping[str, int]]) -> None:
    """Adds one usage to another."""
    for model, counts in more.items():
        add_counts(usage, model, counts)


def copy_usage(usage: Usage) -> Usage:
    """Returns a copy that doesn't change with the original."""
    return {model: dict(counts) for model, counts in usage.items()}


def sum_models(usage: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Returns the counts of all models together."""
    total: dict[str, int] = {}
    for counts in usage.values():
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total


def count_tokens(counts: Mapping[str, int]) -> int:
    """Returns the tokens of a response's counts, in and out."""
    return sum(counts.get(name, 0) for name in _TOKENS)
