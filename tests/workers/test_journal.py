"""The journal: what is recorded comes back, what differs is refused, what is new is recorded."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from planaria.blobstore import BlobStore
from planaria.calls import current_call
from planaria.protocol.codec import canonical_bytes
from planaria.protocol.errors import RecordedError, ReplayMismatchError, ValueRefusedError
from planaria.protocol.limits import INLINE_BYTES_MAX
from planaria.workers.journal import Journal, open_journal
from planaria.workers.link import Link
from planaria.workers.outcomes import Body
from planaria.workers.session import read_session

from .memory_supervisor import (
    MemorySupervisor,
    MemoryTool,
    SessionLog,
    call_step,
    carry,
    code_step,
    make_definition,
    make_delivery,
)


def calls_of(log: SessionLog) -> list[dict[str, Any]]:
    return [e.payload for e in log.own_events() if e.type == "harness.tool_call.started"]


def test_outcome_on_record_needs_no_definition(tmp_path: Path) -> None:
    step = call_step("one")
    log = carry(step, make_definition(MemoryTool("one", lambda: {"b": 1, "a": 2})), tmp_path).cut(2)
    carry(step, make_definition(), tmp_path, log=log)

    assert log.end is not None and {"a": 2, "b": 1} == log.end.payload["output"]


def test_first_run_releases_the_value_as_recorded(tmp_path: Path) -> None:
    tool = MemoryTool("look", lambda: {"z": {"y": 1, "b": 2}, "a": [{"d": 1, "c": 2}]})
    step = code_step("str(look())", "look")
    log = carry(step, make_definition(tool), tmp_path)

    assert log.end is not None
    assert "{'a': [{'c': 2, 'd': 1}], 'z': {'b': 2, 'y': 1}}" == log.end.payload["output"]


class Session:
    """A journal that a test calls by itself, one process after another."""

    def __init__(self, directory: Path, **delivery: Any) -> None:
        self.directory = directory
        self.log = SessionLog(make_delivery(call_step("x"), **delivery))

    def run(self, act: Callable[[Journal], Awaitable[Any]], reported: int | None = None) -> Any:
        """Lets the next process act, after the log was cut to so many reports."""
        if reported is not None:
            self.log = self.log.cut(reported)

        async def main() -> Any:
            supervisor = MemorySupervisor()
            delivered: list[dict[str, Any]] = []
            link = Link(
                supervisor,
                on_deliver=delivered.append,
                on_stop=lambda reason: None,
                on_refused=lambda refused: None,
                on_failed=lambda error: None,
            )
            supervisor.take = link.take
            supervisor.deliver(self.log)
            await asyncio.sleep(0)
            blobs = BlobStore(self.directory / "blobs")
            session = read_session(delivered[0], blobs)
            journal = await open_journal(session, link, blobs, str(self.directory))
            try:
                return await act(journal)
            finally:
                await journal.drain()
                await journal.wait_reported()
                journal.leave()

        return asyncio.run(main())

    def kinds(self) -> list[str]:
        return [kind for kind in self.log.kinds() if kind != "session.resumed"]


def give(value: Any) -> Body:
    async def body() -> Any:
        return value

    return body


def fail(error: BaseException) -> Body:
    async def body() -> Any:
        raise error

    return body


async def never() -> Any:
    raise AssertionError("a recorded call is not done again")


def tool(journal: Journal, body: Body, position: str = "t1.0", **changes: Any) -> Awaitable[Any]:
    asked = {"caller": "model", "tool_name": "look", "args": {"n": 1}, "effect": "read"}
    return journal.call_tool(position=position, body=body, **{**asked, **changes})


def model(journal: Journal, body: Body, request: Any = "hi", position: str = "m1.0") -> Any:
    return journal.request_model(
        position=position, turn=1, request=[request], settings={}, body=body
    )


def test_recorded_failure_is_raised_again(tmp_path: Path) -> None:
    session = Session(tmp_path)
    for body in (fail(LookupError("none")), never):
        with pytest.raises(RecordedError) as raised:
            session.run(lambda journal, body=body: tool(journal, body))  # type: ignore[misc]
        assert ("LookupError", "none") == (raised.value.name, raised.value.message)

    assert ["tool_call.started", "tool_call.failed"] == session.kinds()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tool_name": "other"}, "recorded was tool 'look', asked for is tool 'other'"),
        ({"args": {"n": 2}}, "$.n was 1 and is 2"),
        ({"args": {"n": True}}, "$.n was 1 and is True"),
        ({"args": {"n": 1, "m": 2}}, "$.m was missing and is 2"),
    ],
)
def test_other_call_at_a_recorded_place_is_a_mismatch(
    changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    session = Session(tmp_path)
    session.run(lambda journal: tool(journal, give(1)))
    with pytest.raises(ReplayMismatchError) as raised:
        session.run(lambda journal: tool(journal, never, **changes))

    assert text in str(raised.value)


def test_other_kind_of_call_at_a_recorded_place_is_a_mismatch(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.run(lambda journal: tool(journal, give(1), position="m1.0"))
    with pytest.raises(ReplayMismatchError, match="asked for is a model request"):
        session.run(lambda journal: model(journal, never))
    with pytest.raises(ReplayMismatchError, match="asked for is operation 'list'"):
        session.run(lambda journal: journal.operate(position="m1.0", name="list", body=never))


def test_large_arguments_are_compared_and_results_loaded_from_blobs(tmp_path: Path) -> None:
    session = Session(tmp_path)
    large = {"text": "x" * (INLINE_BYTES_MAX + 1)}
    session.run(lambda journal: tool(journal, give(large), args=large))

    assert large == session.run(lambda journal: tool(journal, never, args=large))
    other = {"text": "y" + large["text"][1:]}
    with pytest.raises(ReplayMismatchError, match=r"\$\.text was"):
        session.run(lambda journal: tool(journal, never, args=other))


def test_call_without_outcome_goes_on_with_its_key(tmp_path: Path) -> None:
    session = Session(tmp_path)
    keys: list[str] = []

    async def body() -> Any:
        keys.append(current_call().idempotency_key)

    session.run(lambda journal: tool(journal, body, effect="idempotent"))
    session.run(lambda journal: tool(journal, body, effect="idempotent"), reported=1)

    assert 1 == len(set(keys)) and 2 == len(keys)
    assert ["tool_call.started", "tool_call.succeeded"] == session.kinds()


def test_effect_that_must_not_repeat_is_never_performed_again(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.run(lambda journal: tool(journal, give(1), effect="once"))
    with pytest.raises(AssertionError, match="on its way already"):
        session.run(lambda journal: tool(journal, never, effect="once"), reported=1)


def test_equal_calls_have_keys_of_their_own_whoever_comes_first(tmp_path: Path) -> None:
    async def both(journal: Journal) -> None:
        await asyncio.gather(
            tool(journal, give(1), "t1.0", effect="idempotent"),
            tool(journal, give(1), "t1.1", effect="idempotent"),
        )

    async def second_only(journal: Journal) -> None:
        await tool(journal, give(1), "t1.1", effect="idempotent")

    straight, swapped = Session(tmp_path), Session(tmp_path)
    straight.run(both)
    swapped.run(second_only)
    swapped.run(both)

    def keys(session: Session) -> set[str]:
        return {payload["idempotencyKey"] for payload in calls_of(session.log)}

    assert 2 == len(keys(straight))
    assert keys(straight) == keys(swapped)


def test_model_response_is_replayed_and_a_changed_prompt_is_told_once(tmp_path: Path) -> None:
    session = Session(tmp_path)

    async def act(journal: Journal, body: Body, text: str) -> list[Any]:
        return [await model(journal, body, text, f"m{n}.0") for n in (1, 2)]

    response = {"parts": [], "usage": {"input_tokens": 3, "details": {"x": 1}}, "model_name": "m"}
    first = session.run(lambda journal: act(journal, give(response), "a"))
    for _ in range(2):
        assert first == session.run(lambda journal: act(journal, never, "b"))

    warnings = [e.payload["text"] for e in session.log.own_events() if "warning" in e.type]
    assert 1 == len(warnings)
    assert "m1.0" in warnings[0] and "$[0] was 'a' and is 'b'" in warnings[0]
    responded = next(e for e in session.log.own_events() if e.type.endswith("responded"))
    assert {"requests": 1, "input_tokens": 3} == responded.payload["usage"]
    assert "m" == responded.payload["model"]


def test_model_failure_counts_only_if_something_came_after_it(tmp_path: Path) -> None:
    session = Session(tmp_path)
    with pytest.raises(RecordedError):
        session.run(lambda journal: model(journal, fail(OSError("busy"))))
    assert "answer" == session.run(lambda journal: model(journal, give("answer")))
    assert "answer" == session.run(lambda journal: model(journal, never))

    other = Session(tmp_path)

    async def act(journal: Journal) -> Any:
        with pytest.raises(RecordedError):
            await model(journal, fail(OSError("busy")))
        return await model(journal, give("second"), position="m1.1")

    assert "second" == other.run(act)
    assert "second" == other.run(act)


def test_warnings_and_notes_are_recorded_once(tmp_path: Path) -> None:
    session = Session(tmp_path)
    repair = {"stepPath": "s", "attempt": 1, "findings": []}

    async def act(journal: Journal) -> None:
        journal.warn("no effect is declared")
        journal.note("StepRepairAttempted", repair)
        journal.note("StepRepairAttempted", repair)
        await journal.operate(position="o.list.0", name="list", body=give([]))

    session.run(act)
    session.run(act)

    assert {
        "warning": 1,
        "StepRepairAttempted": 2,
        "operation.started": 1,
        "operation.succeeded": 1,
    } == Counter(session.kinds())


def test_body_goes_on_when_its_caller_stops(tmp_path: Path) -> None:
    session = Session(tmp_path)

    async def act(journal: Journal) -> None:
        release = asyncio.Event()
        begun = asyncio.Event()

        async def body() -> Any:
            begun.set()
            await release.wait()

        asking = asyncio.ensure_future(tool(journal, body, effect="once"))
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        release.set()

    session.run(act)

    assert ["tool_call.started", "tool_call.succeeded"] == session.kinds()


def test_values_that_cannot_be_recorded_are_refused(tmp_path: Path) -> None:
    session = Session(tmp_path)
    with pytest.raises(ValueRefusedError, match=r"\$\.args\.n"):
        session.run(lambda journal: tool(journal, never, args={"n": float("nan")}))
    with pytest.raises(ValueRefusedError, match=r"\$\.request"):
        session.run(lambda journal: model(journal, never, "\ud800"))
    with pytest.raises(RecordedError, match="ValueRefusedError"):
        session.run(lambda journal: tool(journal, give({1: 2})))

    assert ["tool_call.started", "tool_call.failed"] == session.kinds()


def test_inherited_result_is_loaded_from_its_blob(tmp_path: Path) -> None:
    first = Session(tmp_path)
    first.run(lambda journal: tool(journal, give("sent"), effect="once"))
    key = calls_of(first.log)[0]["idempotencyKey"]
    ref = BlobStore(tmp_path / "blobs").write(canonical_bytes("sent"))
    second = Session(tmp_path, session_id="hs_2", attempt=2, inherited={key: {"r": ref}})

    assert "sent" == second.run(lambda journal: tool(journal, never, effect="once"))
    assert "sent" == second.run(lambda journal: tool(journal, never, effect="once"))
    # A read is done again: its answer may have changed.
    assert 2 == second.run(lambda journal: tool(journal, give(2), "t2.0"))
