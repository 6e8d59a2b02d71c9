"""What the checker needs of a run's pinned document: visits allowed, and where decisions lead.

Made anew from the document, without protocol/graph.py: the fold builds on that one, and a mistake
there must not hide a wrong branch.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import msgpack

PLAN_STEP = ".plan"  # the ids of steps that no document can have begin with a dot
ORCHESTRATE_STEP = ".orchestrate"


@dataclass(slots=True)
class ScopeDocument:
    """The steps of one scope by id."""

    visits_max: dict[str, int] = field(default_factory=dict)  # not of decisions
    targets: dict[str, frozenset[str]] = field(default_factory=dict)  # of decisions
    # step -> decisions that it runs after, and only if one of them chose it
    choosers: dict[str, frozenset[str]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    fixes_max: dict[str, int] = field(default_factory=dict)  # of steps with a fixer
    inner: dict[str, "ScopeDocument"] = field(default_factory=dict)  # of parallel steps


def read_lock(data: bytes) -> ScopeDocument | None:
    """Returns the top level of the document in a stored lock; None: it can't be read."""
    try:
        lock = json.loads(data) if data[:1] == b"{" else msgpack.unpackb(data)
        if "orchestrator" in lock:
            return make_single_step(ORCHESTRATE_STEP, "orchestrate")
        return _read_scope(lock["lwir"]["steps"])
    except Exception:
        return None  # whatever is wrong with it, the checker reports it and goes on


def make_single_step(name: str, kind: str) -> ScopeDocument:
    """Returns the document of a role's session: one step that no author can write."""
    return ScopeDocument(visits_max={name: 1}, kinds={name: kind})


def _read_scope(steps: list[dict[str, Any]]) -> ScopeDocument:
    scope = ScopeDocument()
    for step in steps:
        name, kind = step["id"], step["uses"]
        scope.kinds[name] = kind
        if kind == "decision":
            cases = step["with"].get("cases", ())
            scope.targets[name] = frozenset(
                [*(case["to"] for case in cases), step["with"]["default"]]
            )
        else:
            scope.visits_max[name] = step.get("maxVisits", 1)
        if "fixer" in step.get("onFailure", ()):
            scope.fixes_max[name] = step["onFailure"]["fixer"].get("maxAttempts", 1)
        if kind == "parallel":
            scope.inner[name] = _read_scope(step["steps"])
    scope.choosers = _find_choosers(steps)
    return scope


def _find_choosers(steps: list[dict[str, Any]]) -> dict[str, frozenset[str]]:
    """Returns for each step the decisions that have it as a forward target.

    A target is a backward one if the decision comes after it: by `needs`, or else by what was
    found before, in the order of the document (2-workflows).
    """
    before: dict[str, set[str]] = {step["id"]: set(step.get("needs", ())) for step in steps}
    by_needs = {name: _reach(name, before) for name in before}
    choosers: dict[str, set[str]] = {}
    for step in steps:
        if step["uses"] != "decision":
            continue
        decision = step["id"]
        named = [*(case["to"] for case in step["with"].get("cases", ())), step["with"]["default"]]
        for target in dict.fromkeys(named):
            if target not in before or target == decision or target in by_needs[decision]:
                continue
            if target in _reach(decision, before):
                continue
            choosers.setdefault(target, set()).add(decision)
            before[target].add(decision)
    return {target: frozenset(found) for target, found in choosers.items()}


def _reach(start: str, before: dict[str, set[str]]) -> set[str]:
    """Returns everything that comes before a step, transitively."""
    found: set[str] = set()
    waiting = list(before[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(before.get(name, ()))
    return found
