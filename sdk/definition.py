"""Where a definition comes from: found again by children, from a pinned copy of its modules."""

import glob
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from planaria.protocol.errors import (
    PlanariaError,
    UsageError,
    UserCodeError,
    WorkflowInvalidError,
    describe_type,
)

from .authoring import Workflow
from .compilation import collect_skills, sort_memory
from .declarations import Skill
from .documents import SUFFIXES, read_document
from .loading_guard import StopLoading, loading
from .origins import Origin, find_origin, origin_in_module, show_names, snapshot_of
from .runnable import Runnable, collect_workflows
from .snapshot import Snapshot, make_source, store_snapshot
from .tools import Tool

AGENT_LIBRARY = "pydantic_ai"
_LOADED_SUFFIX = "__planaria"  # a file is loaded under another name, never as __main__
_TRACEBACK_CHARS_MAX = 8_000


@dataclass(frozen=True, slots=True)
class ModuleParts:
    """What an LWIR file takes from its module: its tools, and what stands under these names."""

    tools: dict[str, Tool[..., Any]]
    models: dict[str, Any]
    env: tuple[str, ...] = ()
    workflows: dict[str, Runnable] = field(default_factory=dict)
    memory: tuple[str, ...] = ()
    declared_skills: tuple[Skill, ...] = ()

    @property
    def skills(self) -> dict[str, str]:
        """The paths of the skills, by name."""
        return {skill.name: skill.path for skill in self.declared_skills}


_OWN_FOLDER = Path(__file__).parent  # its frames say nothing of the user's mistake


def prepare_source(
    workflow: Any, *, target: str | None = None, modules_dir: Path
) -> dict[str, Any]:
    """Stores the workflow's modules and returns the source by which children load it.

    `target` is `module:name` or `path.py:name`; without one the module-level name that holds the
    workflow is looked for. A workflow without such a name is carried by dill.

    Raises:
        UsageError: the target names no such thing, or the workflow can't travel.
        SnapshotTooLargeError: its project is too large to be pinned.
    """
    source, snapshot = find_source(workflow, target=target)
    store_snapshot(snapshot, modules_dir)
    return source


def find_source(workflow: Any, *, target: str | None = None) -> tuple[dict[str, Any], Snapshot]:
    """Returns the source by which children load a workflow, and the snapshot that it needs.

    Raises:
        UsageError, SnapshotTooLargeError: as prepare_source.
    """
    if target is not None:
        origin: Origin | None = _origin_of_target(target, workflow)
    else:
        origin = getattr(workflow, "origin", None) or find_origin(workflow)
    extra = _describe_place(workflow)
    if origin is None:
        if not isinstance(workflow, Runnable):
            raise UsageError(message=f"{workflow!r} is no Workflow, and no module names it")
        from .prompt_definition import make_prompt_source, pack_definition

        snapshot = pack_definition(workflow)
        return {**make_prompt_source(workflow.id, snapshot), **extra}, snapshot
    snapshot = snapshot_of(origin, _list_included(workflow))
    _check_skills(workflow, snapshot)
    if origin.kind == "lwir":
        extra["models"] = {s: name for s, name in workflow.models.items() if isinstance(name, str)}
    return {**_make_source_of(origin, snapshot), **extra}, snapshot


def prepare_function(function: Any, *, beside: Any, modules_dir: Path) -> dict[str, Any]:
    """Stores the modules of a function and returns the source by which children load it.

    What a child loads by it is the function itself. It sees the environment of the workflow
    `beside` it. A lambda or local function, which no module names, is carried by dill.

    Raises:
        UsageError: it is no function, or it can't travel.
        SnapshotTooLargeError: its project is too large to be pinned.
    """
    if not callable(function):
        raise UsageError(
            message=f"{function!r} is no function: supervise takes the state of the loop and "
            "answers Done(...) or Continue(...)"
        )
    origin = find_origin(function)
    if origin is not None:
        snapshot = snapshot_of(origin, _list_included(beside))
        source = _make_source_of(origin, snapshot)
    else:
        from .prompt_definition import make_prompt_source, pack_function

        snapshot = pack_function(function)
        name = getattr(function, "__qualname__", type(function).__name__)
        source = make_prompt_source(str(name), snapshot)
    store_snapshot(snapshot, modules_dir)
    return {**source, **_describe_place(beside)}


def _make_source_of(origin: Origin, snapshot: Snapshot) -> dict[str, Any]:
    # Of a module the import path says the place; a file's own folder belongs to that path.
    file = None if origin.kind == "module" else origin.file
    return make_source(snapshot, kind=origin.kind, entry=origin.entry, file=file)


def _describe_place(workflow: Any) -> dict[str, Any]:
    """Returns the working directory of children, the variables that they see, what they import.

    Those of the workflows that it may start are among them: their children have the same source.
    """
    names = dict.fromkeys(name for one in _family(workflow) for name in one.env)
    place = {"cwd": os.getcwd(), "env": list(names)}
    if AGENT_LIBRARY in sys.modules:  # children load it too, and there are some that have it
        return {**place, "importsAgents": True}
    return place


def _family(workflow: Any) -> list[Runnable]:
    return list(workflow.family()) if isinstance(workflow, Runnable) else []


def _list_included(workflow: Any) -> tuple[str, ...]:
    """Returns the patterns of what is pinned besides modules: skills too, by their very path."""
    found: dict[str, None] = {}
    for one in _family(workflow):
        found.update(dict.fromkeys(one.include))
        found.update(dict.fromkeys(glob.escape(path) for path in one.skills.values()))
    return tuple(found)


def _check_skills(workflow: Any, snapshot: Snapshot) -> None:
    for one in _family(workflow):
        for name, path in one.skills.items():
            if path not in snapshot.files:
                raise UsageError(
                    message=f"skill {name!r} of {one.id!r} isn't among the files that are pinned: "
                    f"expected a file {path!r} below the project's root {snapshot.root}, outside "
                    "of hidden folders, environments and build output"
                )


def load_target(target: str, module: str | None = None) -> Runnable:
    """Returns what `path.py:name`, `module:name` or an LWIR file names: a workflow or orchestrator.

    `module` is the Python file that holds the tools and models of an LWIR file.

    Raises:
        UsageError: no such file, module or name, or it isn't a workflow.
        UserCodeError: the module failed while it was imported.
        WorkflowInvalidError: the document has findings.
    """
    if Path(target).suffix.lower() in SUFFIXES:
        return _load_document_target(Path(target), module)
    if module is not None:
        raise UsageError(
            message=f"--module goes with an LWIR file (.json, .yaml); {target!r} has its tools in "
            "its own module"
        )
    place, name = _split_target(target)
    if place.endswith(".py"):
        file = Path(place).absolute()
        loaded = _import_file(file)
        origin: Origin | None = Origin("file", f"{file.name}:{name}", file)
    else:
        loaded = _import_module(place)
        origin = origin_in_module(loaded, name)
    found = _find_attribute(loaded, name)
    if not isinstance(found, Runnable):
        what = "there is nothing of that name" if found is None else f"it is {describe_type(found)}"
        raise UsageError(
            message=f"{target!r} names no workflow: {what}. The workflows of {place!r}: "
            f"{show_names(loaded, Runnable)}"
        )
    found.origin = origin
    return found


def collect_parts(
    module: ModuleType | None, models: Mapping[str, Any] | None = None
) -> ModuleParts:
    """Returns what an LWIR file takes from its module; `models` are slots that it needn't have."""
    if module is None:
        return ModuleParts({}, dict(models or {}))
    own = getattr(module, "models", {})
    if not isinstance(own, Mapping):
        raise UsageError(
            message=f"`models` in {module.__file__!r} is {describe_type(own)}; expected a map of "
            "model slots"
        )
    where = module.__name__
    return ModuleParts(
        tools={v.name: v for v in vars(module).values() if isinstance(v, Tool)},
        models={**(models or {}), **own},
        env=tuple(getattr(module, "env", ())),
        workflows=collect_workflows(where, getattr(module, "workflows", ())),
        memory=sort_memory(where, getattr(module, "memory", ())),
        declared_skills=collect_skills(where, getattr(module, "skills", ())),
    )


def _load_document_target(path: Path, module: str | None) -> Workflow:
    document = read_document(path)
    file = Path(module).absolute() if module else None
    permissions = document.get("permissions")
    slots = permissions.get("models") if isinstance(permissions, dict) else None
    # A slot that is called like a model stands for it: then no module has to say so.
    named = [slot for slot in slots or () if isinstance(slot, str) and ":" in slot]
    parts = collect_parts(_import_file(file) if file else None, {slot: slot for slot in named})
    try:
        workflow = Workflow.from_document(
            document,
            tools=list(parts.tools.values()),
            models=parts.models,
            workflows=list(parts.workflows.values()),
            memory=parts.memory,
            skills=parts.declared_skills,
            env=parts.env,
        )
    except WorkflowInvalidError as error:
        if error.fields["name"]:
            raise
        raise WorkflowInvalidError(name=str(path), findings=error.fields["findings"]) from error
    workflow.origin = Origin("lwir", path.name, file)
    return workflow


def _origin_of_target(target: str, workflow: Any) -> Origin:
    place, name = _split_target(target)
    if place.endswith(".py"):
        file = Path(place).absolute()
        if not file.is_file():
            raise UsageError(message=f"there is no file {str(file)!r}")
        return Origin("file", f"{file.name}:{name}", file)
    module = _import_module(place)
    found = _find_attribute(module, name)
    if found is not workflow:
        shown = "nothing" if found is None else repr(found)[:100]
        raise UsageError(
            message=f"the target {target!r} is {shown}, not the workflow {workflow.id!r} that is "
            "to run"
        )
    origin = origin_in_module(module, name)
    if origin is None:
        raise UsageError(message=f"the target {target!r} has no Python file to be loaded from")
    return origin


def _split_target(target: str) -> tuple[str, str]:
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise UsageError(
            message=f"{target!r} names no workflow: write path.py:name, module:name, or the path "
            "of an LWIR file (.json, .yaml)"
        )
    return place, name


def _find_attribute(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _import_module(name: str) -> ModuleType:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with loading():
            return importlib.import_module(name)
    except StopLoading as stop:
        raise UserCodeError(
            message=f"module {name!r} calls run() while it is imported: put the call under "
            f'if __name__ == "__main__", or name the file itself ({name.rpartition(".")[2]}.py:…)',
            traceback_text="",
        ) from stop
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(message=f"there is no module {name!r} on the import path") from error
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:  # user code: anything may come
        raise _failed(name, error) from error


def _import_file(path: Path) -> ModuleType:
    """Imports a file as its module would be, from its own folder; never as `__main__`."""
    if not path.is_file():
        raise UsageError(message=f"there is no file {str(path)!r}")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = f"{path.stem}{_LOADED_SUFFIX}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(message=f"{str(path)!r} is no Python file; expected a name that ends .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with loading():
            spec.loader.exec_module(module)
    except StopLoading:
        pass  # a script without a __main__ guard: everything above its run() is defined
    except (Exception, SystemExit) as error:  # user code: anything may come
        del sys.modules[name]
        raise _failed(str(path), error) from error
    return module


def _failed(what: str, error: BaseException) -> PlanariaError:
    if isinstance(error, WorkflowInvalidError):
        return error  # the module is sound, a document in it isn't: its findings say where
    if isinstance(error, SyntaxError) and error.filename:
        place = f" at {error.filename}, line {error.lineno}"
    else:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith("<") and Path(frame.filename).parent != _OWN_FOLDER
        ]
        place = f" at {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    text = "".join(traceback.format_exception(error))[-_TRACEBACK_CHARS_MAX:]
    return UserCodeError(
        message=f"loading {what!r} failed{place}: {type(error).__name__}: {error}",
        traceback_text=text,
    )
