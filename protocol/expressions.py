"""The expression language of workflow documents: parsed once, checked whole, evaluated safely.

Text is read token by token, written again as the Python expression with the same meaning, and
parsed by `ast`; the tree is then turned into the few nodes below. What is not made of them never
gets to be evaluated. Every part without a reference is evaluated while
parsing, so that a wrong operand is found before anything runs.
"""

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .codec import Json
from .expression_operations import (
    FUNCTIONS,
    NODE_WORK,
    OPERATORS,
    Budget,
    ExpressionError,
    check_number,
    get_member,
    invert,
    is_true,
    make_list,
    negate,
)
from .expression_tokens import ROOTS, refuse, shorten_source, write_python

__all__ = ["ROOTS", "Budget", "Expression", "ExpressionError", "Reference", "parse_expression"]

TREE_DEPTH_MAX = 100  # evaluation recurses once per level; Python's own limit is 1,000 frames

STEP_MEMBERS = ("output", "lastOutput", "allVisits")
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
}


@dataclass(frozen=True, slots=True)
class Reference:
    """What an expression reads: a root, and of `steps` which step and which of its members."""

    root: str
    step_id: str | None = None
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    value: Any


@dataclass(frozen=True, slots=True)
class Lookup:
    reference: Reference


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator or function; all its arguments are evaluated first."""

    function: Callable[..., Any]
    arguments: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    """`and`/`or`: the first argument that decides, as it is; the ones after it aren't evaluated."""

    stops_at: bool
    arguments: "tuple[Node, ...]"


Node = Constant | Lookup | Apply | Choice


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; `references` are in the order of the text, each once."""

    source: str
    references: tuple[Reference, ...]
    node: Node

    @property
    def is_constant(self) -> bool:
        return isinstance(self.node, Constant)

    def evaluate(self, roots: Mapping[str, Any], budget: Budget | None = None) -> Json:
        """Returns the value for these roots; what is missing in them is null.

        `roots["steps"]` maps a step id to {"output", "lastOutput", "allVisits"}. The result may
        share parts with `roots`.

        Raises:
            ExpressionError: wrong operands, or more work than the budget allows.
        """
        return _evaluate(self.node, roots, budget or Budget())


def parse_expression(source: str) -> Expression:
    """Returns the expression that `source` (what stands between the braces) says.

    Raises:
        ExpressionError: it isn't in the language, or a constant part of it can't be evaluated.
    """
    python = write_python(source)
    try:
        # In brackets, so that line breaks of the source mean nothing.
        tree = ast.parse(f"({python})", mode="eval").body
        references: dict[Reference, None] = {}
        node = _convert(tree, references, 1)
    except ExpressionError:
        raise
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        refuse(f"{shorten_source(source)} is no expression of the language")
    return Expression(source, tuple(references), node)


def _convert(tree: ast.expr, references: dict[Reference, None], depth: int) -> Node:
    """Returns the node for a Python tree; anything that isn't in the language is refused."""
    if depth > TREE_DEPTH_MAX:
        refuse(f"an expression of more than {TREE_DEPTH_MAX} operations in a row")

    def inner(part: ast.expr) -> Node:
        return _convert(part, references, depth + 1)

    match tree:
        case ast.Constant(value=value):
            if isinstance(value, int | float) and not isinstance(value, bool):
                check_number(value)
            return Constant(value)
        case ast.Name(id=name):
            if name == "steps":
                refuse('write a step after steps, like steps.fetch.output or steps["fetch"].output')
            return _note(Reference(name), references)
        case ast.Subscript(value=value, slice=key):
            reference = _read_step(value, key)
            if reference is not None:
                return _note(reference, references)
            return _apply(get_member, inner(value), inner(key))
        case ast.List(elts=items):
            return _apply(make_list, *map(inner, items))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            function, least, most = FUNCTIONS[name]
            if len(arguments) < least or (most is not None and len(arguments) > most):
                count = str(least) if most == least else f"{least} or more"
                refuse(f"{name} takes {count} argument(s), and was given {len(arguments)}")
            return _apply(function, *map(inner, arguments))
        case ast.Call():
            refuse(f"values have no methods; there are {', '.join(sorted(FUNCTIONS))}")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _apply(negate, inner(operand))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _apply(invert, inner(operand))
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            return _apply(OPERATORS[_ARITHMETIC[type(operator)]], inner(left), inner(right))
        case ast.BoolOp(op=boolean, values=values):
            return _choose(isinstance(boolean, ast.Or), *map(inner, values))
        case ast.Compare(left=left, ops=symbols, comparators=others):
            nodes = [inner(part) for part in (left, *others)]
            names = [
                _COMPARISONS[type(symbol)] for symbol in symbols if type(symbol) in _COMPARISONS
            ]
            if len(names) < len(symbols):
                refuse("'in' and 'is' are not part of the language: use contains(…) or '=='")
            pairs = [
                _apply(OPERATORS[name], *pair)
                for name, *pair in zip(names, nodes, nodes[1:], strict=False)
            ]
            return pairs[0] if len(pairs) == 1 else _choose(False, *pairs)
        case _:
            refuse("only values, members, operators, lists and functions make an expression")


def _read_step(value: ast.expr, key: ast.expr) -> Reference | None:
    """Returns the reference if value[key] is `steps.<id>.<member>`."""
    if isinstance(value, ast.Name) and value.id == "steps":
        step_id = key.value if isinstance(key, ast.Constant) else None
        if not isinstance(step_id, str):
            refuse('a step is named in the text itself, like steps["fetch"].output')
        refuse(f"write what to read of the step: steps[{json.dumps(step_id)}].output")
    match value:
        case ast.Subscript(value=ast.Name(id="steps"), slice=ast.Constant(value=str(step_id))):
            pass
        case _:
            return None
    member = key.value if isinstance(key, ast.Constant) else None
    if member not in STEP_MEMBERS:
        refuse(f"of step {shorten_source(step_id)} can be read: {', '.join(STEP_MEMBERS)}")
    return Reference("steps", step_id, str(member))


def _note(reference: Reference, references: dict[Reference, None]) -> Node:
    references[reference] = None
    return Lookup(reference)


def _apply(function: Callable[..., Any], *arguments: Node) -> Node:
    return _fold(Apply(function, arguments))


def _choose(stops_at: bool, *arguments: Node) -> Node:
    return _fold(Choice(stops_at, arguments))


def _fold(node: Apply | Choice) -> Node:
    if all(isinstance(argument, Constant) for argument in node.arguments):
        return Constant(_evaluate(node, {}, Budget()))
    return node


def _evaluate(node: Node, roots: Mapping[str, Any], budget: Budget) -> Json:
    budget.spend(NODE_WORK)
    match node:
        case Constant(value=value):
            return value
        case Lookup(reference=reference):
            value = roots.get(reference.root)
            if reference.step_id is None:
                return value
            return ((value or {}).get(reference.step_id) or {}).get(reference.member)
        case Apply(function=function, arguments=arguments):
            return function(budget, *(_evaluate(part, roots, budget) for part in arguments))
        case Choice(stops_at=stops_at, arguments=arguments):
            value = None
            for part in arguments:
                value = _evaluate(part, roots, budget)
                if is_true(value) is stops_at:
                    break
            return value
