"""JSON values with expressions inside their strings: `"Summarise {{ steps.fetch.output }}"`.

A string that is one expression and nothing else becomes the expression's value, with its type.
Inside other text a value stands as itself if it is text, else as compact JSON (null is `null`).
`{{{{` is a literal `{{`. Keys of objects are never looked into.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from .codec import Json
from .expression_operations import write_text
from .expressions import Budget, Expression, ExpressionError, Reference, parse_expression
from .json_paths import extend_path
from .limits import VALUE_DEPTH_MAX

Keys = tuple[str | int, ...]

# What may stand between the braces: texts (they may hold braces), and anything but an end.
_BODY_PART = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^'\"}]+|\}(?!\})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Whole:
    """A string that is one expression."""

    expression: Expression


@dataclass(frozen=True, slots=True)
class _Text:
    """A string of literal text and expressions, in order."""

    parts: tuple[str | Expression, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed JSON value; `expressions` are in document order, each with the keys to it."""

    expressions: tuple[tuple[Keys, Expression], ...]
    tree: Any  # the value, with _Whole and _Text in place of strings that have expressions

    @property
    def references(self) -> tuple[Reference, ...]:
        found = (ref for _, expression in self.expressions for ref in expression.references)
        return tuple(dict.fromkeys(found))

    @property
    def is_constant(self) -> bool:
        return all(expression.is_constant for _, expression in self.expressions)

    @property
    def is_expression(self) -> bool:
        """Says whether the whole value is one string that is one expression."""
        return isinstance(self.tree, _Whole)

    def evaluate(self, roots: Mapping[str, Any], budget: Budget | None = None) -> Json:
        """Returns the value for these roots; all expressions share one budget.

        The result may share parts with `roots` and with the template: don't change it.

        Raises:
            ExpressionError: as `Expression.evaluate`; its `path` says where.
        """
        return _evaluate(self.tree, roots, budget or Budget(), ())


def parse_template(value: Json) -> Template:
    """Returns the template that a JSON value is.

    Raises:
        ExpressionError: the first thing wrong in it; its `path` says where (`.args[0]`).
    """
    template, errors = scan_template(value)
    if errors:
        raise errors[0][1]
    return template


def scan_template(value: Json) -> tuple[Template, list[tuple[Keys, ExpressionError]]]:
    """Returns the template and everything that is wrong in it, each with the keys to it."""
    expressions: list[tuple[Keys, Expression]] = []
    errors: list[tuple[Keys, ExpressionError]] = []

    def parse(part: Json, keys: Keys) -> Any:
        if len(keys) > VALUE_DEPTH_MAX:
            errors.append((keys, _locate(f"nested deeper than {VALUE_DEPTH_MAX} levels", keys)))
            return None
        if isinstance(part, dict):
            return {key: parse(item, (*keys, key)) for key, item in part.items()}
        if isinstance(part, list):
            return [parse(item, (*keys, index)) for index, item in enumerate(part)]
        if not isinstance(part, str) or "{{" not in part:
            return part
        pieces: list[str | Expression] = []
        for piece, is_source in _split(part):
            if not is_source:
                pieces.append(piece)
                continue
            try:
                if not piece.endswith("}}"):
                    raise ExpressionError(f"{piece[:40]!r} has no end: write '}}}}' after it")
                expression = parse_expression(piece[2:-2])
            except ExpressionError as error:
                errors.append((keys, _locate(error.message, keys)))
                continue
            pieces.append(expression)
            expressions.append((keys, expression))
        if len(pieces) == 1 and isinstance(pieces[0], Expression):
            return _Whole(pieces[0])
        return _Text(tuple(pieces))

    tree = parse(value, ())
    return Template(tuple(expressions), tree), errors


def _locate(message: str, keys: Keys) -> ExpressionError:
    return ExpressionError(message, reduce(extend_path, keys, ""))


def _split(text: str) -> Iterator[tuple[str, bool]]:
    """Yields the pieces of a string, and whether each is an expression with its braces.

    One that has no end is the last piece, and comes without its closing braces.
    """
    position = 0
    literal = ""
    while (start := text.find("{{", position)) >= 0:
        literal += text[position:start]
        if text.startswith("{{{{", start):
            literal += "{{"
            position = start + 4
            continue
        if literal:
            yield literal, False
            literal = ""
        position = start + 2
        while match := _BODY_PART.match(text, position):
            position = match.end()
        if not text.startswith("}}", position):
            yield text[start:].rstrip("}"), True
            return
        position += 2
        yield text[start:position], True
    literal += text[position:]
    if literal:
        yield literal, False


def _evaluate(tree: Any, roots: Mapping[str, Any], budget: Budget, keys: Keys) -> Json:
    try:
        if isinstance(tree, _Whole):
            return tree.expression.evaluate(roots, budget)
        if isinstance(tree, _Text):
            return "".join(
                part if isinstance(part, str) else write_text(part.evaluate(roots, budget), budget)
                for part in tree.parts
            )
    except ExpressionError as error:
        raise _locate(error.message, keys) from error
    if isinstance(tree, dict):
        return {key: _evaluate(item, roots, budget, (*keys, key)) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_evaluate(item, roots, budget, (*keys, index)) for index, item in enumerate(tree)]
    return tree
