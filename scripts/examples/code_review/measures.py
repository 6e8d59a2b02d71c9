"""Measures a Python file by its syntax tree."""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel

LINE_CHARS_MAX = 100
NOTE_TO_DO = re.compile(r"#.*\b(TODO|FIXME|XXX)\b")
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.IfExp, ast.match_case)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Place(BaseModel):
    """A function or class: its name, where it begins, and how many lines or branches it has."""

    name: str
    line: int
    count: int


class Measures(BaseModel):
    """What a file's text and tree say about it. `error` stands where it is no valid Python."""

    lines: int = 0
    functions: int = 0
    classes: int = 0
    branches: int = 0
    longest: Place | None = None
    most_branched: Place | None = None
    most_parameters: Place | None = None
    undocumented: list[Place] = []
    silent_handlers: list[int] = []
    notes_to_do: list[int] = []
    long_lines: list[int] = []
    error: str | None = None


def measure_file(path: Path) -> Measures:
    """Returns the measures of a file; one that can't be parsed has its lines and the error."""
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    numbered = list(enumerate(lines, start=1))
    found = Measures(
        lines=len(lines),
        notes_to_do=[number for number, line in numbered if NOTE_TO_DO.search(line)],
        long_lines=[number for number, line in numbered if len(line) > LINE_CHARS_MAX],
    )
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        return found.model_copy(update={"error": f"{type(error).__name__}: {error}"})
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return found.model_copy(
        update={
            "functions": len(functions),
            "classes": len(classes),
            "branches": _count_branches(tree),
            "longest": _find_largest(functions, _count_lines),
            "most_branched": _find_largest(functions, _count_branches),
            "most_parameters": _find_largest(functions, _count_parameters),
            "undocumented": list(_find_undocumented([*functions, *classes])),
            "silent_handlers": sorted(_find_silent_handlers(tree)),
        }
    )


def _find_largest(functions: Sequence[Function], count: Callable[[Function], int]) -> Place | None:
    if not functions:
        return None
    largest = max(functions, key=lambda node: (count(node), -node.lineno))
    return Place(name=largest.name, line=largest.lineno, count=count(largest))


def _count_lines(node: Function | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _count_branches(node: ast.AST) -> int:
    return sum(isinstance(child, _BRANCHES) for child in ast.walk(node))


def _count_parameters(node: Function) -> int:
    asked = node.args
    return len(asked.posonlyargs) + len(asked.args) + len(asked.kwonlyargs)


def _find_undocumented(nodes: Sequence[Function | ast.ClassDef]) -> Iterator[Place]:
    """Yields public functions and classes without a docstring, in the order of the file."""
    for node in sorted(nodes, key=lambda node: node.lineno):
        if not node.name.startswith("_") and ast.get_docstring(node) is None:
            yield Place(name=node.name, line=node.lineno, count=_count_lines(node))


def _find_silent_handlers(tree: ast.AST) -> Iterator[int]:
    """Yields the lines of handlers that do nothing, or that catch everything."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            is_silent = len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
            if is_silent or node.type is None:
                yield node.lineno
