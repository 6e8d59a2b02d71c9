"""The command before it does anything: what it loads, what it lists."""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from planaria.cli import COMMANDS, main

NAMES = (
    "run check up down status runs show replay events logs ps resume retry fork wait result cancel "
    "verify doctor backup restore prune approve reject signal resolve pause "
    "unpause approvals effects"
).split()
HEAVY = {"zmq", "pydantic", "pydantic_ai", "apsw", "msgpack", "yaml", "psutil", "multiprocess"}
LIST_MODULES = """
import json, sys
from planaria.cli import main
sys.stdout = sys.stderr
code = main(sys.argv[1:])
json.dump([code, sorted({name.partition(".")[0] for name in sys.modules})], sys.__stdout__)
"""


def load(arguments: list[str]) -> tuple[int, set[str]]:
    """Returns the exit code of a command and what it has imported."""
    command = [sys.executable, "-P", "-c", LIST_MODULES, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "Traceback" not in ended.stderr
    code, modules = json.loads(ended.stdout)
    return code, set(modules)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"]], ids=str)
def test_help_imports_neither_zmq_nor_pydantic(arguments: list[str]) -> None:
    code, modules = load(arguments)

    assert (0 if arguments else 2) == code
    assert set() == HEAVY & modules


def test_help_of_a_command_imports_nothing_of_its_work() -> None:
    code, modules = load(["run", "--help"])

    assert 0 == code
    # typer itself checks the arguments of a command with pydantic.
    assert {"pydantic"} >= HEAVY & modules


def test_importing_planaria_imports_nothing_heavy() -> None:
    code = "import sys, planaria; print(*{name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-P", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)

    assert set() == HEAVY & set(ended.stdout.split())


def test_every_command_is_there() -> None:
    assert sorted(NAMES) == sorted(function.__name__ for function, _ in COMMANDS)


@pytest.mark.parametrize("function", [function for function, _ in COMMANDS])
def test_every_command_takes_json_and_a_data_directory(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters

    assert {"as_json", "data_dir"} <= set(parameters)
    assert inspect.getdoc(function)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert 0 == main([name, "--help"])
    assert "--data-dir" in capfd.readouterr().out


def test_unknown_option_is_named_with_code_2(capfd: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["runs", "--colour"])

    shown = capfd.readouterr()
    assert "" == shown.out
    assert "--colour" in shown.err and "planaria runs --help" in shown.err


def test_unknown_option_is_json_where_json_is_asked_for(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert 2 == main(["show", "--json"])

    error = json.loads(capfd.readouterr().out)["error"]
    assert "UsageError" == error["class"]
    assert "RUN" in error["message"]
