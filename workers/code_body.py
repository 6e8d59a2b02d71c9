"""A piece of sandboxed Python before it runs: its limits, what it may import, what it gives."""

import ast
import traceback
import warnings
from dataclasses import dataclass

from planaria.protocol.errors import PlanariaError, shorten
from planaria.protocol.limits import ERROR_TEXT_CHARS_MAX, INLINE_BYTES_MAX

from .call_sites import CallSites

# What the specification grants, and what can be granted without giving anything away: gather
# (asyncio; sleeping is refused) and names for annotations.
IMPORTS = frozenset({"math", "re", "json", "datetime", "asyncio", "typing", "__future__"})
RESULT_NAMES = ("result", "output")
_DISPLAY_CHARS_MAX = ERROR_TEXT_CHARS_MAX - 16  # and the mark where it was cut


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one run of a body may use; `execution_seconds` doesn't count waiting for tools."""

    memory_bytes: int = 64 << 20
    execution_seconds: float = 5.0
    output_bytes: int = 64 * 1024
    recursion_depth: int = 500
    suspensions: int = 10_000  # tool calls, name look-ups and awaits; the library's own is 1,000
    source_bytes: int = INLINE_BYTES_MAX


class SandboxError(PlanariaError):
    """A body ended without a result.

    Fields: `kind` (syntax, raised, result, time_limit, memory_limit, output_limit, call_limit,
    crashed), `message` (one line), `display` (a traceback with source lines, for a fixer).
    """

    template = "the code step failed ({kind}): {message}"


class CodeBody:
    """A source that was parsed and may be run, and what is known about it without running it."""

    def __init__(self, source: str, limits: SandboxLimits) -> None:
        self.limits = limits
        size = len(source.encode(errors="surrogatepass"))
        if size > limits.source_bytes:
            reason = f"the source has {size} bytes, at most {limits.source_bytes} are run"
            raise make_failure("syntax", reason)
        tree = _parse(source)
        _check_imports(tree)
        self.sites = CallSites(source, tree)
        self.source = source + _find_result_line(tree)


def _parse(source: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source, "<code>")
    except SyntaxError as error:
        display = "".join(traceback.format_exception_only(error))
        raise make_failure("syntax", f"{error.msg} at line {error.lineno}", display) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise make_failure("syntax", f"not readable as Python: {error}") from error


def _check_imports(tree: ast.Module) -> None:
    """Refuses other imports by name, before anything has run.

    Most of them the interpreter doesn't have; those that it has hold nothing that isn't closed
    (clock, randomness, files), so that an import hidden in exec() gains nothing.
    """
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        for name in names:
            if name.split(".")[0] not in IMPORTS:
                allowed = ", ".join(sorted(IMPORTS))
                line = getattr(node, "lineno", 0)
                message = f"import of {name!r} at line {line}: a code step may import {allowed}"
                raise make_failure("raised", message, f"ModuleNotFoundError: {message}")


def _find_result_line(tree: ast.Module) -> str:
    """Returns a last line that names the result, for a body that only assigns it."""
    if not tree.body or isinstance(tree.body[-1], ast.Expr | ast.Return):
        return ""
    assigned: set[str] = set()
    level: list[ast.AST] = list(tree.body)
    while level:
        node = level.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Return):
            return ""  # the body ends by itself where it returns; what follows is null
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assigned.add(node.id)
        level.extend(ast.iter_child_nodes(node))
    return next((f"\n{name}\n" for name in RESULT_NAMES if name in assigned), "")


def make_failure(kind: str, message: str, display: str | None = None) -> SandboxError:
    """Returns the error of a body; a long display keeps its first and its last lines."""
    shown = (display or message).replace("<python-input-0>", "<code>")
    if len(shown) > _DISPLAY_CHARS_MAX:
        half = _DISPLAY_CHARS_MAX // 2
        shown = f"{shown[:half]}\n  […]\n{shown[-half:]}"
    return SandboxError(kind=kind, message=shorten(message), display=shown)
