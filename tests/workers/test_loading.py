"""A child loads the code that a run was admitted with, whatever the sources look like now."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from planaria.loading_guard import StopLoading, is_loading, loading, raise_if_loading
from planaria.protocol.errors import IntegrityError, UserCodeError
from planaria.snapshot import make_source, store_snapshot, take_snapshot
from planaria.workers.loading import load_definition

SCRIPT_START = "from planaria.loading_guard import raise_if_loading\n"


@pytest.fixture(autouse=True)
def import_state() -> Iterator[None]:
    """Gives the import state back as it was: the loader's process is normally its own."""
    path, meta, argv = list(sys.path), list(sys.meta_path), list(sys.argv)
    modules, bytecode = dict(sys.modules), sys.dont_write_bytecode
    yield
    sys.path[:], sys.meta_path[:], sys.argv[:] = path, meta, argv
    sys.dont_write_bytecode = bytecode
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Project:
    """A project on disk whose pin is taken once; what is written afterwards is live only."""

    def __init__(self, tmp_path: Path, files: dict[str, str]) -> None:
        self.root = tmp_path / "project"
        self.modules_dir = tmp_path / "modules"
        self.files = {"pyproject.toml": ""} | files
        write_tree(self.root, self.files)

    def pin(
        self,
        kind: Literal["module", "file", "script", "lwir"],
        entry: str,
        file: str | None = None,
        paths: list[str] | None = None,
        include: list[str] | None = None,
    ) -> dict[str, Any]:
        start = self.root / (file or next(name for name in self.files if name.endswith(".py")))
        snapshot = take_snapshot(start, include or [])
        store_snapshot(snapshot, self.modules_dir)
        return make_source(
            snapshot,
            kind=kind,
            entry=entry,
            file=self.root / file if file else None,
            paths=[str(self.root / path) for path in paths or []],
            modules={},
        )

    def edit_all(self) -> None:
        write_tree(self.root, {k: v.replace("v1", "v2") for k, v in self.files.items()})


def test_flat_project_keeps_its_first_version(tmp_path: Path) -> None:
    project = Project(
        tmp_path, {"flow.py": "import part\nflow = part.text", "part.py": "text = 'v1'"}
    )
    source = project.pin("file", "flow.py:flow", "flow.py")
    project.edit_all()

    assert load_definition(source, project.modules_dir) == "v1"


def test_src_layout_keeps_its_first_version(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        {
            "src/pkg/__init__.py": "",
            "src/pkg/flow.py": "from .sub import part\nfrom space.deep import x\nflow = part.t + x",
            "src/pkg/sub/__init__.py": "",
            "src/pkg/sub/part.py": "t = 'v1'",
            "src/space/deep.py": "x = '-v1'",
        },
    )
    source = project.pin("module", "pkg.flow:flow", paths=["src"])
    project.edit_all()

    assert load_definition(source, project.modules_dir) == "v1-v1"


def test_lazy_import_and_template_beside_it_are_pinned(tmp_path: Path) -> None:
    flow = (
        "from pathlib import Path\n"
        "def flow():\n"
        "    from pkg import late\n"
        "    import importlib\n"
        "    name = 'pkg.' + 'dynamic'\n"
        "    beside = Path(late.__file__).with_name('template.txt').read_text()\n"
        "    return late.text + importlib.import_module(name).text + beside\n"
    )
    project = Project(
        tmp_path,
        {
            "flow.py": flow,
            "pkg/__init__.py": "",
            "pkg/late.py": "text = 'v1'",
            "pkg/dynamic.py": "text = 'v1'",
            "pkg/template.txt": "v1",
        },
    )
    source = project.pin("file", "flow.py:flow", "flow.py", include=["**/*.txt"])
    project.edit_all()
    definition = load_definition(source, project.modules_dir)

    assert callable(definition)
    assert definition() == "v1v1v1"


def test_live_root_on_the_import_path_is_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path, {"flow.py": "def flow():\n    import added\n    return added"})
    source = project.pin("file", "flow.py:flow", "flow.py")
    write_tree(project.root, {"added.py": "new = True"})
    monkeypatch.chdir(project.root)
    sys.path[:0] = ["", str(project.root)]
    definition = load_definition(source, project.modules_dir)

    assert callable(definition)
    with pytest.raises(ModuleNotFoundError):
        definition()


def test_import_hook_of_an_editable_install_gives_no_live_code(tmp_path: Path) -> None:
    from importlib.util import spec_from_file_location

    project = Project(tmp_path, {"flow.py": "def flow():\n    import added\n    return added"})
    source = project.pin("file", "flow.py:flow", "flow.py")
    write_tree(project.root, {"added.py": "new = True"})

    class Hook:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> Any:
            if name == "added":
                return spec_from_file_location(name, project.root / "added.py")
            return None

    sys.meta_path.append(Hook)  # type: ignore[arg-type]
    definition = load_definition(source, project.modules_dir)

    assert callable(definition)
    with pytest.raises(ModuleNotFoundError, match="not in the snapshot"):
        definition()


def test_script_stops_at_its_run_and_keeps_what_stands_above(tmp_path: Path) -> None:
    script = SCRIPT_START + (
        "flow = 'v1'\n"
        "try:\n"
        "    raise_if_loading()\n"
        "except Exception:\n"
        "    flow = 'swallowed'\n"
        "flow = 'ran on'\n"
    )
    project = Project(tmp_path, {"my-script.py": script})
    source = project.pin("script", "my-script.py:flow", "my-script.py")

    assert load_definition(source, project.modules_dir) == "v1"
    assert sys.modules["my-script__planaria"].__name__ == "my-script__planaria"
    assert not is_loading()


def test_main_block_of_a_script_is_not_run(tmp_path: Path) -> None:
    text = "flow = 1\nif __name__ == '__main__':\n    raise RuntimeError('ran')\n"
    project = Project(tmp_path, {"job.py": text})

    assert load_definition(project.pin("script", "job.py:flow", "job.py"), project.modules_dir) == 1


def test_name_below_the_run_call_is_explained(tmp_path: Path) -> None:
    project = Project(tmp_path, {"job.py": SCRIPT_START + "raise_if_loading()\nflow = 1\n"})
    source = project.pin("script", "job.py:flow", "job.py")

    with pytest.raises(UserCodeError, match=r"job.py, line 2: define it above"):
        load_definition(source, project.modules_dir)


def test_circular_import_meets_the_same_module(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        {
            "flow.py": "class Batch: pass\nimport part\nflow = part",
            "part.py": "import flow\nBatch = flow.Batch",
        },
    )
    part: Any = load_definition(project.pin("file", "flow.py:flow", "flow.py"), project.modules_dir)

    assert part.Batch is sys.modules["flow__planaria"].Batch


def test_pydantic_resolves_names_under_future_annotations(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from pydantic import BaseModel, TypeAdapter\n"
        "class Outer(BaseModel):\n"
        "    inner: Inner\n"
        "class Inner(BaseModel):\n"
        "    n: int\n"
        "@dataclass\n"
        "class Plain:\n"
        "    inner: Inner\n"
        "def flow():\n"
        "    plain = TypeAdapter(Plain).validate_python({'inner': {'n': 2}})\n"
        "    return Outer(inner={'n': 1}).inner.n + plain.inner.n\n"
    )
    project = Project(tmp_path, {"flow.py": text})
    definition = load_definition(
        project.pin("file", "flow.py:flow", "flow.py"), project.modules_dir
    )

    assert callable(definition)
    assert definition() == 3


def test_failing_import_names_the_users_file_and_line(tmp_path: Path) -> None:
    project = Project(tmp_path, {"flow.py": "import part\n", "part.py": "x = 1\n1 / 0\n"})
    source = project.pin("file", "flow.py:flow", "flow.py")

    with pytest.raises(UserCodeError) as caught:
        load_definition(source, project.modules_dir)

    assert f"{project.root}/part.py, line 2: ZeroDivisionError" in str(caught.value)
    assert str(project.modules_dir) not in caught.value.traceback_text
    assert "1 / 0" in caught.value.traceback_text
    assert "flow__planaria" not in sys.modules


@pytest.mark.parametrize(
    ("text", "place"),
    [("def f(:\n", "line 1: SyntaxError"), ("x = 1\nraise SystemExit(3)\n", "line 2: SystemExit")],
)
def test_broken_or_exiting_module_is_a_typed_error(tmp_path: Path, text: str, place: str) -> None:
    project = Project(tmp_path, {"flow.py": text})

    with pytest.raises(UserCodeError, match=f"flow.py, {place}"):
        load_definition(project.pin("file", "flow.py:flow", "flow.py"), project.modules_dir)


def test_unknown_name_lists_near_names(tmp_path: Path) -> None:
    project = Project(tmp_path, {"flow.py": "triage = 1\n"})

    with pytest.raises(UserCodeError, match="has no 'traige'; near names: triage"):
        load_definition(project.pin("file", "flow.py:traige", "flow.py"), project.modules_dir)


def test_unknown_module_says_where_it_was_looked_for(tmp_path: Path) -> None:
    project = Project(tmp_path, {"flow.py": ""})

    with pytest.raises(UserCodeError, match="no module 'absent' in the snapshot"):
        load_definition(project.pin("module", "absent:x", paths=["."]), project.modules_dir)


def test_package_that_calls_run_at_import_is_named(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        {"pkg/__init__.py": SCRIPT_START + "raise_if_loading()", "pkg/flow.py": "flow = 1"},
    )

    with pytest.raises(UserCodeError, match=r"pkg/__init__.py, line 2"):
        load_definition(project.pin("module", "pkg.flow:flow", paths=["."]), project.modules_dir)


def test_entry_without_a_name_is_the_module(tmp_path: Path) -> None:
    project = Project(tmp_path, {"tools.py": "x = 'v1'"})
    source = project.pin("lwir", "flow.json", "tools.py")

    module: Any = load_definition(source, project.modules_dir)

    assert module.x == "v1"
    assert load_definition(source, project.modules_dir) is module


def test_missing_pin_is_an_integrity_error(tmp_path: Path) -> None:
    project = Project(tmp_path, {"flow.py": ""})
    source = project.pin("file", "flow.py:x", "flow.py") | {"modulesRef": "0" * 64}

    with pytest.raises(IntegrityError, match="are missing"):
        load_definition(source, project.modules_dir)


def test_loading_writes_nothing_into_the_pin(tmp_path: Path) -> None:
    project = Project(tmp_path, {"flow.py": "import part\nflow = 1", "part.py": ""})
    source = project.pin("file", "flow.py:flow", "flow.py")
    load_definition(source, project.modules_dir)

    pin = project.modules_dir / source["modulesRef"]
    assert sorted(path.name for path in pin.iterdir()) == ["flow.py", "part.py"]


def test_guard_raises_only_while_loading() -> None:
    raise_if_loading()
    with loading(), pytest.raises(StopLoading):
        raise_if_loading()
    assert not isinstance(StopLoading(), Exception)
