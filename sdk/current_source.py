"""Finds a recorded run's definition again as it is now, from where it was when it was admitted."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.protocol.errors import PlanariaError, UsageError

from .definition import load_target
from .runnable import Runnable


@dataclass(frozen=True, slots=True)
class CurrentDefinition:
    """The outermost definition, and the way down from it to the one that the run is of."""

    workflow: Runnable
    within: tuple[str, ...] = ()

    @property
    def runnable(self) -> Runnable:
        """The definition that the run is of."""
        found = self.workflow
        for name in self.within:
            found = found.workflows[name]
        return found


def load_current(
    run: Mapping[str, Any], target: str | None = None, module: str | None = None
) -> CurrentDefinition:
    """Returns a run's definition as its source is now; `run` is what `Client.status` shows.

    `target` names it if it has moved, `module` goes with an LWIR file.

    Raises:
        UsageError: it isn't there any more, or it is another workflow's.
        UserCodeError, WorkflowInvalidError: it can't be loaded.
    """
    run_id = run["runId"]
    source = run.get("source") or {}
    within = tuple(source.get("within") or ())
    if target is None:
        target, module = _find_target(run_id, source)
        try:
            workflow = load_target(target, module)
        except UsageError as error:
            if type(error) is not UsageError:  # it is there, and can't be loaded
                raise
            raise _not_found(run_id, str(error)) from error
    else:
        workflow = load_target(target, module)
        if workflow.id == run.get("workflowId"):
            within = ()
    found = workflow
    for name in within:
        if name not in found.workflows:
            raise _not_found(run_id, f"workflow {found.id!r} has no workflow {name!r} now")
        found = found.workflows[name]
    if found.id != run.get("workflowId"):
        raise UsageError(
            message=f"{target!r} is workflow {found.id!r}, and run {run_id!r} is one of "
            f"{run.get('workflowId')!r}: name that one by --target"
        )
    return CurrentDefinition(workflow, within)


def _find_target(run_id: str, source: Mapping[str, Any]) -> tuple[str, str | None]:
    """Returns the target and the module that a source was made of."""
    kind, entry = source.get("kind"), str(source.get("entry", ""))
    root = Path(str(source.get("root", "")))
    file = source.get("file")
    match kind:
        case "module":
            _extend_import_path(root, source.get("paths") or ())
            return entry, None
        case "file" | "script" if file is not None:
            return f"{root / file}:{entry.rpartition(':')[2]}", None
        case "lwir":
            module = None if file is None else str(root / file)
            folders = [Path(str(source.get("cwd", root))), root]
            if file is not None:
                folders.append((root / file).parent)
            for folder in folders:
                if (folder / entry).is_file():
                    return str(folder / entry), module
            raise _not_found(run_id, f"there is no file {entry!r} in {folders[0]} now")
        case "dill":
            raise _not_found(run_id, "it was made at a prompt or in a function")
    raise _not_found(run_id, "nothing is recorded of its place")


def _extend_import_path(root: Path, paths: Any) -> None:
    """Lets modules be imported from where they were; what is on the path already stays first."""
    for entry in paths:
        folder = str((root / entry["pin"]).resolve()) if "pin" in entry else str(entry["live"])
        if folder not in sys.path and Path(folder).exists():
            sys.path.append(folder)


def _not_found(run_id: str, reason: str) -> PlanariaError:
    return UsageError(
        message=f"the current definition of run {run_id!r} can't be found: {reason}. Pass "
        "--target, with path.py:name, module:name or an LWIR file"
    )
