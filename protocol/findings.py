"""A finding: one thing that is wrong with a document, where it is, and what to do about it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """`path` is a JSON path (`$.steps[0].with.args`); `message` says what to do."""

    code: str
    path: str
    message: str
