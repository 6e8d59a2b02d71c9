"""Ids: what is legal, and that derived ones are pure functions of their position."""

from typing import Any

import pytest

from planaria.protocol.errors import InvalidIdError
from planaria.protocol.ids import call_id, check_id, check_workflow_id, derive_id, session_id
from planaria.protocol.limits import ID_CHARS_MAX


@pytest.mark.parametrize("text", ["a", "run_1", "A-b_9", "-", "x" * ID_CHARS_MAX])
def test_legal_id_is_returned(text: str) -> None:
    assert check_id(text, "run id") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a.b",
        "a b",
        "ä",
        "a\n",
        "a\0",
        "x" * (ID_CHARS_MAX + 1),
        None,
        5,
        b"a",
        ["a"],
    ],
)
def test_illegal_id_is_refused_by_name(text: Any) -> None:
    with pytest.raises(InvalidIdError, match="no legal run id"):
        check_id(text, "run id")


@pytest.mark.parametrize("text", ["a", "a.b", "9.x-y_z", "x" * 80])
def test_legal_workflow_id_is_returned(text: str) -> None:
    assert check_workflow_id(text) == text


@pytest.mark.parametrize("text", ["", ".a", "..", "-a", "_a", "a/b", "a\n", "x" * 81, None, 1])
def test_illegal_workflow_id_is_refused(text: Any) -> None:
    with pytest.raises(InvalidIdError, match="no legal workflow id"):
        check_workflow_id(text)


def test_error_of_a_huge_id_is_short() -> None:
    with pytest.raises(InvalidIdError) as caught:
        check_id("/" * 1_000_000, "run id")
    assert len(str(caught.value)) < 300


def test_derived_ids_are_golden() -> None:
    """A run that goes on after an upgrade must find its sessions and calls again."""
    assert session_id("run_1", "a.visit[0]", 1) == "hs_2aa0ced7c805967363ae7352"
    assert call_id("hs_1", "t2.0") == "call_4725107dfabc4f50d478aebb"
    assert derive_id("x_", "a", 1) == "x_839e11a421d370be28db56fd"


def test_derived_ids_differ_with_every_part_and_are_legal() -> None:
    parts = [("r", "a", 1), ("r", "a", 2), ("r", "b", 1), ("s", "a", 1), ("ra", "", 1)]
    made = {session_id(*part) for part in parts} | {call_id("r", "a"), call_id("ra", "")}

    assert len(made) == len(parts) + 2
    for one in made:
        assert check_id(one, "id") == one
