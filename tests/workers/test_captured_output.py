"""What a process prints: by session, bounded, and kept when it is killed."""

import os
import subprocess
import sys
from pathlib import Path

from planaria.protocol.limits import CAPTURED_OUTPUT_BYTES_MAX
from planaria.workers.captured_output import CUT

PRELUDE = """
import os, signal, sys
from pathlib import Path
from planaria.workers.captured_output import CapturedOutput
output = CapturedOutput(Path(sys.argv[1]), "p1-2", sys.argv[2])
"""


def carry(directory: Path, code: str) -> Path:
    """Runs code as a child would, with stdout in its file; returns the folder of the logs."""
    (directory / "runs").mkdir()
    log_path = directory / "runs" / ".p1-2.log"
    descriptor = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    command = [sys.executable, "-c", PRELUDE + code, str(directory), str(log_path)]
    try:
        subprocess.run(command, stdout=descriptor, stderr=descriptor, timeout=30, check=False)
    finally:
        os.close(descriptor)
    return directory / "runs" / "r" / "logs"


def test_each_session_has_its_own_output(tmp_path: Path) -> None:
    folder = carry(
        tmp_path,
        """
print("while it was loaded")
output.begin("r", "hs_1"); print("one"); output.end()
output.begin("r", "hs_2"); output.end()
output.begin("r", "hs_3"); os.system("echo three")
output.begin("r", "hs_4"); output.end()
output.close()
""",
    )

    assert {
        "hs_1.log": "while it was loaded\none\n",
        "hs_3.log": "three\n",
    } == {path.name: path.read_text() for path in folder.iterdir()}
    assert {0o600} == {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert ["r"] == os.listdir(tmp_path / "runs")


def test_output_of_a_killed_process_is_kept(tmp_path: Path) -> None:
    folder = carry(
        tmp_path,
        """
output.begin("r", "hs_1"); print("one"); output.end()
output.begin("r", "hs_2"); print("last words", flush=True); os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    (left,) = folder.glob(".p1-2.*.out")

    assert "last words\n" == left.read_text()
    assert "one\n" == (folder / "hs_1.log").read_text()


def test_output_is_bounded(tmp_path: Path) -> None:
    folder = carry(
        tmp_path,
        """
for _ in range(2):
    output.begin("r", "hs_1"); print("x" * 900_000); output.end()
""",
    )
    kept = (folder / "hs_1.log").read_bytes()

    assert kept.endswith(CUT)
    assert CAPTURED_OUTPUT_BYTES_MAX + len(CUT) == len(kept)


def test_output_is_cut_while_its_session_runs(tmp_path: Path) -> None:
    folder = carry(
        tmp_path,
        """
output.begin("r", "hs_1")
for _ in range(3):
    print("x" * 900_000, flush=True)
    output.limit()
    assert os.fstat(1).st_size <= 900_001 + 1024 * 1024 + 1
output.limit()
assert os.fstat(1).st_size == 1024 * 1024 + 1
output.end()
""",
    )

    assert (folder / "hs_1.log").read_bytes().endswith(CUT)


def test_missing_file_stops_nothing(tmp_path: Path) -> None:
    folder = carry(
        tmp_path,
        """
os.unlink(sys.argv[2])
output.begin("r", "hs_1"); print("one"); output.end(); output.close()
""",
    )

    assert [] == list(folder.iterdir())
