"""A session cut anywhere goes on to the same end, and does nothing twice."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from planaria.calls import current_call
from planaria.protocol.codec import hash_bytes

from .memory_supervisor import (
    MemoryTool,
    SessionLog,
    Wire,
    carry,
    code_step,
    make_definition,
)
from .scripted_model import ScriptedModel, call, say

SOURCE = """
import asyncio
found = [look(n=n) for n in [1, 1, 2]]
both = await asyncio.gather(send(to="a"), send(to="a"))
try:
    look(n=-1)
except ValueError as error:
    found.append(str(error))
{"found": found, "both": both}
"""


class Outside:
    """The world that effects happen in."""

    def __init__(self) -> None:
        self.did: list[tuple[str, str]] = []
        self.sent: dict[str, int] = {}

    def look(self, n: int) -> dict[str, int]:
        self.did.append(("look", current_call().call_id))
        if n < 0:
            raise ValueError("negative")
        return {"z": n, "a": n * n}

    def send(self, to: str) -> str:
        """An idempotent effect: the same key is the same letter."""
        known = current_call()
        self.did.append(("send", known.call_id))
        self.sent[known.idempotency_key] = self.sent.get(known.idempotency_key, 0) + 1
        return f"{to}:{known.idempotency_key}"

    def definition(self) -> Any:
        return make_definition(
            MemoryTool("look", self.look), MemoryTool("send", self.send, effect="idempotent")
        )


def calls_of(log: SessionLog) -> list[dict[str, Any]]:
    return [e.payload for e in log.own_events() if e.type == "harness.tool_call.started"]


def test_session_cut_after_every_report_ends_the_same(tmp_path: Path) -> None:
    outside = Outside()
    step = code_step(SOURCE, "look", "send")
    whole = carry(step, outside.definition(), tmp_path)
    assert whole.end is not None
    assert 2 == len(set(whole.end.payload["output"]["both"]))
    by_id = {payload["callId"]: payload for payload in calls_of(whole)}

    for reported in range(whole.reported):
        log = whole.cut(reported)
        settled = {c["callId"] for c in calls_of(log)} - log.open_calls
        again = Outside()
        again.sent = dict(outside.sent)
        carry(step, again.definition(), tmp_path, log=log)

        assert log.end is not None
        assert whole.end.payload == log.end.payload, reported
        assert not settled & {call_id for _, call_id in again.did}, reported
        assert 6 - len(settled) == len(again.did)
        assert by_id == {payload["callId"]: payload for payload in calls_of(log)}
        assert set(outside.sent) == set(again.sent)


def test_agent_session_cut_after_every_report_ends_the_same(tmp_path: Path) -> None:
    def definition() -> tuple[Any, ScriptedModel, list[str]]:
        did: list[str] = []
        model = ScriptedModel(
            [call("look", "a", name="x"), call("look", "b", name="y")],
            [call("look", "c", name="z")],
            say("done"),
        )

        def look(name: str) -> str:
            did.append(name)
            return name * 2

        return make_definition(MemoryTool("look", look), models={"fast": model}), model, did

    asked = {"model": "fast", "prompt": "go", "tools": ["look"]}
    step = {"id": "s", "uses": "ai.generate", "with": asked}
    whole = carry(step, definition()[0], tmp_path)
    assert whole.end is not None and "done" == whole.end.payload["output"]

    for reported in range(whole.reported):
        log = whole.cut(reported)
        known = Counter(log.kinds())
        made, model, did = definition()
        carry(step, made, tmp_path, log=log)

        assert log.end is not None and "done" == log.end.payload["output"]
        assert 3 - known["model.responded"] == len(model.requests), reported
        assert 3 - known["tool_call.succeeded"] == len(did), reported
        assert 0 == Counter(log.kinds())["warning"]


@pytest.mark.parametrize("lost", [2, 3, 5])
def test_lost_and_repeated_frames_change_nothing(lost: int, tmp_path: Path) -> None:
    step = code_step(SOURCE, "look", "send")
    plain = carry(step, Outside().definition(), tmp_path)
    for wire in (
        Wire(to_supervisor=lambda n: 0 if n % lost == 0 else 1),
        Wire(to_supervisor=lambda n: 2),
        Wire(to_child=lambda n: 0 if n % lost == 0 else 1),
        Wire(to_child=lambda n: 3),
    ):
        outside = Outside()
        options = {"answer_seconds": 0.005}
        log = carry(step, outside.definition(), tmp_path, wire=wire, options=options)

        assert plain.end is not None and log.end is not None
        assert plain.end.payload == log.end.payload
        assert 6 == len(outside.did)
        assert Counter(plain.kinds()) == Counter(log.kinds())


def test_successor_says_what_it_took_over(tmp_path: Path) -> None:
    step = code_step(SOURCE, "look", "send")
    log = carry(step, Outside().definition(), tmp_path).cut(5)
    carry(step, Outside().definition(), tmp_path, log=log, page_events=2)

    place = next(i for i, e in enumerate(log.events()) if e.type == "harness.session.resumed")
    before = log.bodies[:place]
    expected = {
        "incarnation": 2,
        "manifestHash": "sha256:0",
        "replayedEvents": len(before),
        "digest": hash_bytes(b"".join(before)),
    }
    assert expected == log.events()[place].payload
    assert "ProcessStarted" == log.events()[place - 1].type


def test_history_that_is_cut_into_pages_is_whole(tmp_path: Path) -> None:
    step = code_step("[look(n=n) for n in range(20)]", "look")
    log = carry(step, Outside().definition(), tmp_path)
    whole = log.end
    log = log.cut(39)
    outside = Outside()
    carry(step, outside.definition(), tmp_path, log=log, page_events=3)

    assert whole is not None and log.end is not None
    assert whole.payload == log.end.payload
    assert 1 == len(outside.did)
