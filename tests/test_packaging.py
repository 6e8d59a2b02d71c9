"""The wheel: what `pip install planaria` gives, which an editable install doesn't show."""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent
BUILT_FROM = ["LICENSE", "README.md", "pyproject.toml"]
IMPORT_NAMES = {
    "protocol": "planaria/protocol",
    "sdk": "planaria",
    "supervisor": "planaria/supervisor",
    "workers": "planaria/workers",
}
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
BUILD_SECONDS = 50  # takes two


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    """The wheel, built from a copy: setuptools would leave build/lib, and pack it the next time."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, copy)
    for folder in IMPORT_NAMES:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", BUILD, "dist"]
    built = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=BUILD_SECONDS)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (copy / "dist").glob("*.whl")
    with ZipFile(path) as opened:
        yield opened


def metadata(wheel: ZipFile, name: str) -> bytes:
    (path,) = (found for found in wheel.namelist() if found.endswith(f".dist-info/{name}"))
    return wheel.read(path)


def test_wheel_holds_every_module_and_nothing_else(wheel: ZipFile) -> None:
    expected = {
        f"{IMPORT_NAMES[folder]}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder in IMPORT_NAMES
        for path in (ROOT / folder).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert sorted(expected) == sorted(packed)


@pytest.mark.parametrize("folder", IMPORT_NAMES)
def test_wheel_says_that_each_package_is_typed(wheel: ZipFile, folder: str) -> None:
    assert f"{IMPORT_NAMES[folder]}/py.typed" in wheel.namelist()


def test_wheel_carries_the_licence_and_the_command(wheel: ZipFile) -> None:
    facts = message_from_bytes(metadata(wheel, "METADATA"))

    assert "Apache-2.0" == facts["License-Expression"]
    assert (ROOT / "LICENSE").read_bytes() == metadata(wheel, "licenses/LICENSE")
    assert b"planaria = planaria.cli:main" in metadata(wheel, "entry_points.txt")


def test_wheel_depends_on_no_development_tool(wheel: ZipFile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = len(project["project"]["dependencies"])
    facts = message_from_bytes(metadata(wheel, "METADATA"))
    required = [line for line in facts.get_all("Requires-Dist", []) if "extra ==" not in line]

    assert declared == len(required)
