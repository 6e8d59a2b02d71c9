"""Tells for each call in a piece of sandboxed code whether its site awaits the answer.

The sandbox answers a tool call with a value or with a future, and either is wrong at the other
kind of site: a value can't be awaited, a future can't be subscripted, and a future that nobody
awaits has performed its effect for nothing. Code that a model wrote does both, so that the answer
is chosen per site: a future where the call is awaited or gathered, by itself or through a name
that it is kept under; a value everywhere else.
"""

import ast
import re
from collections.abc import Iterator

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_AWAIT_BEFORE = re.compile(rb"\bawait[\s(]*$")
_COLLECTS = frozenset({"append", "add", "insert", "extend", "setdefault"})
# Views of a container that still hold the same futures.
_VIEWS = frozenset({"values", "items", "enumerate", "zip", "list", "tuple", "reversed", "sorted"})
_PASSES_ON = (
    ast.Starred,
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Dict,
    ast.IfExp,
    ast.BoolOp,
)


class CallSites:
    """The call sites of one source, found by the byte range of the call expression."""

    def __init__(self, source: str, tree: ast.Module) -> None:
        self._source = source.encode()
        self._tree = tree
        self._parents: dict[ast.AST, ast.AST] = {}
        self._calls: dict[tuple[int, int], ast.Call] = {}
        starts = [0]
        for line in self._source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node
            if isinstance(node, ast.Call) and node.end_lineno and node.end_col_offset is not None:
                start = starts[node.lineno - 1] + node.col_offset
                self._calls[start, starts[node.end_lineno - 1] + node.end_col_offset] = node

    def is_awaited(self, start: int, end: int) -> bool:
        """Returns whether the call at these byte offsets needs a future for its answer."""
        # Inside an f-string Python 3.11 gives wrong offsets: there the text before has to do.
        if _AWAIT_BEFORE.search(self._source[:start]):
            return True
        call = self._calls.get((start, end))
        return call is not None and self._flows_to_await(call, set())

    def _flows_to_await(self, value: ast.AST, seen: set[ast.AST | tuple[ast.AST, str]]) -> bool:
        """Follows a value outwards until it is awaited, kept under a name, or used as a value."""
        if value in seen:
            return False
        seen.add(value)
        while True:
            parent = self._parents.get(value)
            match parent:
                case ast.Await():
                    return True
                case ast.Call(args=args) if value in args:
                    if _name_of(parent.func) == "gather":
                        return True
                    if not isinstance(parent.func, ast.Attribute):
                        return False
                    base = parent.func.value
                    collects = parent.func.attr in _COLLECTS and isinstance(base, ast.Name)
                    return collects and self._name_is_awaited(base, seen)
                case ast.Assign(targets=targets):
                    return any(self._name_is_awaited(target, seen) for target in targets)
                case ast.AnnAssign(target=target):
                    return self._name_is_awaited(target, seen)
                case ast.NamedExpr(target=target) if self._name_is_awaited(target, seen):
                    return True
                case ast.Return():
                    return self._function_is_awaited(self._function_of(parent), seen)
                case ast.Lambda(body=body) if value is body:
                    return self._function_is_awaited(parent, seen)
                case ast.ListComp(elt=element) | ast.SetComp(elt=element) if value is element:
                    value = parent
                case ast.GeneratorExp(elt=element) | ast.DictComp(value=element) if (
                    value is element
                ):
                    value = parent
                case ast.NamedExpr():
                    value = parent
                case node if isinstance(node, _PASSES_ON):
                    value = node
                case _:
                    return False

    def _name_is_awaited(self, target: ast.AST, seen: set[ast.AST | tuple[ast.AST, str]]) -> bool:
        """Returns whether what is kept under a name is awaited in the function that keeps it."""
        while isinstance(target, ast.Subscript):
            target = target.value
        if not isinstance(target, ast.Name):
            return False
        scope = self._function_of(target) or self._tree
        if (scope, target.id) in seen:
            return False
        seen.add((scope, target.id))
        return any(self._use_is_awaited(use, seen) for use in _uses(scope, target.id))

    def _use_is_awaited(self, use: ast.AST, seen: set[ast.AST | tuple[ast.AST, str]]) -> bool:
        """Returns whether one use of a name awaits it, gathers it or loops over it to do so."""
        while True:
            parent = self._parents.get(use)
            match parent:
                case ast.Await():
                    return True
                case ast.Starred() | ast.Subscript():
                    use = parent
                case ast.Attribute(attr=attr) if attr in _VIEWS:
                    use = parent
                case ast.Call(func=func):
                    if use is not func and _name_of(func) == "gather":
                        return True
                    if _name_of(func) not in _VIEWS:
                        return False
                    use = parent
                case (
                    ast.For(target=target, iter=iterated)
                    | ast.comprehension(target=target, iter=iterated)
                ) if iterated is use:
                    names = [node for node in ast.walk(target) if isinstance(node, ast.Name)]
                    return any(self._name_is_awaited(name, seen) for name in names)
                case _:
                    return False

    def _function_is_awaited(
        self, function: _FunctionNode | None, seen: set[ast.AST | tuple[ast.AST, str]]
    ) -> bool:
        """Returns whether the calls of a plain function that hands a call on are awaited."""
        if isinstance(function, ast.FunctionDef):
            name = function.name
        elif isinstance(function, ast.Lambda):
            holder = self._parents.get(function)
            targets = holder.targets if isinstance(holder, ast.Assign) else []
            name = next((target.id for target in targets if isinstance(target, ast.Name)), "")
        else:
            return False
        return any(
            self._flows_to_await(call, seen)
            for call in self._calls.values()
            if isinstance(call.func, ast.Name) and call.func.id == name
        )

    def _function_of(self, node: ast.AST) -> _FunctionNode | None:
        """Returns the innermost function around a node, None at the top level."""
        parent = self._parents.get(node)
        while parent is not None and not isinstance(parent, _FunctionNode):
            parent = self._parents.get(parent)
        return parent


def _name_of(func: ast.expr) -> str:
    """Returns the last part of a called name: `gather` of `asyncio.gather`."""
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def _uses(scope: ast.AST, name: str) -> Iterator[ast.Name]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield node
