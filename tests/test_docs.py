"""The Python files that the documentation shows run as they stand, and print what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[1] / "docs" / "workflows.md").read_text()
FILES = {
    name: (source, printed)
    for source, name, printed in re.findall(
        r"```python\n(# (\w+\.py)\n.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL
    )
}


def test_every_block_is_a_file_and_has_its_output() -> None:
    assert FILES
    assert TEXT.count("```python") == TEXT.count("```text") == len(FILES)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_file_prints_what_the_page_says(name: str, tmp_path: Path) -> None:
    source, printed = FILES[name]
    (tmp_path / name).write_text(source)

    done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True)

    assert 0 == done.returncode, done.stderr
    assert printed == done.stdout
