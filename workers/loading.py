"""Loads a run's definition in a child from its pinned modules, never from the live project.

Editable installs of other projects, installed packages and data files that aren't included in
the snapshot stay live (see planaria.snapshot). The working directory isn't touched: a relative
path in a tool means the live file.
"""

import difflib
import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from planaria.loading_guard import StopLoading, loading
from planaria.protocol.errors import IntegrityError, UserCodeError
from planaria.snapshot import is_pinned_path, verify_pin

LOADED_SUFFIX = "__planaria"  # a script is loaded under another name, never as __main__
_NEAR_NAMES_MAX = 5


def load_definition(source: Mapping[str, Any], modules_dir: Path) -> object:
    """Returns the object that a source (made by planaria.snapshot.make_source) names.

    Without a name in `entry`, and for kind `lwir`, that is the module itself. Loading the same
    source again in the same process gives the same object.

    Raises:
        UserCodeError: a module failed while it was loaded, or doesn't have the name.
        IntegrityError: the pinned modules are missing.
    """
    pin = modules_dir.resolve() / str(source["modulesRef"])
    root = Path(str(source["root"]))
    if not pin.is_dir():
        raise IntegrityError(
            message=f"the pinned modules {source['modulesRef']} are missing in {modules_dir}; "
            "restore the data directory, or start a new run"
        )
    if source["kind"] == "dill":
        return _open_prompt_definition(pin, source)
    set_import_path(pin, root, source["paths"])
    target, _, name = str(source["entry"]).rpartition(":")
    if not target or source["kind"] == "lwir":
        target, name = target or name, ""
    loaded = _Loader(pin, root)
    if source["kind"] == "lwir" and source["file"] is None:
        return ModuleType(target)  # a document without tools needs no module
    if source["kind"] == "module":
        module = loaded.import_module(target)
    else:
        module = loaded.load_file(pin / str(source["file"]))
    return loaded.find_name(module, name) if name else module


def load_parts(source: Mapping[str, Any], modules_dir: Path) -> object:
    """Returns what a source names, with its `tools` and `models`: for kind `lwir` its module's.

    Raises:
        UserCodeError, IntegrityError: as load_definition.
    """
    loaded = load_definition(source, modules_dir)
    if source["kind"] == "lwir" and isinstance(loaded, ModuleType):
        # Imported here: what loads no document needs nothing of it.
        from planaria.definition import collect_parts

        return collect_parts(loaded, source.get("models"))
    return loaded


def _open_prompt_definition(pin: Path, source: Mapping[str, Any]) -> object:
    """Opens what was made at a prompt; its imports are the live modules of that prompt."""
    from planaria.prompt_definition import open_definition

    # Opening runs what stands there: it has to be what was stored.
    verify_pin(pin.parent, pin.name)
    live = [entry["live"] for entry in source["paths"]]
    sys.path[:] = list(dict.fromkeys([*live, *(path for path in sys.path if path)]))
    return open_definition((pin / str(source["file"])).read_bytes())


def set_import_path(pin: Path, root: Path, paths: Sequence[Mapping[str, str]]) -> None:
    """Puts the pinned folders first, keeps what lies outside the project, drops "" and cwd."""
    pinned = [str(pin / entry["pin"]) for entry in paths if "pin" in entry]
    live = [entry["live"] for entry in paths if "live" in entry]
    here = Path.cwd()
    own = [
        path
        for path in sys.path
        if path and Path(path).resolve() != here and not is_pinned_path(Path(path).resolve(), root)
    ]
    sys.path[:] = list(dict.fromkeys([*pinned, *live, *own]))
    # A byte-code file would change what the pin's hash was taken of.
    sys.dont_write_bytecode = True
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _LiveGuard)]
    index = next(
        (i for i, f in enumerate(sys.meta_path) if f is importlib.machinery.PathFinder),
        len(sys.meta_path) - 1,
    )
    sys.meta_path.insert(index + 1, _LiveGuard(root))
    importlib.invalidate_caches()


class _LiveGuard:
    """Refuses live modules of the project that import hooks find although they aren't pinned.

    The hook of an editable install maps names to the live files; it is asked after the import
    path, so it is reached for what the pin lacks. New code in an old run is worse than an error.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] == "planaria":
            return None  # in a checkout of planaria itself, the project is the runtime too
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]
        for finder in later:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is None:
                continue
            places = [spec.origin, *(spec.submodule_search_locations or [])]
            if any(place and is_pinned_path(Path(place), self._root) for place in places):
                raise ModuleNotFoundError(
                    f"module {name!r} lies in the project {self._root} but not in the snapshot "
                    "that this run was admitted with",
                    name=name,
                )
            return spec
        return None


class _Loader:
    """Loads modules of one pin, and names the project's own paths in its errors."""

    def __init__(self, pin: Path, root: Path) -> None:
        self._pin = pin
        self._root = root
        self._stopped_at = ""

    def import_module(self, name: str) -> ModuleType:
        """Returns the module, loaded so that a call of run() in it ends its loading only."""
        known = sys.modules.get(name)
        if known is not None:
            return known
        try:
            with loading():
                spec = importlib.util.find_spec(name)
        except (Exception, SystemExit, StopLoading) as error:
            raise self._user_error(name, error) from error
        if spec is None or spec.loader is None:
            raise UserCodeError(
                message=f"no module {name!r} in the snapshot of {self._root} or installed; it was "
                "looked for in " + ", ".join(path for path in sys.path if path),
                traceback_text="",
            )
        module = self._execute(spec)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
        return module

    def load_file(self, file: Path) -> ModuleType:
        """Returns a file's module under a name of its own, that of the file plus a suffix."""
        name = file.stem + LOADED_SUFFIX
        known = sys.modules.get(name)
        if known is not None:
            assert known.__file__ == str(file), f"{name} is loaded from {known.__file__}"
            return known
        if not file.is_file():
            raise UserCodeError(
                message=f"{self._show(file)} is not in the snapshot of {self._root}",
                traceback_text="",
            )
        loader = importlib.machinery.SourceFileLoader(name, str(file))
        spec = importlib.util.spec_from_file_location(name, file, loader=loader)
        assert spec is not None
        sys.argv[:] = [str(self._root / file.relative_to(self._pin))]
        return self._execute(spec, alias=self._importable_name(file))

    def find_name(self, module: ModuleType, name: str) -> object:
        """Returns what a module has under a name (`a.b` for an attribute of it)."""
        found: object = module
        for part in name.split("."):
            if not hasattr(found, part):
                names = [known for known in dir(found) if not known.startswith("_")]
                near = difflib.get_close_matches(part, names, _NEAR_NAMES_MAX, 0.5)
                hint = f"; near names: {', '.join(near)}" if near else ""
                if self._stopped_at:
                    hint += (
                        f"; its loading ended at the call of run() at {self._stopped_at}: define "
                        f'it above, or put the call under if __name__ == "__main__"'
                    )
                where = self._show(Path(module.__file__ or module.__name__))
                raise UserCodeError(message=f"{where} has no {name!r}{hint}", traceback_text="")
            found = getattr(found, part)
        return found

    def _execute(self, spec: ModuleSpec, alias: str | None = None) -> ModuleType:
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Before its code runs: pydantic, dataclasses and circular imports look it up there.
        names = [spec.name] if alias is None else [spec.name, alias]
        for name in names:
            sys.modules[name] = module
        try:
            with loading():
                spec.loader.exec_module(module)
        except StopLoading as stop:
            self._stopped_at = self._place_of(stop)
        except (Exception, SystemExit) as error:
            for name in names:
                sys.modules.pop(name, None)
            raise self._user_error(spec.name, error) from error
        return module

    def _importable_name(self, file: Path) -> str | None:
        """Returns the name under which other modules would import the file, if there is one.

        Its module stands under that name too, so that a circular import meets the same module.
        """
        stem = file.stem
        if not stem.isidentifier() or stem in sys.modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(stem)
        return stem if spec is not None and spec.origin == str(file) else None

    def _user_error(self, name: str, error: BaseException) -> UserCodeError:
        text = "".join(traceback.format_exception(error)).replace(str(self._pin), str(self._root))
        what = name.removesuffix(LOADED_SUFFIX)
        reason = str(error).replace(str(self._pin), str(self._root))
        kind = type(error).__name__
        message = f"loading {what!r} failed at {self._place_of(error)}: {kind}: {reason}"
        return UserCodeError(message=message, traceback_text=text)

    def _place_of(self, error: BaseException) -> str:
        """Returns `file, line n` of the last frame in the project's own code."""
        if isinstance(error, SyntaxError) and error.filename:
            return f"{self._show(Path(error.filename))}, line {error.lineno}"
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(self._pin)]
        if not own:
            return "no line of the project"
        return f"{self._show(Path(own[-1].filename))}, line {own[-1].lineno}"

    def _show(self, path: Path) -> str:
        """Returns the path that the user knows: that of the live file."""
        if path.is_relative_to(self._pin):
            return str(self._root / path.relative_to(self._pin))
        return str(path)
