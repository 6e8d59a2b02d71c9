"""Slots for processes: of two kinds, and fewer than there is work."""

import programs
from test_programs import make_tools
from world import World


def test_agent_step_gets_a_slot_that_steps_without_a_model_held():
    each = {
        "id": "each",
        "uses": "parallel",
        "with": {
            "items": list(range(16)),
            "itemKey": "{{ item }}",
            "maxBranches": 16,
            "maxConcurrency": 16,
            "failureMode": "fail_fast",
            "fanIn": {"order": "input"},
        },
        "steps": [
            programs.call("look", args={"n": "{{ item }}"}),
            {
                "id": "think",
                "uses": "ai.generate",
                "needs": ["look"],
                "with": {"model": "m", "prompt": "{{ item }}"},
                "output": {"mode": "json"},
            },
            programs.call("note", needs=["think"], args={"n": "{{ item }}"}),
        ],
    }
    for spares in (0, 1, 3):
        world = World(make_tools(), children_max=4, spares=spares)
        world.answer = lambda path, attempt, asked: asked

        world.admit(programs.document(each), {})
        world.run()

        assert world.state().status == "completed", spares
