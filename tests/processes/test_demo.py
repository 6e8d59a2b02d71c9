"""The demo, small: real processes, real SIGKILL, and the same report in the end."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "scripts" / "examples" / "code_review" / "demo.py"
DEMO_SECONDS = 240


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), *arguments],
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
    )


@pytest.mark.slow
@pytest.mark.timeout(DEMO_SECONDS + 20)
def test_review_with_kills_gives_the_report_of_the_undisturbed_one(tmp_path: Path) -> None:
    folder, kept = tmp_path / "package", tmp_path / "kept"
    folder.mkdir()
    for name, functions in {"small": 2, "middle": 10, "large": 200}.items():  # large: 2 visits
        source = "".join(f"def do_{n}():\n    return {n}\n" for n in range(functions))
        (folder / f"{name}.py").write_text(source)

    ended = run_demo("--quick", "--folder", str(folder), "--seed", "7", "--keep", str(kept))

    assert ended.returncode == 0, ended.stdout + ended.stderr
    reports = [kept / run / "report.md" for run in ("undisturbed", "disturbed")]
    assert reports[0].read_bytes() == reports[1].read_bytes()
    found = dict(re.findall(r"│ (\w.*?)\s+│\s+(\S.*?) │ yes", ended.stdout))
    assert found["children killed with SIGKILL"] == "6 of 6"
    assert found["supervisors killed with SIGKILL"] == "2 of 2"
    assert found["recorded calls made again"] == "0"
    assert found["processes left behind"] == "0"


def test_folder_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    ended = run_demo("--folder", str(tmp_path / "nowhere"))

    assert ended.returncode == 2
    assert "there is no folder" in ended.stderr


def test_folder_to_keep_results_in_has_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("kept from before")

    ended = run_demo("--keep", str(tmp_path))

    assert ended.returncode == 2
    assert "is not empty" in ended.stderr
