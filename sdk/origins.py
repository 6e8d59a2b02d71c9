"""The place that a workflow object was made in: the module or file from which children load it."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .snapshot import SKIPPED_FOLDERS, Snapshot, SourceKind, find_root, take_snapshot

_INSTALLED = SKIPPED_FOLDERS & {"site-packages", "dist-packages"}


@dataclass(frozen=True, slots=True)
class Origin:
    """`entry` is what make_source takes; `import_folder` is the one that a module's name starts in.

    `file` is None for what has no file, such as an LWIR document without a module.
    """

    kind: SourceKind
    entry: str
    file: Path | None
    import_folder: Path | None = None


def find_origin(workflow: object) -> Origin | None:
    """Returns where a module-level name holds the workflow; None if no child could find it so.

    The main program comes last: an imported definition has a module that is loaded by its name.
    """
    for module, name in _list_places(workflow):
        origin = origin_in_module(module, name)
        if origin is not None:
            return origin
    return None


def origin_in_module(module: ModuleType, name: str) -> Origin | None:
    """Returns the origin of a name of a module; None if loading its file wouldn't define it."""
    file = _file_of(module)
    if file is None:
        return None
    module_name = module.__name__
    if module_name == "__main__":
        if hasattr(sys, "ps1") or not _defines(file, name):
            return None  # typed at a prompt, or made only when the file is the main program
        spec = getattr(module, "__spec__", None)  # of `python -m package.module`
        if spec is None:
            return Origin("script", f"{file.name}:{name}", file)
        module_name = spec.name
    folder = _import_folder(module_name, file)
    if folder is None:  # loaded under a name that isn't its file's, by a test runner for example
        return Origin("file", f"{file.name}:{name}", file)
    return Origin("module", f"{module_name}:{name}", file, folder)


def snapshot_of(origin: Origin, include: tuple[str, ...]) -> Snapshot:
    """Returns the snapshot that the origin's children load from.

    Raises:
        SnapshotTooLargeError, UsageError: as take_snapshot.
    """
    file, folder = origin.file, origin.import_folder
    if file is not None and not _INSTALLED.isdisjoint(file.parts):
        # An installed package stays live, and nothing lies below this root.
        return Snapshot(file, {})
    if file is None or folder is None or folder.is_relative_to(find_root(file)):
        return take_snapshot(file, include)
    # The package folder itself has the marker: its modules are named from the folder around it.
    return take_snapshot(file, include, root=folder)


def _list_places(workflow: object) -> Iterator[tuple[ModuleType, str]]:
    modules = dict(sys.modules)
    main = modules.pop("__main__", None)
    for module in (*modules.values(), main):
        if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] == "planaria":
            continue
        for name, value in list(vars(module).items()):
            if value is workflow:
                yield module, name


def _file_of(module: ModuleType) -> Path | None:
    text = getattr(module, "__file__", None)
    if not isinstance(text, str) or not text.endswith(".py"):
        return None
    file = Path(text).resolve()
    return file if file.is_file() else None


def _import_folder(name: str, file: Path) -> Path | None:
    """Returns the folder from which `name` leads to the file, if it does."""
    parts = name.split(".")
    place = file.parent if file.stem == "__init__" else file.with_suffix("")
    if list(place.parts[-len(parts) :]) != parts:
        return None
    return place.parents[len(parts) - 1]


def _defines(file: Path, name: str) -> bool:
    """Whether a script has the name when it isn't the main program.

    Only a name that is bound under `if __name__ == "__main__":` and nowhere else is known not to
    be there; names may come from anywhere, a star import for example.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return True  # it runs, so what its loader says of it is better than what is said here
    guards = [node for node in tree.body if isinstance(node, ast.If) and _is_guard(node.test)]
    guarded = any(_binds(part, name) for node in guards for part in node.body)
    others = [node for node in tree.body if node not in guards]
    others += [part for node in guards for part in node.orelse]
    return not guarded or any(_binds(node, name) for node in others)


def _is_guard(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
    )


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and isinstance(node.ctx, ast.Store)
    if isinstance(node, ast.alias):
        return (node.asname or node.name) == name
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name  # the names inside are its own
    return any(_binds(part, name) for part in ast.iter_child_nodes(node))


def show_names(module: ModuleType, kind: type[Any]) -> str:
    """Returns the names of a module's objects of a class, for an error."""
    names = sorted(name for name, value in vars(module).items() if isinstance(value, kind))
    return ", ".join(names) or "none"
