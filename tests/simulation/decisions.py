"""What the tests of approvals and waits do: small steps, and what people say to a run."""

from typing import Any

from programs import call, document
from test_order import of
from test_programs import make_tools
from world import World

from planaria.supervisor.kernel_messages import (
    DecideApproval,
    PauseRun,
    SignalRun,
    Tick,
)

DAY_US = 86_400_000_000


def ask(id: str = "ask", needs: Any = (), **more: Any) -> dict[str, Any]:
    fields = {"prompt": "Ship {{ input.x }}?", **more}
    return {"id": id, "uses": "approval", "needs": list(needs), "with": fields}


def pause_for(id: str = "wait", needs: Any = (), **fields: Any) -> dict[str, Any]:
    return {"id": id, "uses": "wait", "needs": list(needs), "with": fields}


def approval_program(**more: Any) -> dict[str, Any]:
    route = {
        "id": "route",
        "uses": "decision",
        "needs": ["ask"],
        "with": {
            "cases": [{"when": "{{ steps.ask.output.decision == 'approved' }}", "to": "ship"}],
            "default": "stop",
        },
    }
    return document(
        call("a", args={"x": "{{ input.x }}"}),
        ask(needs=["a"], data="{{ steps.a.output }}", **more),
        route,
        call("ship", args={"x": "shipped"}),
        call("stop", args={"x": "stopped"}),
    )


def start(*steps: dict[str, Any], seed: int | None = None, **options: Any) -> World:
    world = World(make_tools(), seed=seed)
    world.admit(document(*steps), {"x": 3}, **options)
    world.run()
    return world


def load(world: World) -> None:
    """Brings an ended run back, as the desk does before it asks the kernel."""
    world.kernel.system.runs.setdefault("run_1", world.state())


def asked(world: World) -> str:
    return next(iter(world.state().approvals))


def decide(world: World, decision: str, by: str = "ann", approval: str | None = None) -> Any:
    number = asked(world) if approval is None else approval
    load(world)
    world.request(DecideApproval(None, "run_1", number, decision, by))
    return world.answers[-1]


def signal(world: World, id: str, name: str = "paid", data: Any = None) -> Any:
    world.request(SignalRun(None, "run_1", id, name, {"data": data}))
    return world.answers[-1]


def set_paused(world: World, is_paused: bool) -> Any:
    world.request(PauseRun(None, "run_1", is_paused, "ann"))
    return world.answers[-1]


def output_of(world: World, step: str) -> Any:
    done = [e for e in of(world, "StepCompleted") if e.payload["stepId"] == step]
    return done[-1].payload["output"]


def move(world: World, micros: int) -> None:
    """Moves the wall clock, and lets the supervisor look at it."""
    world.at += micros
    world.handle(Tick())
