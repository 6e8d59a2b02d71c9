"""The fold: the same events give the same state, and an event that can't come changes nothing."""

import dataclasses
from functools import cache

import programs
import pytest
from programs import call, decide, document, fan_out
from test_programs import make_tools
from world import World

from planaria.protocol.errors import ProtocolError
from planaria.protocol.events import PAYLOADS, TASKS, Event, decode_event, encode_event
from planaria.supervisor.fold import fold
from planaria.supervisor.illegal import IllegalEventError
from planaria.supervisor.plan import Plan, ScopePlan, StepPlan
from planaria.supervisor.run_state import RunState


def failing():
    inner = [call("w", "flaky", retry={"maxAttempts": 2, "delay": "1s"}), call("x", needs=["w"])]
    return document(fan_out(*inner, items="{{ [1, 2] }}"), call("last", needs=["each"]))


PROGRAMS = {
    "branches": (programs.branches(), {"items": ["p", "q.r"]}, {}),
    "loop": (programs.loop(), {}, {}),
    "skip": (programs.skip(), {"ok": True}, {}),
    "failing": (failing(), {}, {}),
    "code": (programs.code_step(), {}, {"mail": "idempotent"}),
}


@cache
def log_of(name: str) -> World:
    steps, value, effects = PROGRAMS[name]
    world = World(make_tools(failures=99 if name == "failing" else 0), effects=effects)
    if name == "code":
        world.kill_child_at = 6
    world.admit(steps, value)
    world.run()
    assert world.state().is_ended
    return world


def snapshot(value: object, seen: set[int]) -> object:
    """Returns what can be compared of a state; plans never change, and loops are cut."""
    if isinstance(value, Plan | ScopePlan | StepPlan) or id(value) in seen:
        return None
    if isinstance(value, dict):
        seen.add(id(value))
        return [(repr(key), snapshot(item, seen)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [snapshot(item, seen) for item in value]
    if dataclasses.is_dataclass(value):
        seen.add(id(value))
        return [(f.name, snapshot(getattr(value, f.name), seen)) for f in dataclasses.fields(value)]
    return repr(value)


def look(run: RunState) -> object:
    return snapshot(run, set())


def fold_all(world: World, events: list[Event]) -> RunState:
    run = RunState("run_1")
    for event in events:
        fold(run, event, world.library)
    return run


@cache
def cancelled() -> World:
    world = World(make_tools())
    world.hold = lambda tool: True
    world.admit(PROGRAMS["branches"][0], {"items": ["p", "q"]}, deadlineMs=500)
    world.run()
    return world


@cache
def interrupted() -> World:
    world = World(make_tools(), effects={"mail": "once"})
    world.is_doomed = lambda child: bool(world.ledger.executions)
    world.admit(document(call("m", "mail")), {})
    world.run()
    assert world.state().status == "interrupted"
    return world


@cache
def pool() -> tuple[Event, ...]:
    """One event of each type that any of the programs' logs has, and of each program."""
    found: dict[tuple[str, int], Event] = {}
    for number, world in enumerate((*map(log_of, PROGRAMS), cancelled(), interrupted())):
        for event in world.events():
            found.setdefault((event.type, number), event)
    return tuple(found.values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_events_give_the_same_state(name: str) -> None:
    world = log_of(name)
    events = world.events()
    again = [decode_event(encode_event(event)) for event in events]

    assert look(fold_all(world, events)) == look(fold_all(world, again))


@pytest.mark.parametrize("name", PROGRAMS)
def test_event_that_cannot_come_is_refused_and_changes_nothing(name: str) -> None:
    world = log_of(name)
    for other in PROGRAMS:  # an event may name another program's version
        world.library.blobs.update(log_of(other).library.blobs)
    for other_world in (cancelled(), interrupted()):
        world.library.blobs.update(other_world.library.blobs)
    events = world.events()
    step = max(1, len(events) // 12)
    refused = 0
    for length in range(0, len(events) + 1, step):
        run = fold_all(world, events[:length])
        for other in pool():
            before = look(run)
            try:
                fold(run, dataclasses.replace(other, sequence=length + 1), world.library)
            except IllegalEventError:
                refused += 1
                assert look(run) == before, (length, other.type)
            else:
                run = fold_all(world, events[:length])
    assert refused > len(events)


@pytest.mark.parametrize("name", PROGRAMS)
def test_event_out_of_its_sequence_or_after_the_end_is_refused(name: str) -> None:
    world = log_of(name)
    events = world.events()
    run = fold_all(world, events[:3])
    for sequence in (1, 3, 5, 0, -1):
        with pytest.raises(IllegalEventError, match="after sequence 3"):
            fold(run, dataclasses.replace(events[3], sequence=sequence), world.library)
    run = fold_all(world, events)
    with pytest.raises(IllegalEventError, match="after the run's end"):
        fold(run, dataclasses.replace(events[3], sequence=len(events) + 1), world.library)


@pytest.mark.parametrize("kind", sorted(PAYLOADS))
def test_payload_without_its_fields_is_refused(kind: str) -> None:
    run = RunState("run_1")
    event = Event("run_1", 1, kind, 0, 0, 1, None, None, {"nonsense": 1})

    with pytest.raises(ProtocolError):
        fold(run, event, log_of("loop").library)
    assert look(run) == look(RunState("run_1"))


def test_every_event_type_of_a_run_was_folded_here() -> None:
    seen = {event.type for event in pool()}
    only_elsewhere = {"SupervisorStarted", "SupervisorStopped", "RunRecorded", "RunPruned"}
    by_agents = {kind for kind in PAYLOADS if kind.startswith(("harness.model", "harness.op"))}
    by_roles = {f"harness.{task}.{end}" for task in TASKS.values() for end in _ENDS}
    in_test_roles = {"SubRunRequested", "SubRunSettled"} | by_roles
    in_test_openings = {"RunReopened", "RunForked", "BudgetReserved", "BudgetSettled"}
    in_test_openings |= {"BudgetExhausted", "harness.model.repeated"}
    in_test_openings |= {"OuterLoopStarted", "OuterLoopCycleCompleted"}
    rest = {"StepRepairAttempted", "harness.warning", "ParallelGroupTimedOut", "RunCancelled"}
    rest |= {"harness.memory.written"}
    in_test_waits = {"ApprovalRequested", "ApprovalResolved", "WaitStarted", "WaitCompleted"}
    in_test_waits |= {"SignalReceived", "RunPaused", "RunUnpaused"}
    in_test_effects = {"EffectResolved", "harness.tool_call.reattached"}

    assert (
        PAYLOADS.keys() - seen
        <= only_elsewhere
        | by_agents
        | in_test_roles
        | in_test_openings
        | in_test_waits
        | in_test_effects
        | rest
    )


_ENDS = ("succeeded", "failed")


def test_decision_recorded_once_is_never_evaluated_again() -> None:
    """The log says where to go, also where the document's conditions now say otherwise."""
    steps = document(
        call("a"), decide("d", ["a"], "end", ("steps.a.output.n == 1", "b")), call("b")
    )
    world = World({**make_tools(), "echo": lambda args: {"n": 1}})
    world.admit(steps, {})
    world.run()
    events = world.events()
    at = next(n for n, event in enumerate(events) if event.payload.get("chosen"))
    assert events[at].payload["chosen"] == "b"
    changed = dataclasses.replace(events[at], payload={**events[at].payload, "chosen": "end"})
    world.log = [encode_event(event) for event in [*events[:at], changed]]
    world.crash()
    world.run()

    assert [e.payload["stepPath"] for e in world.events() if e.type == "StepSkipped"] == ["b"]
