"""The doctor on directories that aren't as they should be."""

from pathlib import Path

import pytest

from planaria.supervisor.doctor import examine


def test_doctor_says_what_it_may_not_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        if path.name == "events.db":
            raise PermissionError(13, "Permission denied", str(path))
        return True

    monkeypatch.setattr(Path, "exists", refuse)
    found = {finding.name: finding for finding in examine(tmp_path)}

    assert "problem" == found["log"].status
    assert "Permission denied" in found["log"].text
