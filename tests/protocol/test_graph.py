"""The graph of a scope: deps, loops, exits, and what can never start."""

import random

import pytest

from planaria.protocol.graph import Node, ScopeGraph, build_graph


def graph(**steps: str) -> ScopeGraph:
    """Returns the graph of steps written as `name="need need"`, `name="need -> target target"`."""
    nodes = []
    for name, text in steps.items():
        needs, arrow, targets = text.partition("->")
        nodes.append(Node(name, tuple(needs.split()), bool(arrow), tuple(targets.split())))
    return build_graph(nodes)


def names(found: ScopeGraph, indexes: object) -> str:
    return " ".join(found.ids[i] for i in sorted(indexes))  # type: ignore[call-overload]


def loops(found: ScopeGraph) -> dict[str, str]:
    return {
        f"{found.ids[loop.decision]}->{found.ids[loop.target]}": names(found, loop.members)
        for loop in found.loops
    }


def exits(found: ScopeGraph) -> dict[str, str]:
    return {
        step: names(found, row) for step, row in zip(found.ids, found.exits, strict=True) if row
    }


def deps(found: ScopeGraph, step: str) -> str:
    return names(found, found.deps[found.ids.index(step)])


def test_empty_scope_has_an_empty_graph() -> None:
    found = build_graph([])

    assert found.ids == found.deps == found.loops == found.stuck == ()


def test_needs_are_deps_and_unknown_or_repeated_ones_are_left_out() -> None:
    found = graph(a="", b="a a ghost", c="b a")

    assert [deps(found, step) for step in "abc"] == ["", "a", "a b"]
    assert not found.loops and not found.stuck
    assert names(found, found.ancestors[2]) == "a b"


def test_target_that_comes_before_by_needs_is_a_back_edge() -> None:
    found = graph(a="", b="a", c="b", d="c -> b", e="c")

    assert loops(found) == {"d->b": "b c d"}
    assert exits(found) == {"e": "d"}
    assert deps(found, "b") == "a", "a back edge is no dep"
    assert found.loop_of(3, 1) is found.loops[0]
    assert found.loop_of(3, 0) is None


def test_other_targets_are_forward_and_wait_for_their_decision() -> None:
    found = graph(a="", d="a -> b c", b="", c="", e="b c")

    assert not found.loops
    assert deps(found, "b") == deps(found, "c") == "d"
    assert names(found, found.choosers[2]) == "d"
    assert names(found, found.ancestors[4]) == "a d b c"


def test_two_decisions_that_choose_each_other_are_taken_in_document_order() -> None:
    found = graph(w="", x="w -> y", y="w -> x")

    # x is read first, so y comes after it, and the way from y to x goes back.
    assert deps(found, "y") == "w x"
    assert loops(found) == {"y->x": "x y"}
    assert not found.stuck


def test_decision_may_go_back_to_a_step_that_another_decision_chose() -> None:
    found = graph(a="", first="a -> b", b="", second="b a -> b")

    assert loops(found) == {"second->b": "b second"}
    assert names(found, found.choosers[2]) == "first"


def test_decision_that_goes_back_to_itself_is_a_loop_of_its_own() -> None:
    assert loops(graph(a="", d="a -> d")) == {"d->d": "d"}


def test_members_are_what_lies_on_a_way_between_and_nothing_beside() -> None:
    found = graph(a="", t="a", left="t", right="t", beside="a", d="left -> t", after="right")

    assert loops(found) == {"d->t": "t left d"}
    assert exits(found) == {"right": "d"}, "it needs t, which the loop runs again"
    assert not found.stuck


def test_step_after_nested_loops_waits_for_both_decisions() -> None:
    found = graph(a="", b="a", inner="b -> b", outer="inner -> a", after="b")

    assert loops(found) == {"inner->b": "b inner", "outer->a": "a b inner outer"}
    assert exits(found)["after"] == "inner outer"


def test_step_waits_also_for_a_loop_that_holds_only_its_exit() -> None:
    found = graph(outer="", t="", b="t", again="b outer -> t", back="again -> outer", after="b")

    assert loops(found) == {"again->t": "t b again", "back->outer": "outer again back"}
    assert exits(found)["after"] == "again back"
    # t and b can't be started again while they wait for nobody; back comes after them.
    assert "t" not in exits(found) and "b" not in exits(found)
    assert not found.stuck


@pytest.mark.parametrize(
    ("steps", "stuck"),
    [
        ({"a": "b", "b": "a"}, "a b"),
        ({"a": "a"}, "a"),
        ({"a": "b", "b": "a", "c": "b", "d": ""}, "a b c"),
        ({"w": "", "x": "w -> w", "y": "w -> w"}, "x y"),
    ],
)
def test_what_waits_for_itself_is_stuck(steps: dict[str, str], stuck: str) -> None:
    found = graph(**steps)

    assert names(found, found.stuck) == stuck


def test_watchers_are_those_that_wait() -> None:
    found = graph(a="", b="a", d="b -> a", e="b")
    for step in range(4):
        waits = {*found.deps[step], *found.exits[step]}
        for other in range(4):
            assert (step in found.watchers[other]) == (other in waits)


def test_sharing_a_cycle_goes_both_ways_and_only_within_it() -> None:
    found = graph(a="", b="a", d="b -> a", e="b")
    index = found.ids.index

    assert found.share_cycle(index("a"), index("d")) and found.share_cycle(index("d"), index("a"))
    assert found.share_cycle(index("e"), index("e"))
    assert not found.share_cycle(index("a"), index("e"))


def test_graph_does_not_depend_on_the_order_of_steps_that_need_each_other() -> None:
    """Only decisions that choose each other are read in document order."""
    draw = random.Random(3)
    steps = {"a": "", "b": "a", "c": "b", "d": "c -> b e", "e": "", "f": "e c"}
    expected = graph(**steps)
    for _ in range(30):
        order = draw.sample(sorted(steps), len(steps))
        found = graph(**{name: steps[name] for name in order})
        assert sorted(loops(found)) == sorted(loops(expected))
        for name in steps:
            assert sorted(deps(found, name).split()) == sorted(deps(expected, name).split())
        assert {k: sorted(v.split()) for k, v in exits(found).items()} == {
            k: sorted(v.split()) for k, v in exits(expected).items()
        }


def test_long_chain_with_a_loop_over_all_of_it_is_built_without_recursion() -> None:
    steps = {f"s{n}": f"s{n - 1}" if n else "" for n in range(1_000)}
    found = graph(**steps, d="s999 -> s0", after="s500")

    assert len(found.loops[0].members) == 1_001
    assert exits(found) == {"after": "d"}
    assert not found.stuck
