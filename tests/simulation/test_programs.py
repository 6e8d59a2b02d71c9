"""Every small program runs to its end undisturbed."""

import programs
import pytest
from world import World


def make_tools(failures=2):
    left = [failures]

    def flaky(args):
        if left[0]:
            left[0] -= 1
            raise RuntimeError("not yet")
        return {"done": True}

    return {
        "echo": lambda args: args,
        "grow": lambda args: {"n": args["n"]},
        "mail": lambda args: {"sent": args},
        "flaky": flaky,
        "check": lambda args: True,
    }


CASES = {
    "sequence": (programs.sequence(), {"x": 3}, {"x": 8}),
    "diamond": (programs.diamond(), {}, {"x": [2, 3]}),
    "loop": (programs.loop(), {}, {"all": [{"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}]}),
    "skip": (programs.skip(), {"ok": True}, {"c": {"from": "c"}, "d": None}),
    "skip other": (programs.skip(), {"ok": False}, {"c": None, "d": {"from": "d"}}),
    "retry": (programs.retry(), {}, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_program_runs_to_its_output(name):
    document, value, expected = CASES[name]
    world = World(make_tools())

    world.admit(document, value)
    world.run()

    state = world.state()
    assert state.status == "completed", state.error
    assert state.output == expected


def test_effect_is_performed_once_over_the_attempts_of_its_group():
    world = World(make_tools(), effects={"mail": "once"})

    world.admit(programs.retried_group(), {})
    world.run()

    assert world.state().status == "completed"
    mails = [key for tool, _, key, _ in world.ledger.executions if tool == "mail"]
    assert len(mails) == 1
