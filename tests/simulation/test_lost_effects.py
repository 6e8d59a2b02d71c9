"""Effects whose outcome is unknown: what waits, what goes on, and what a person's answer does."""

from typing import Any

import pytest
from programs import call, document
from test_order import of
from test_programs import make_tools
from world import World

from planaria.protocol.errors import ConflictError, NotFoundError
from planaria.supervisor.kernel_messages import ResolveEffects, RetryRun, Tick

LOST = "harness.tool_call.unknown"
DAY_US = 86_400_000_000


def lose(
    *steps: dict[str, Any],
    effect: str = "once",
    times: int = 1,
    seed: int | None = None,
    **more: Any,
) -> World:
    """A run of `mail` steps each of which loses its process right after the effect happened."""
    world = World(make_tools(), effects={"mail": effect}, seed=seed)
    world.reattach = more.pop("reattach", world.reattach)
    doom(world, times)
    world.admit(document(*steps), {"x": 3}, **more)
    world.run()
    return world


def doom(world: World, times: int) -> None:
    done = [0]

    def is_doomed(child: Any) -> bool:
        sent = sum(1 for tool, *_ in world.ledger.executions if tool == "mail")
        if sent > done[0] and done[0] < times:
            done[0] = sent
            return True
        return False

    world.is_doomed = is_doomed


def mail(id: str = "m", needs: Any = (), n: int = 1, **more: Any) -> dict[str, Any]:
    return call(id, "mail", {"n": n}, needs=list(needs), **more)


def sent(world: World) -> int:
    return sum(1 for tool, *_ in world.ledger.executions if tool == "mail")


def resolve(world: World, resolution: str, *calls: str, by: str = "ann", **fields: Any) -> Any:
    world.kernel.system.runs.setdefault("run_1", world.state())
    numbers = calls or tuple(world.state().unknown_effects)
    answers = [{"callId": n, "resolution": resolution, **fields} for n in numbers]
    world.request(ResolveEffects(None, "run_1", answers, by))
    return world.answers[-1]


def test_lost_once_effect_interrupts_the_run_and_no_process_is_left() -> None:
    world = lose(call("a", args={"x": 1}), mail(needs=["a"]), call("b", needs=["m"]))

    assert world.state().status == "interrupted" and not world.children
    (interrupted,) = of(world, "RunInterrupted")
    (lost,) = of(world, LOST)
    assert interrupted.payload["callId"] == lost.payload["callId"]
    assert interrupted.payload["toolName"] == "mail" and sent(world) == 1
    for _ in range(3):
        world.crash()
        world.run()
    assert len(of(world, "RunInterrupted")) == 1 and sent(world) == 1


def test_what_does_not_depend_on_it_goes_on_and_only_then_is_the_run_interrupted() -> None:
    world = lose(mail(), call("after", needs=["m"]), call("x"), call("y", needs=["x"]))

    done = [e.payload["stepId"] for e in of(world, "StepCompleted")]
    assert done == ["x", "y"]
    assert of(world, "RunInterrupted")[0].sequence > of(world, "StepCompleted")[-1].sequence


@pytest.mark.parametrize(
    ("resolution", "fields", "status", "mails"),
    [
        ("succeeded", {"result": {"ok": 1}}, "completed", 1),
        ("failed", {"message": "bounced"}, "failed", 1),
        ("never_happened", {}, "completed", 2),
        ("given_up", {}, "failed", 1),
    ],
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_answer_moves_the_run_on(
    resolution: str, fields: dict[str, Any], status: str, mails: int, is_restarted: bool
) -> None:
    world = lose(mail(), call("b", needs=["m"], args={"r": "{{ steps.m.output }}"}))
    if is_restarted:
        world.crash()

    answer = resolve(world, resolution, **fields)
    world.run()

    assert answer.result["isRepeated"] is False
    state = world.state()
    assert (state.status, sent(world)) == (status, mails)
    if resolution == "succeeded":
        assert state.output == {"r": {"ok": 1}}
    if resolution == "failed":
        assert "bounced" in (state.error or {})["message"]
    if resolution == "given_up":
        assert (state.error or {})["causeCode"] == "interrupted"
    keys = {key for tool, _, key, _ in world.ledger.executions if tool == "mail"}
    calls = {number for tool, number, _, _ in world.ledger.executions if tool == "mail"}
    assert len(keys) == len(calls) == 1


def test_same_answer_again_changes_nothing_and_another_one_is_refused() -> None:
    world = lose(mail(), call("b", needs=["m"]))
    (number,) = world.state().unknown_effects
    resolve(world, "succeeded", result=1)

    assert resolve(world, "succeeded", number, result=1).result["isRepeated"] is True
    assert isinstance(resolve(world, "succeeded", number, result=2).error, ConflictError)
    assert isinstance(resolve(world, "never_happened", number).error, ConflictError)
    assert isinstance(resolve(world, "failed", "call_none").error, NotFoundError)
    assert len(of(world, "EffectResolved")) == 1
    world.run()
    assert world.state().status == "completed" and sent(world) == 1


def test_several_are_answered_together_or_not_at_all() -> None:
    world = lose(mail("m1", n=1), mail("m2", n=2), times=2)
    numbers = tuple(world.state().unknown_effects)
    assert len(numbers) == 2 and world.state().status == "interrupted"

    assert isinstance(resolve(world, "succeeded", *numbers, "call_x").error, NotFoundError)
    assert not of(world, "EffectResolved")
    assert resolve(world, "succeeded", *numbers, result=0).error is None
    world.run()

    assert world.state().status == "completed" and sent(world) == 2


def test_one_answer_of_two_leaves_the_run_interrupted_again() -> None:
    world = lose(mail("m1", n=1), mail("m2", n=2), times=2)
    first, second = world.state().unknown_effects

    resolve(world, "succeeded", first, result=0)
    world.run()
    assert world.state().status == "interrupted" and len(of(world, "RunInterrupted")) == 2
    resolve(world, "succeeded", second, result=0)
    world.run()
    assert world.state().status == "completed"


def test_effect_that_is_lost_again_after_its_repetition_waits_again() -> None:
    world = lose(mail(), times=2)
    resolve(world, "never_happened")
    world.run()
    assert world.state().status == "interrupted" and sent(world) == 2

    resolve(world, "succeeded", result="sent")
    world.run()

    assert world.state().output == "sent" and sent(world) == 2
    assert len(of(world, LOST)) == 2


def test_fail_ends_the_run_at_once() -> None:
    world = lose(mail(), call("b", needs=["m"]), onInterrupted="fail")

    state = world.state()
    assert state.status == "failed" and (state.error or {})["causeCode"] == "interrupted"
    assert not of(world, "RunInterrupted") and state.unknown_effects


@pytest.mark.parametrize("is_restarted", [False, True])
def test_patience_ends_at_its_instant_and_not_before(is_restarted: bool) -> None:
    world = World(make_tools(), effects={"mail": "once"})
    doom(world, 1)
    world.admit(document(mail(), call("b", needs=["m"])), {"x": 3}, onInterrupted=60_000)
    world.run(until=lambda: world.state().status == "interrupted")
    due = of(world, LOST)[0].at + 60_000_000

    world.at = due - 1
    world.handle(Tick())
    if is_restarted:
        world.crash()
    assert world.state().status == "interrupted"
    world.at = due
    world.handle(Tick())
    world.run()

    assert world.state().status == "failed" and sent(world) == 1
    assert (world.state().error or {})["causeCode"] == "interrupted"
    assert of(world, "EffectResolved")[0].payload["by"] == "timer"


def test_effect_of_an_ended_run_can_be_told_and_a_retry_is_handed_it() -> None:
    world = lose(mail(), call("b", needs=["m"]), onInterrupted="fail")
    (number,) = world.state().unknown_effects

    assert resolve(world, "succeeded", number, result="sent").error is None
    world.request(RetryRun(None, "run_1", "ann", "again"))
    world.run()

    assert world.state().status == "completed" and sent(world) == 1
    assert [e for e in of(world, "StepCompleted") if e.payload["stepId"] == "m"][0].payload[
        "output"
    ] == "sent"


def test_cancelling_an_interrupted_run_ends_it_and_keeps_the_unknown_effect() -> None:
    world = lose(mail(), call("b", needs=["m"]))

    world.cancel()
    world.run()

    assert world.state().status == "cancelled" and len(world.state().unknown_effects) == 1


# -- managed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "mails", "status"),
    [
        (("succeeded", {"found": 1}), 1, "completed"),
        (("never_happened", None), 2, "completed"),
        (("unknown", None), 1, "interrupted"),
    ],
)
def test_managed_effect_is_settled_by_its_lookup(
    answer: tuple[str, Any], mails: int, status: str
) -> None:
    keys: list[str] = []

    def look(key: str) -> tuple[str, Any]:
        keys.append(key)
        return answer

    world = lose(mail(), effect="managed", reattach=look)

    assert (world.state().status, sent(world)) == (status, mails)
    assert [e.payload["answer"] for e in of(world, "harness.tool_call.reattached")] == [answer[0]]
    assert set(keys) == {key for tool, _, key, _ in world.ledger.executions if tool == "mail"}
    if status == "interrupted":
        resolve(world, "succeeded", result={"found": 2})
        world.run()
        assert world.state().status == "completed" and sent(world) == 1


@pytest.mark.parametrize("effect", ["idempotent", "managed", "once"])
@pytest.mark.parametrize("victim", ["child", "supervisor"])
def test_effect_is_performed_as_its_class_allows_wherever_a_process_dies(
    effect: str, victim: str
) -> None:
    """A managed one is looked up in the ledger itself; a person answers for `once` from it."""

    def make() -> World:
        world = World(make_tools(), effects={"mail": effect})

        def look(key: str) -> tuple[str, Any]:
            found = any(k == key for tool, _, k, _ in world.ledger.executions if tool == "mail")
            return ("succeeded", {"n": 1}) if found else ("never_happened", None)

        world.reattach = look
        return world

    steps = (mail(), call("b", needs=["m"], args={"n": "{{ steps.m.output }}"}))
    quiet = make()
    quiet.admit(document(*steps), {})
    quiet.run()
    assert quiet.state().status == "completed"
    for point in range(1, (quiet.points if victim == "supervisor" else quiet.child_points) + 1):
        world = make()
        if victim == "supervisor":
            world.crash_at = point
        else:
            world.kill_child_at = point
        world.admit(document(*steps), {})
        world.run()
        if world.state().status == "interrupted":
            assert effect == "once"
            happened = sent(world) == 1
            fields = {"result": {"n": 1}} if happened else {}
            resolve(world, "succeeded" if happened else "never_happened", **fields)
            world.run()

        assert world.state().status == "completed", point
        assert len({k for tool, _, k, _ in world.ledger.executions if tool == "mail"}) == 1
        assert sent(world) == 1 or (effect == "idempotent" and sent(world) == 2), point


def test_supervisor_killed_at_every_point_of_an_answer_takes_it_once() -> None:
    steps = (mail(), call("b", needs=["m"], args={"x": 1}))
    quiet = lose(*steps)
    before = quiet.points
    resolve(quiet, "never_happened")
    quiet.run()
    for point in range(before + 1, quiet.points + 1):
        world = lose(*steps)
        world.crash_at = point
        resolve(world, "never_happened", *[of(world, LOST)[0].payload["callId"]])
        world.run()
        if world.state().status == "interrupted":  # the repetition was lost too
            resolve(world, "succeeded", result=None)
            world.run()

        assert world.supervisor_crashes == 1, point
        assert world.state().status == "completed" and sent(world) <= 2, point
