"""Effect classes and idempotency keys."""

from typing import Any

import pytest

from planaria.protocol.effects import EFFECTS, check_effect, make_idempotency_key, strip_attempts

SAME: dict[str, Any] = {
    "run_id": "run_1",
    "version_id": "wv_1",
    "step_path": "a[b].c",
    "tool_name": "t",
    "args": {"x": 1},
    "nth": 0,
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_known_effect_is_returned(effect: str) -> None:
    assert check_effect(effect, "mail") == effect


@pytest.mark.parametrize("effect", [None, "", "write", "Read", 1, ["read"], {}])
def test_unknown_effect_explains_the_four(effect: Any) -> None:
    with pytest.raises(ValueError, match="tool 'mail'") as caught:
        check_effect(effect, "mail")
    for known in EFFECTS:
        assert known in str(caught.value)


def test_key_is_golden() -> None:
    """The outside world has seen it: an upgrade must not send a mail under another key."""
    assert make_idempotency_key(**SAME) == "idem_0ef57134f4115f8ee65a953516c1cf5599d1482b"


@pytest.mark.parametrize(
    "path", ["a@attempt_2[b].c", "a@attempt_13[b].c", "a@attempt_2[b].c@attempt_3"]
)
def test_key_is_the_same_in_every_attempt(path: str) -> None:
    assert make_idempotency_key(**{**SAME, "step_path": path}) == make_idempotency_key(**SAME)


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "run_2"},
        {"version_id": "wv_2"},
        {"step_path": "a[b2].c"},
        {"step_path": "a[b].c.visit[1]"},
        {"tool_name": "u"},
        {"args": {"x": 2}},
        {"args": {"x": 1.0}},
        {"args": {"x": "1"}},
        {"nth": 1},
    ],
)
def test_key_differs_between_branches_visits_arguments_and_equal_calls(change: Any) -> None:
    assert make_idempotency_key(**{**SAME, **change}) != make_idempotency_key(**SAME)


def test_order_of_the_arguments_does_not_change_the_key() -> None:
    one = make_idempotency_key(**{**SAME, "args": {"x": 1, "y": {"p": 1, "q": 2}}})
    other = make_idempotency_key(**{**SAME, "args": {"y": {"q": 2, "p": 1}, "x": 1}})

    assert one == other


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", "a"),
        ("a.visit[1]", "a.visit[1]"),
        ("a@attempt_2[k].b", "a[k].b"),
        ("a@attempt_2[7].b", "a[7].b"),
        ("a@attempt_2[k].b@attempt_10[l].c.visit[0]", "a[k].b[l].c.visit[0]"),
    ],
)
def test_attempts_are_left_out_of_a_path(path: str, expected: str) -> None:
    assert strip_attempts(path) == expected
