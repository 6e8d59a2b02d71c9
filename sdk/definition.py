"""Where a definition comes from: found again by children, from a pinned copy of its modules."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from planaria.protocol.errors import UsageError, UserCodeError

from .authoring import Workflow
from .snapshot import make_source, store_snapshot, take_snapshot
from .tools import Tool


def prepare_source(
    workflow: Any, *, target: str | None = None, modules_dir: Path
) -> dict[str, Any]:
    """Stores the workflow's modules and returns the source by which children load it.

    `target` is `module:name` or `path.py:name`; without one the module-level name that holds the
    workflow is looked for, first in the main program.

    Raises:
        UsageError: it is found under no name; the text says what to do.
        SnapshotTooLargeError: its project is too large to be pinned.
    """
    known = getattr(workflow, "source_facts", None)
    if known is not None:
        kind, entry, file = known
    else:
        kind, entry, file = _read_target(target) if target else _find_name(workflow)
    snapshot = take_snapshot(file, getattr(workflow, "include", ()))
    source = make_source(
        snapshot, kind=kind, entry=entry, file=None if kind == "module" else file
    )
    store_snapshot(snapshot, modules_dir)
    source["cwd"] = os.getcwd()
    source["env"] = list(getattr(workflow, "env", ()))
    return source


def load_target(target: str, module: str | None = None) -> Workflow:
    """Returns the workflow that `path.py:name`, `module:name` or an LWIR file names.

    `module` is the Python file that holds the tools and models of an LWIR file.

    Raises:
        UsageError: no such file, module or name, or it isn't a workflow.
        UserCodeError: the module failed while it was imported.
        WorkflowInvalidError: the document has findings.
    """
    if Path(target).suffix.lower() in (".json", ".yaml", ".yml"):
        return _load_document_target(Path(target), module)
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise UsageError(
            message=f"{target!r} names no workflow: write path.py:name, module:name, or the path "
            "of an LWIR file (.json, .yaml)"
        )
    loaded = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    found = getattr(loaded, name, None)
    if not isinstance(found, Workflow):
        names = [n for n, v in vars(loaded).items() if isinstance(v, Workflow)]
        listed = ", ".join(sorted(names)) or "none"
        raise UsageError(message=f"{place!r} has no workflow {name!r}; it has: {listed}")
    found.source_facts = _read_target(target)  # type: ignore[attr-defined]
    return found


def read_document(path: Path) -> dict[str, Any]:
    """Returns the document in a JSON or YAML file.

    Raises:
        UsageError: it can't be read or parsed; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"the workflow file {str(path)!r} can't be read: {error}"
        raise UsageError(message=message) from error
    try:
        if path.suffix.lower() == ".json":
            document = json.loads(text)
        else:
            import yaml

            document = yaml.safe_load(text)
    except ValueError as error:
        raise UsageError(message=f"{str(path)!r} is no JSON: {error}") from error
    except Exception as error:
        raise UsageError(message=f"{str(path)!r} is no YAML: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(message=f"{str(path)!r} holds no map; expected an LWIR document")
    return document


def collect_parts(module: ModuleType | None) -> tuple[list[Tool], dict[str, Any], list[str]]:
    """Returns the tools, the `models` map and the `env` list of a module for LWIR files."""
    if module is None:
        return [], {}, []
    tools = {v.name: v for v in vars(module).values() if isinstance(v, Tool)}
    models = getattr(module, "models", {})
    return list(tools.values()), dict(models), list(getattr(module, "env", ()))


def _load_document_target(path: Path, module: str | None) -> Workflow:
    document = read_document(path)
    file = Path(module).absolute() if module else None
    loaded = _import_file(file) if file else None
    tools, models, env = collect_parts(loaded)
    permitted = document.get("permissions")
    names = permitted.get("models") if isinstance(permitted, dict) else None
    for slot in names if isinstance(names, list) else ():
        if isinstance(slot, str) and ":" in slot:
            models.setdefault(slot, slot)
    workflow = Workflow.from_document(document, tools=tools, models=models, env=env)
    entry = str(file) if file else str(path.absolute())
    workflow.source_facts = ("lwir", entry, file)  # type: ignore[attr-defined]
    return workflow


def _read_target(target: str) -> tuple[Any, str, Path | None]:
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        path = Path(place).absolute()
        return "file", f"{path.name}:{name}", path
    module = _import_module(place)
    file = getattr(module, "__file__", None)
    return "module", target, Path(file) if file else None


def _find_name(workflow: Any) -> tuple[Any, str, Path | None]:
    """Looks for the module-level name that holds the workflow."""
    modules = dict(sys.modules)
    ordered = [("__main__", modules.pop("__main__", None)), *modules.items()]
    for name, module in ordered:
        file = getattr(module, "__file__", None)
        if module is None or file is None:
            continue
        for attribute, value in list(vars(module).items()):
            if value is workflow:
                path = Path(file).absolute()
                if name != "__main__":
                    return "module", f"{name}:{attribute}", path
                return "script", f"{path.name}:{attribute}", path
    raise UsageError(
        message=f"workflow {getattr(workflow, 'id', workflow)!r} stands under no name of a module, "
        "so that a child process can't find it: assign it to a name at the top level of a file, "
        "or name it with target='path.py:name'"
    )


def _import_module(name: str) -> ModuleType:
    import importlib

    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(message=f"there is no module {name!r} on the import path") from error
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _import_file(path: Path) -> ModuleType:
    """Imports a file as its module would be, from its own folder; never as `__main__`."""
    import importlib.util

    from .loading_guard import StopLoading, loading

    path = path.absolute()
    if not path.is_file():
        raise UsageError(message=f"there is no file {str(path)!r}")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = f"{path.stem}__planaria"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with loading():
            spec.loader.exec_module(module)
    except StopLoading:
        pass  # a script without a __main__ guard: everything above its run() is defined
    except Exception as error:
        del sys.modules[name]
        raise _broken(str(path), error) from error
    return module


def _broken(what: str, error: BaseException) -> UserCodeError:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return UserCodeError(
        message=f"{what!r} failed while it was imported{place}: {type(error).__name__}: {error}",
        traceback_text="".join(traceback.format_exception(error))[-8000:],
    )
