"""A call that is lost again, or that a person has decided about: performed only if it is sure."""

from pathlib import Path

import pytest

from planaria import NeverHappened, Succeeded

from .lost_calls import (
    CALLERS,
    DAY,
    OTHER_DAY,
    Outside,
    add,
    answers_of,
    dispatch,
    lose,
    output_of,
    resolve,
    resume,
)


@pytest.mark.parametrize("caller", CALLERS)
def test_process_that_dies_after_the_answer_leaves_the_question_to_the_next(
    caller: str, tmp_path: Path
) -> None:
    for answer in (Succeeded(OTHER_DAY), NeverHappened()):
        log, dispatched = dispatch(caller, tmp_path)
        first, second = Outside(answer), Outside(Succeeded(DAY))
        whole = resume(log, first, tmp_path)
        log = whole.cut(whole.kinds().index("tool_call.reattached") + 1)
        resume(log, second, tmp_path)

        assert "2024-05-06" == output_of(log)
        assert [dispatched[1]] == second.asked
        assert [] == second.sent
        assert 2 == len(answers_of(log))


@pytest.mark.parametrize("effect", ["once", "managed"])
@pytest.mark.parametrize("caller", CALLERS)
def test_call_that_a_person_says_never_happened_is_performed_unasked(
    caller: str, effect: str, tmp_path: Path
) -> None:
    log, dispatched = dispatch(caller, tmp_path, effect)
    lose(log, dispatched[0])
    resolve(log, dispatched[0], "never_happened")
    outside = Outside(OSError("not asked"))
    resume(log, outside, tmp_path, effect)

    assert "2024-05-06" == output_of(log)
    assert [dispatched] == outside.sent
    assert [] == outside.asked + answers_of(log)


@pytest.mark.parametrize("caller", CALLERS)
def test_outcome_that_a_person_gives_is_released(caller: str, tmp_path: Path) -> None:
    log, (call_id, _) = dispatch(caller, tmp_path)
    lose(log, call_id)
    resolve(log, call_id, "succeeded", result="by post")
    add(log, "harness.tool_call.succeeded", callId=call_id, result="by post")
    outside = Outside(OSError("not asked"))
    resume(log, outside, tmp_path)

    assert "by post" == output_of(log)
    assert [] == outside.sent + outside.asked


def test_managed_call_that_was_lost_a_second_time_is_looked_up(tmp_path: Path) -> None:
    log, dispatched = dispatch("step", tmp_path)
    lose(log, dispatched[0])
    resolve(log, dispatched[0], "never_happened")
    # The process that performs it again dies in the tool: it has only said that it took over.
    whole = resume(log, Outside(), tmp_path)
    log = whole.cut(whole.kinds().index("session.resumed") + 1)
    outside = Outside(Succeeded(OTHER_DAY))
    resume(log, outside, tmp_path)

    assert "2025-01-01" == output_of(log)
    assert [] == outside.sent
    assert [dispatched[1]] == outside.asked


def test_once_call_that_was_lost_a_second_time_needs_a_second_word(tmp_path: Path) -> None:
    log, dispatched = dispatch("step", tmp_path, "once")
    lose(log, dispatched[0])
    resolve(log, dispatched[0], "never_happened")
    whole = resume(log, Outside(), tmp_path, "once")
    log = whole.cut(whole.kinds().index("session.resumed") + 1)
    lose(log, dispatched[0])
    resolve(log, dispatched[0], "never_happened")
    outside = Outside()
    resume(log, outside, tmp_path, "once")

    assert "2024-05-06" == output_of(log)
    assert [dispatched] == outside.sent
