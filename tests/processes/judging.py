"""What must hold of runs with roles and of outer loops, whatever was killed: log against ledger."""

import sys
from collections import Counter, defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from planaria.protocol.outer_loops import dump_manifest, parse_manifest

if TYPE_CHECKING:
    from harness import World
    from process_programs import Program

    from planaria.client import Client

Events = list[dict[str, Any]]
ONCE_PER_RUN = ("RunAdmitted", "WorkflowVersionRegistered", "RunStarted", "RunCompleted")
LOOP_ID = "ol"


def begin(world: "World", client: "Client", program: "Program") -> None:
    """Starts the run `r` of a program, or its outer loop."""
    workflow = world.load(program)
    if program.cycles_max is None:
        client.start(workflow, program.input, run_id="r")
        return
    client.start_loop(
        workflow,
        program.input,
        max_outer_cycles=program.cycles_max,
        supervise=sys.modules["flow__planaria"].supervise,
        outer_loop_id=LOOP_ID,
    )


def judge_roles(world: "World", output: Any, program: "Program") -> None:
    """Checks that what is recorded was never done again, and that nothing is missing."""
    runs = world.all_events()
    events = [event for run in runs.values() for event in run]
    assert program.output == output
    for run_id, run in runs.items():
        kinds = Counter(event["type"] for event in run)
        once = set(ONCE_PER_RUN)
        if run[0]["payload"].get("planOnly"):
            once.remove("RunStarted")
        assert {1} == {kinds[kind] for kind in once}, f"{run_id}: {kinds}"
    judge_effects(world, events, program)
    judge_asks(world, events, program)
    judge_fixes(events)
    if program.cycles_max is not None:
        judge_loop(world, events)


def judge_effects(world: "World", events: Events, program: "Program") -> None:
    """Checks that no effect was carried out after its success was recorded under its key."""
    keys = {
        e["payload"]["callId"]: e["payload"]["idempotencyKey"]
        for e in events
        if e["type"] == "harness.tool_call.started"
    }
    effects = {
        e["payload"]["callId"]: e["payload"]["effect"]
        for e in events
        if e["type"] == "harness.tool_call.started"
    }
    known: dict[str, int] = {}  # by key, or by call where another call may do it again
    for event in events:
        if event["type"] == "harness.tool_call.succeeded":
            call = event["payload"]["callId"]
            known.setdefault(call, instant(event))
            if effects[call] != "read":
                known[keys[call]] = min(known.get(keys[call], 1 << 62), instant(event))
    done = Counter(dict.fromkeys(program.keys, 0))
    seen: set[str] = set()
    ends = sum(1 for event in events if event["type"] == "ProcessExited")
    executions = world.executions()
    for one in executions:
        if one["key"] not in seen:
            seen.add(one["key"])
            done[one["tool"]] += 1
        for name in (one["key"], one["call"]):
            assert one["at"] <= known.get(name, 1 << 62), f"done again after its record: {one}"
    again = Counter(one["call"] for one in executions)
    assert all(count <= 1 + ends for count in again.values()), again
    assert program.keys == dict(done)


def judge_asks(world: "World", events: Events, program: "Program") -> None:
    """Checks that models and `supervise` weren't asked again what they had answered on record."""
    sessions = {
        e["payload"]["pid"]: [] for e in events if e["type"] == "ProcessStarted"
    }  # a process may carry several sessions, one after another
    fixes = {
        e["payload"]["sessionId"]: e["payload"].get("fixAttempt")
        for e in events
        if e["type"] == "StepAttemptStarted" and "sessionId" in e["payload"]
    }
    calls: dict[str, list[str]] = defaultdict(list)
    answered: dict[str, int] = {}
    for event in events:
        if event["type"] == "ProcessStarted":
            sessions[event["payload"]["pid"]].append(event["sessionId"])
        elif event["type"] == "harness.model.called":
            calls[event["sessionId"]].append(event["payload"]["callId"])
        elif event["type"] == "harness.model.responded":
            answered[event["payload"]["callId"]] = instant(event)
    found: dict[str, set[Any]] = {name: set() for name in program.asks}
    asked: Counter[str] = Counter()
    for ask in world.asks():
        if ask["ask"] == "supervise":
            found["supervise"].add(ask["turn"])
            continue
        (session,) = [
            one
            for one in sessions[ask["pid"]]
            if one in calls and ("attempt" not in ask or fixes[one] == ask["attempt"])
        ]
        call = calls[session][ask["turn"]]
        found[ask["ask"]].add(call)
        asked[call] += 1
        assert ask["at"] <= answered[call], f"asked again after its record: {ask}"
    assert set(answered) == set(asked), "recorded and never asked"
    assert program.asks == {name: len(ones) for name, ones in found.items()}
    ends = sum(1 for event in events if event["type"] == "ProcessExited")
    assert sum(asked.values()) - len(asked) <= ends, f"more repeats than deaths: {asked}"


def judge_fixes(events: Events) -> None:
    """Checks that attempts of fixers were counted on over restarts."""
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events:
        number = event["payload"].get("fixAttempt")
        if event["type"] == "StepAttemptStarted" and number is not None:
            numbers[event["runId"], event["payload"]["stepPath"]].append(number)
    for place, counted in numbers.items():
        assert list(range(1, 1 + len(counted))) == counted, place


def judge_loop(world: "World", events: Events) -> None:
    """Checks the states that `supervise` was asked with, its answers on record, the manifest."""
    completed = {
        e["payload"]["cycleNumber"]: instant(e)
        for e in events
        if e["type"] == "OuterLoopCycleCompleted"
    }
    assert list(range(1, 1 + len(completed))) == sorted(completed)
    assert len(completed) == sum(1 for e in events if e["type"] == "OuterLoopCycleCompleted")
    states: dict[int, Any] = {}
    for ask in world.asks():
        if ask["ask"] == "supervise":
            assert ask["state"] == states.setdefault(ask["turn"], ask["state"])
            assert ask["at"] <= completed[ask["turn"]], f"asked again after its record: {ask}"
    path = world.directory / "outer-loops" / f"{LOOP_ID}.json"
    manifest = parse_manifest(LOOP_ID, path.read_bytes())
    assert dump_manifest(manifest) == path.read_bytes()
    assert "pendingCycleRunId" not in manifest
    assert len(completed) == len(manifest["cycles"])
    assert "result" in manifest


def instant(event: dict[str, Any]) -> int:
    """Returns an event's time as the ledger has it: microseconds since the epoch."""
    moment = datetime.strptime(event["at"], "%Y-%m-%dT%H:%M:%S.%fZ")
    seconds = (moment - datetime(1970, 1, 1)).total_seconds()
    return round(seconds * 1_000_000)
