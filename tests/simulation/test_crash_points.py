"""A crash before and after every append and every action, of the supervisor and of children."""

import programs
import pytest
from test_programs import make_tools
from world import World

PROGRAMS = {
    "sequence": (programs.sequence(), {"x": 3}, {}),
    "diamond": (programs.diamond(), {}, {}),
    "loop": (programs.loop(), {}, {"grow": "idempotent"}),
    "branches": (programs.branches(), {"items": ["p", "q.r", "s"]}, {}),
    "skip": (programs.skip(), {"ok": True}, {}),
    "retry": (programs.retry(), {}, {"flaky": "idempotent"}),
    "code": (programs.code_step(), {}, {"mail": "idempotent"}),
}


def start(name, seed=None):
    document, value, effects = PROGRAMS[name]
    world = World(make_tools(), effects=effects, seed=seed)
    return world, lambda: world.admit(document, value)


def check_end(world, expected, where):
    state = world.state()
    assert state.status == "completed", (where, state.error)
    assert state.output == expected, where
    assert not state.sessions and not state.owed, where
    succeeded = [
        e.payload["callId"] for e in world.events() if e.type == "harness.tool_call.succeeded"
    ]
    assert len(succeeded) == len(set(succeeded)), where
    deaths = world.supervisor_crashes + world.child_kills
    extra = sum(count - 1 for count in world.ledger.count().values())
    assert extra <= deaths, (where, "a call was made again without a death")
    keys = {}
    for tool, _, key, args in world.ledger.executions:
        assert keys.setdefault(key, (tool, args)) == (tool, args), where


def undisturbed(name):
    world, admit = start(name)
    admit()
    world.run()
    assert world.state().status == "completed"
    return world


@pytest.mark.parametrize("name", PROGRAMS)
def test_supervisor_killed_at_every_point_ends_with_the_same_output(name):
    quiet = undisturbed(name)
    for point in range(1, quiet.points + 1):
        world, admit = start(name)
        world.crash_at = point
        admit()
        world.run()

        assert world.supervisor_crashes == 1, f"point {point} was never reached"
        check_end(world, quiet.state().output, f"point {point}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_child_killed_at_every_point_ends_with_the_same_output(name):
    quiet = undisturbed(name)
    for point in range(1, quiet.child_points + 1):
        world, admit = start(name)
        world.kill_child_at = point
        admit()
        world.run()

        assert world.child_kills == 1, f"point {point} was never reached"
        check_end(world, quiet.state().output, f"point {point}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_prefix_of_the_log_is_a_state_from_which_the_run_ends(name):
    quiet = undisturbed(name)
    for length in range(2, len(quiet.log)):
        world, _ = start(name)
        failed = sum(e.type == "harness.tool_call.failed" for e in quiet.events()[:length])
        world.tools = make_tools(failures=2 - failed)
        world.library = quiet.library
        world.log = quiet.log[:length]
        world.epoch, world.at, world.mono = quiet.epoch, quiet.at, quiet.mono
        world.crash()
        world.run()

        assert world.state().status == "completed", length
        assert world.state().output == quiet.state().output, length


@pytest.mark.parametrize("seed", range(60))
def test_random_crashes_and_lost_repeated_and_late_messages_change_nothing(seed):
    name = list(PROGRAMS)[seed % len(PROGRAMS)]
    quiet = undisturbed(name)
    world, admit = start(name, seed)
    assert world.random is not None
    world.lossy = True
    world.crash_at = world.random.randrange(1, quiet.points)
    world.kill_child_at = world.random.randrange(1, quiet.child_points)

    admit()
    world.run()

    print("seed", seed, "program", name)
    check_end(world, quiet.state().output, f"seed {seed}")
