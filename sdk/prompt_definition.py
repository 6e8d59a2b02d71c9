"""Definitions without a file, made at a prompt or in a notebook: carried to children by dill.

What stands in `__main__` (functions, models, enums) travels by value, all else by its name: modules
that it imports are the live ones, not a pinned copy. The bytes are opened in children only, which
are as trusted as the code in them; the supervisor never opens them.
"""

import enum
import importlib
import io
import sys
import warnings
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from planaria.protocol.errors import UsageError, UserCodeError

from .loading_guard import loading
from .origins import find_origin
from .snapshot import Snapshot

if TYPE_CHECKING:
    from .runnable import Runnable

BLOB_NAME = "definition.dill"
_MODEL_PARTS_MADE_ANEW = frozenset(
    "__dict__ __weakref__ __slots__ __signature__ __abstractmethods__ _abc_impl "
    "__pydantic_core_schema__ __pydantic_validator__ __pydantic_serializer__ "
    "__pydantic_complete__ __pydantic_parent_namespace__ __pydantic_setattr_handlers__".split()
)
_SCHEMA_PARTS = ("__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__")
_made_models: list[Any] = []  # by the load that is going on; a process loads one at a time


def pack_definition(definition: "Runnable") -> Snapshot:
    """Returns a snapshot with the definition itself, and with its skills.

    Raises:
        UsageError: dill is missing, or something in the definition can't travel.
    """
    what = f"workflow {definition.id!r}"
    files = {BLOB_NAME: _pack(_describe(definition, is_outermost=True), what)}
    for one in definition.family():
        for name, path in one.skills.items():
            files[path] = _read_skill(name, Path.cwd() / path)
    return Snapshot(Path.cwd(), files)


def pack_function(function: Any) -> Snapshot:
    """Returns a snapshot whose one file is a function without a name that could be imported.

    Raises:
        UsageError: dill is missing, or it holds something that can't travel.
    """
    name = getattr(function, "__qualname__", repr(function)[:60])
    data = _pack({"make": "function", "function": function}, f"function {name!r}")
    return Snapshot(Path.cwd(), {BLOB_NAME: data})


def _describe(one: "Runnable", *, is_outermost: bool = False) -> dict[str, Any]:
    """Returns a definition's parts; one that a module holds travels as its name there."""
    place = None if is_outermost else find_origin(one)
    if place is not None and place.kind == "module":
        return {"make": "imported", "entry": place.entry}
    parts = one.parts()
    workflows = [_describe(inner) for inner in parts["workflows"]]
    return {"make": type(one).__name__, **parts, "workflows": workflows}


def _pack(parts: dict[str, Any], what: str) -> bytes:
    try:
        dill_pickler = _make_pickler()
    except ImportError as error:
        raise UsageError(
            message=f"{what} stands under no name that a child process could import, and dill "
            "isn't installed to carry it there. Assign it to a name at the top level of a file, "
            "or install dill"
        ) from error
    buffer = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # dill warns of what it can't write, and goes on
            dill_pickler(buffer, recurse=True, byref=False).dump(parts)
    except Exception as error:  # whatever a user's own __reduce__ raises
        raise UsageError(
            message=f"{what} stands under no name that a child process could import, and it can't "
            f"travel as it is ({type(error).__name__}: {str(error)[:300]}). Assign it to a name "
            "at the top level of a file"
        ) from error
    return buffer.getvalue()


def _read_skill(name: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(
            message=f"skill {name!r} can't be read: {file} ({error.strerror}); its path is "
            "relative to the working directory here"
        ) from error


def make_prompt_source(name: str, snapshot: Snapshot) -> dict[str, Any]:
    """Returns the source of a packed definition; its import path is this process's own, live."""
    live = dict.fromkeys(str(Path(text or ".").resolve()) for text in sys.path)
    return {
        "entry": name,
        "kind": "dill",
        "root": str(snapshot.root),
        "modulesRef": snapshot.hash,
        "paths": [{"live": path} for path in live],
        "file": BLOB_NAME,
    }


def open_definition(data: bytes) -> Any:
    """Returns the definition, or the function, in packed bytes; in a child only.

    Raises:
        UserCodeError: something in it can't be made again here.
    """
    import dill

    _made_models.clear()
    try:
        with loading():
            parts = dill.loads(data)
            for model in _made_models:
                model.model_rebuild(force=True)
            return _make_again(parts)
    except Exception as error:  # user code runs here
        import traceback

        raise UserCodeError(
            message="the definition that was made at a prompt can't be loaded: "
            f"{type(error).__name__}: {str(error)[:300]}. What it imports has to be importable in "
            "a child process",
            traceback_text="".join(traceback.format_exception(error))[-8_000:],
        ) from error
    finally:
        _made_models.clear()


def _make_again(described: dict[str, Any]) -> Any:
    """Makes what was packed; after the classes in it are whole, which its schemas need."""
    from .authoring import Workflow
    from .orchestrators import Orchestrator

    parts = dict(described)
    match parts.pop("make"):
        case "function":
            return parts["function"]
        case "imported":
            module, _, name = parts["entry"].rpartition(":")
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
            return found
        case kind:
            workflows = [_make_again(inner) for inner in parts.pop("workflows")]
            make: Any = Orchestrator if kind == "Orchestrator" else Workflow.from_parts
            return make(workflows=workflows, **parts)


def _make_pickler() -> Any:
    """Returns dill's pickler, which writes classes of `__main__` by value that it wouldn't."""
    import dill

    base: Any = dill.Pickler

    class Pickler(base):  # type: ignore[misc]
        def save(self, obj: Any, save_persistent_id: bool = True) -> None:
            if isinstance(obj, type) and obj.__module__ == "__main__" and type(obj) is not type:
                if id(obj) not in self.memo:
                    self.save_reduce(*_reduce_class(obj), obj=obj)
                    return
            super().save(obj, save_persistent_id)

    return Pickler


def _reduce_class(made: Any) -> tuple[Any, ...]:
    if isinstance(made, enum.EnumMeta):
        return _reduce_enum(made)
    # Asked by its name: pydantic is loaded if such a class exists.
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and issubclass(made, pydantic.BaseModel):
        state = {k: v for k, v in vars(made).items() if k not in _MODEL_PARTS_MADE_ANEW}
        start = (type(made), made.__name__, made.__bases__, made.__qualname__)
        return _start_model, start, state, None, None, _finish_model
    members = {
        k: v for k, v in vars(made).items() if k not in ("__dict__", "__weakref__", "_abc_impl")
    }
    bases = getattr(made, "__orig_bases__", made.__bases__)
    return _make_class, (type(made), made.__name__, bases, members)


def _reduce_enum(made: Any) -> tuple[Any, ...]:
    """An enum is made of its members and what it defines besides; it can't refer to itself."""
    own = {
        name: value
        for name, value in vars(made).items()
        if isinstance(value, FunctionType | property | classmethod | staticmethod)
        and not getattr(value, "__module__", "__main__").startswith("enum")
        and name not in ("__new__", "_generate_next_value_")
    }
    members = {name: member.value for name, member in made.__members__.items()}
    return _make_enum, (type(made), made.__name__, made.__bases__, members, own)


def _make_enum(
    kind: Any, name: str, bases: tuple[type, ...], members: dict[str, Any], own: dict[str, Any]
) -> Any:
    namespace = kind.__prepare__(name, bases)
    namespace["__module__"] = "__main__"
    namespace["__qualname__"] = name
    for key, value in {**own, **members}.items():
        namespace[key] = value
    return kind(name, bases, namespace)


def _make_class(kind: Any, name: str, bases: tuple[Any, ...], members: dict[str, Any]) -> Any:
    import types

    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(members)

    return types.new_class(name, bases, {"metaclass": kind}, fill)


def _start_model(kind: Any, name: str, bases: tuple[type, ...], qualname: str) -> Any:
    """Returns an empty model, so that its fields and methods can refer to it while they load."""
    model = kind(name, bases, {"__module__": "__main__", "__qualname__": qualname})
    _made_models.append(model)
    return model


def _finish_model(model: Any, state: dict[str, Any]) -> None:
    for name, value in state.items():
        type.__setattr__(model, name, value)
    for name in _SCHEMA_PARTS:
        if name in vars(model):
            type.__delattr__(model, name)  # made anew when all models are there
