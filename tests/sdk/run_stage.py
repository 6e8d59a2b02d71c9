"""The stage of the tests of whole runs: a project, and one supervisor for a module's tests."""

import contextlib
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planaria import Client, RunFailedError, RunResult

HERE = Path(__file__).parent
PATIENCE_SECONDS = 60.0


class Stage:
    """Runs workflows in real processes, all under one supervisor."""

    def __init__(self, project: Path, flows: list[ModuleType], client: Client) -> None:
        self.project = project
        self.client = client
        self.data = client.directory
        self._flows = flows

    def get(self, name: str) -> Any:
        """Returns what the modules of the flows have under a name."""
        return next(vars(flows)[name] for flows in self._flows if name in vars(flows))

    def run(self, name: str, input: Any = None, **more: Any) -> RunResult:
        """Returns the result of a run that has to end well."""
        flow = self.get(name)
        run_id = self.client.start(flow, input, **more)
        return self.client.wait(run_id, workflow=flow, timeout=PATIENCE_SECONDS)

    def fail(self, name: str, input: Any = None, **more: Any) -> RunFailedError:
        """Returns the failure of a run that must not end well."""
        with pytest.raises(RunFailedError) as got:
            self.run(name, input, **more)
        return got.value

    def events(self, run_id: str, *patterns: str) -> list[dict[str, Any]]:
        """Returns the events of a run, all or those whose type fits a pattern."""
        return [
            event
            for event in self.client.events(run_id)
            if not patterns or any(fnmatchcase(event["type"], pattern) for pattern in patterns)
        ]

    def payloads(self, run_id: str, *patterns: str) -> list[dict[str, Any]]:
        return [event["payload"] for event in self.events(run_id, *patterns)]

    def wait_for(self, run_id: str, event_type: str) -> None:
        """Returns once the run has such an event."""
        with Client(self.data, start_if_missing=False) as client:
            for event in client.events(run_id, follow=True):
                if event["type"] == event_type:
                    return
        raise AssertionError(f"run {run_id!r} has ended without {event_type}")


@contextlib.contextmanager
def open_stage(
    factory: pytest.TempPathFactory, *modules: str, **environment: str
) -> Iterator[Stage]:
    """Gives a stage in a project that holds copies of the modules of flows; its folder is cwd."""
    folder = factory.mktemp("stage")
    (folder / "pyproject.toml").touch()
    for name in modules:
        shutil.copy(HERE / f"{name}.py", folder)
    search_path, loaded = list(sys.path), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        for variable, value in environment.items():
            patch.setenv(variable, value)
        flows = [importlib.import_module(name) for name in modules]
        with Client(folder / "data") as client:
            client.ping()
            yield Stage(folder, flows, client)
    sys.path[:] = search_path
    for name in [name for name in sys.modules if name not in loaded and name.startswith(modules)]:
        del sys.modules[name]


def read_stored(data: Path) -> bytes:
    """Returns all that a data directory holds, but for the pinned source."""
    parts = []
    for folder, names, files in os.walk(data):
        if "modules" in names and folder.endswith("artifacts"):
            names.remove("modules")
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # of a socket, or gone meanwhile
                path = Path(folder, file)
                parts.append(path.read_bytes() if path.is_file() else b"")
    return b"\0".join(parts)
