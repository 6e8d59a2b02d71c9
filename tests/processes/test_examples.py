"""The examples, small: real processes, real SIGKILL, and what each one's table says in the end."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "scripts" / "examples"
EXAMPLE_SECONDS = 200  # they take about ten each; a busy machine may need longer
NAMES = ("planned_review", "orchestrated_fanout", "outer_loop", "fixer", "existing_agent")
SMALL = """
def add(first, second):
    '''Adds two numbers.'''
    return first + second


def forget(text):
    return None
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of small modules, for which no example needs more than a few steps."""
    folder = tmp_path / "package"
    folder.mkdir()
    for name in ("alpha", "beta", "gamma"):
        (folder / f"{name}.py").write_text(SMALL.replace("add", f"add_{name}"))
    return folder


def run_example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=EXAMPLE_SECONDS,
    )


def read_table(name: str, folder: Path) -> dict[str, str]:
    """Returns the rows of an example's table; the example itself says whether each is right."""
    ended = run_example(name, str(folder), "--quick", "--seed", "7")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = dict(re.findall(r"│ (\S.*?)\s+│\s+(\S.*?) │ yes", ended.stdout))
    kills = [found for what, found in rows.items() if what.startswith("kill -9")]
    assert kills and set(kills) == {"done"}
    assert rows["recorded calls made again"] == "0"
    assert rows["calls in the ledger or the log only"] == "0"
    assert rows["result"] == "equal"
    assert rows["processes left behind"] == "0"
    return rows


@pytest.mark.slow
@pytest.mark.timeout(EXAMPLE_SECONDS + 20)
def test_planned_review_runs_the_draft_that_was_accepted(folder: Path) -> None:
    (folder / "gamma.py").unlink()  # an agent for each file, and one that judges

    rows = read_table("planned_review", folder)

    assert rows["drafts that the validation refused"] == "1"
    assert rows["versions that were made"] == "1"


@pytest.mark.slow
@pytest.mark.timeout(EXAMPLE_SECONDS + 20)
def test_fan_out_has_each_sub_run_once(folder: Path) -> None:
    for number in range(5):
        (folder / f"more_{number}.py").write_text(SMALL)

    rows = read_table("orchestrated_fanout", folder)

    assert rows["sub-runs, each completed once"] == "8 of 8"
    assert rows["times the workflow was planned"] == "1"


@pytest.mark.slow
@pytest.mark.timeout(EXAMPLE_SECONDS + 20)
def test_outer_loop_ends_and_runs_nothing_when_called_again(folder: Path) -> None:
    rows = read_table("outer_loop", folder)

    assert rows["cycles"] == "2"
    assert rows["runs that the finished loop made when called again"] == "0"


@pytest.mark.slow
@pytest.mark.timeout(EXAMPLE_SECONDS + 20)
def test_fixer_repairs_a_source_without_repeating_its_effects(folder: Path) -> None:
    rows = read_table("fixer", folder)

    assert rows["fixerAttempts, of the step's metadata"] == "1"
    assert rows["entries opened, each once for all sources"] == "3 of 3"


@pytest.mark.slow
@pytest.mark.timeout(EXAMPLE_SECONDS + 20)
def test_existing_agent_files_each_finding_once(folder: Path) -> None:
    rows = read_table("existing_agent", folder)

    assert rows["findings filed, each once"] == "2 of 2"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_help_says_what_an_example_shows(name: str) -> None:
    ended = run_example(name, "--help")

    assert ended.returncode == 0, ended.stderr
    assert "Killed with SIGKILL" in " ".join(ended.stdout.split())


def test_folder_that_an_example_does_not_find_is_refused_by_name(tmp_path: Path) -> None:
    ended = run_example("outer_loop", str(tmp_path / "nowhere"))

    assert ended.returncode == 2
    assert "there is no folder" in ended.stderr
