"""The graph of one scope: who waits for whom, and which steps a loop runs again.

Vocabulary, for steps of one scope (the top level, or the inside of one branch):

- *dep* of a step: a step it needs, or a decision that has it as a forward target.
- *back edge* (decision d, target t): t lies before d, so choosing it runs t again. A target is
  before d when it reaches d by `needs`; failing that, when it reaches d over deps found so far,
  taken in document order (without this rule both would wait for each other for ever).
- *forward target*: any other target. It doesn't run unless a decision chooses it.
- *loop* (d, t): its members are t, d, and every step on a way over deps from t to d. Choosing the
  back edge puts the members back on the to-do list, and nothing else.
- *exit* of a step: the decision of a loop that holds something the step waits for (a dep, or
  another exit) but not the step itself, unless that decision can't choose before the step is
  settled. The step waits until it has chosen to leave.

A step is *settled* when it is completed or skipped. It starts once all its deps and exits are
settled. So when a decision is settled everything before it is settled too, and a back edge never
meets a running member: what a run does can't depend on the order in which steps finish.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """What the graph needs to know of a step; `targets` only of a decision, "end" left out."""

    id: str
    needs: tuple[str, ...] = ()
    is_decision: bool = False
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """One back edge; members, decision and target are indexes of steps."""

    decision: int
    target: int
    members: frozenset[int]


@dataclass(frozen=True, slots=True)
class ScopeGraph:
    """Everything is by index of the step in its list; all lists are in document order."""

    ids: tuple[str, ...]
    needs: tuple[tuple[int, ...], ...]
    choosers: tuple[tuple[int, ...], ...]
    deps: tuple[tuple[int, ...], ...]
    exits: tuple[tuple[int, ...], ...]
    watchers: tuple[tuple[int, ...], ...]  # steps whose readiness changes when this one settles
    loops: tuple[Loop, ...]
    ancestors: tuple[frozenset[int], ...]  # over deps, transitively, without the step itself
    stuck: tuple[int, ...]  # steps that could never start: a cycle of needs, or crossing loops

    def loop_of(self, decision: int, target: int) -> Loop | None:
        """Returns the loop that a choice closes, or None if the target is a forward one."""
        for loop in self.loops:
            if loop.decision == decision and loop.target == target:
                return loop
        return None

    def share_cycle(self, one: int, other: int) -> bool:
        """Says whether some cycle, over deps and back edges, goes through both steps."""
        return one == other or (other in self._reach(one) and one in self._reach(other))

    def _reach(self, start: int) -> set[int]:
        back = [(loop.decision, loop.target) for loop in self.loops]
        following: list[list[int]] = [[] for _ in self.ids]
        for step, deps in enumerate(self.deps):
            for dep in deps:
                following[dep].append(step)
        for decision, target in back:
            following[decision].append(target)
        found: set[int] = set()
        waiting = [start]
        while waiting:
            for step in following[waiting.pop()]:
                if step not in found:
                    found.add(step)
                    waiting.append(step)
        return found


def build_graph(nodes: Sequence[Node]) -> ScopeGraph:
    """Returns the graph; unknown needs and targets are ignored (validation reports them)."""
    index = {node.id: i for i, node in reversed(list(enumerate(nodes)))}
    needs = tuple(
        tuple(dict.fromkeys(index[n] for n in node.needs if n in index)) for node in nodes
    )
    edges = [
        (d, index[t])
        for d, node in enumerate(nodes)
        if node.is_decision
        for t in dict.fromkeys(node.targets)
        if t in index
    ]
    deps = [list(row) for row in needs]
    before = _ancestors(deps)
    back = [(d, t) for d, t in edges if t == d or t in before[d]]
    choosers: list[list[int]] = [[] for _ in nodes]
    for d, t in edges:
        if (d, t) in back:
            continue
        if t in before[d]:
            back.append((d, t))
            continue
        choosers[t].append(d)
        if d not in deps[t]:
            deps[t].append(d)
            before = _ancestors(deps)
    loops = tuple(Loop(d, t, _between(t, d, before)) for d, t in edges if (d, t) in back)
    exits = tuple(_find_exits(step, row, loops, before) for step, row in enumerate(deps))
    waits = [[*row, *(e for e in exits[i] if e not in row)] for i, row in enumerate(deps)]
    watchers: list[list[int]] = [[] for _ in nodes]
    for step, row in enumerate(waits):
        for dep in row:
            watchers[dep].append(step)
    return ScopeGraph(
        ids=tuple(node.id for node in nodes),
        needs=needs,
        choosers=tuple(map(tuple, choosers)),
        deps=tuple(map(tuple, deps)),
        exits=exits,
        watchers=tuple(map(tuple, watchers)),
        loops=loops,
        ancestors=tuple(map(frozenset, before)),
        stuck=_stuck(waits),
    )


def _ancestors(deps: Sequence[Iterable[int]]) -> list[set[int]]:
    """Returns, for each step, all steps from which it can be reached; cycles are allowed."""
    found: list[set[int]] = []
    for step in range(len(deps)):
        seen: set[int] = set()
        waiting = list(deps[step])
        while waiting:
            one = waiting.pop()
            if one in seen:
                continue
            seen.add(one)
            if one < len(found) and one not in found[one]:
                seen |= found[one]
            else:
                waiting.extend(deps[one])
        found.append(seen)
    return found


def _find_exits(
    step: int, deps: Sequence[int], loops: Sequence[Loop], before: Sequence[set[int]]
) -> tuple[int, ...]:
    """Returns the decisions that may still run again what a step waits for.

    Those of an outer loop too, which holds the inner one's decision and not its members: it may
    send that decision round once more (test_order.py has such a document).
    """
    waits = set(deps)
    exits: dict[int, None] = {}
    is_growing = True
    while is_growing:
        is_growing = False
        for loop in loops:
            if loop.decision in exits or step in loop.members or step in before[loop.decision]:
                continue
            if not waits.isdisjoint(loop.members):
                exits[loop.decision] = None
                waits.add(loop.decision)
                is_growing = True
    return tuple(exits)


def _between(target: int, decision: int, before: Sequence[set[int]]) -> frozenset[int]:
    inner = {step for step in before[decision] if target in before[step]}
    return frozenset(inner | {target, decision})


def _stuck(waits: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the steps that are never ready if everything else settles.

    Source: A. B. Kahn, "Topological sorting of large networks", CACM 5 (1962).
    """
    missing = [len(row) for row in waits]
    followers: list[list[int]] = [[] for _ in waits]
    for step, row in enumerate(waits):
        for dep in row:
            followers[dep].append(step)
    ready = [step for step, count in enumerate(missing) if count == 0]
    for step in ready:  # grows while it is read
        for follower in followers[step]:
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    return tuple(step for step, count in enumerate(missing) if count)
