"""Random valid documents: needs, decisions that go forward and back, nested groups, failures."""

import random
from typing import Any

from reference import Map

from planaria.protocol.codec import hash_value
from planaria.protocol.effects import strip_attempts
from planaria.protocol.lwir import validate_lwir

DRAWS_MAX = 300
DEPTH_MAX = 2


def make_document(draw: random.Random) -> dict[str, Any]:
    """Returns a valid document; most draws of edges are crossing or endless loops and are lost."""
    for _ in range(DRAWS_MAX):
        document = {
            "apiVersion": "lwir/v1",
            "kind": "Workflow",
            "metadata": {"name": "random"},
            "permissions": {"models": [], "tools": ["t"]},
            "steps": _make_steps(draw, 1, []),
        }
        findings = validate_lwir(document)
        if not findings:
            return document
        codes = {finding.code for finding in findings}
        assert codes == {"lwir.invalid_cycle"}, (findings, document)
    raise AssertionError(f"no valid document in {DRAWS_MAX} draws")


def _make_steps(draw: random.Random, depth: int, seen: list[str]) -> list[dict[str, Any]]:
    """Returns steps whose references may go to their own list and to `seen`, names from around."""
    count = draw.randint(2, 8 if depth == 1 else 4)
    names = [f"{'abc'[depth - 1]}{n}" for n in range(count)]
    order = names[:]
    if draw.random() < 0.3:
        draw.shuffle(order)  # needs that point forward in the document
    steps: dict[str, dict[str, Any]] = {}
    for position, name in enumerate(order):
        before = order[:position]
        needs = draw.sample(before, min(len(before), draw.choice((0, 1, 1, 1, 2, 2, 3))))
        step: dict[str, Any] = {"id": name, "uses": "tool.call"}
        kind = draw.random()
        if before and kind < 0.35:
            step |= {"uses": "decision", "with": _draw_targets(draw, names)}
            needs = needs or [before[-1]]
        elif kind < 0.5 and depth <= DEPTH_MAX:
            step["uses"] = "parallel"
        if needs:
            step["needs"] = needs
        steps[name] = step
    listed = [steps[name] for name in names]
    places = Map(listed)
    for step in listed:
        _fill(draw, step, places, depth, seen)
    return listed


def _draw_targets(draw: random.Random, names: list[str]) -> dict[str, Any]:
    def target() -> str:
        return draw.choice([*names, "end"])

    cases = [{"when": "", "to": target()} for _ in range(draw.randint(1, 2))]
    return {"cases": cases, "default": draw.choice([target(), "end"])}


def _fill(
    draw: random.Random, step: dict[str, Any], places: Map, depth: int, seen: list[str]
) -> None:
    """Gives a step what its edges allow: visits, references, conditions, items, retries."""
    name = step["id"]
    visible = [other for other in places.names if places.may_see(name, other)]
    read = [f'steps["{n}"]' for n in draw.sample(visible, min(3, len(visible)))]
    read += [f'steps["{n}"]' for n in draw.sample(seen, min(1, len(seen)))]
    if step["uses"] == "decision":
        for case in step["with"]["cases"]:
            case["when"] = f"{{{{ {_condition(draw, read)} }}}}"
        return
    if places.is_on_loop(name) or draw.random() < 0.1:
        step["maxVisits"] = draw.choice((2, 3, 4, 5))
    if draw.random() < 0.25:
        step["retry"] = {"maxAttempts": draw.randint(2, 3), "delay": "5ms"}
    if step["uses"] == "tool.call":
        args: dict[str, Any] = {"id": name}
        for n, place in enumerate(read):
            args[f"r{n}"] = f"{{{{ {place}.{draw.choice(('lastOutput', 'allVisits'))} }}}}"
        if depth > 1 and draw.random() < 0.5:
            args["item"] = "{{ item }}"
        step["with"] = {"tool": "t", "args": args}
        return
    around = [other for other in visible if places.is_before(other, name)]
    items = draw.choice(("[]", "[1]", "[1, 2, 3]", "['x', 'y.z']", "[[0], null, 'w']"))
    step["with"] = {
        "items": f"{{{{ {items} }}}}",
        "itemKey": "{{ item }}",
        "maxBranches": 10,
        "maxConcurrency": draw.choice((1, 2, 10)),
        "failureMode": draw.choice(("fail_fast", "all_settled")),
        "fanIn": {"order": draw.choice(("input", "itemKey"))},
    }
    step["steps"] = _make_steps(draw, depth + 1, [*seen, *around])


def _condition(draw: random.Random, read: list[str]) -> str:
    if not read or draw.random() < 0.1:
        return draw.choice(("true", "false"))
    place = draw.choice(read)
    return draw.choice(
        (
            f"{place}.lastOutput.n == {draw.randint(0, 3)}",
            f"{place}.lastOutput.n != {draw.randint(0, 3)}",
            f"size({place}.allVisits) < {draw.randint(1, 3)}",
            f"size({place}.allVisits) == {draw.randint(0, 2)}",
        )
    )


def make_answer(salt: int) -> Any:
    """Returns what steps get from outside: a pure function of path, attempt and question.

    One in twelve visits fails always, one only at its first attempt, one only while the group
    around it is at its own first attempt; so adopting a branch can't be told from running it.
    """

    def answer(path: str, attempt: int, asked: Any) -> Any:
        place = strip_attempts(path)
        fate = int(hash_value([salt, place])[7:15], 16) % 36
        is_late = "@attempt_" in path
        if fate == 0 or (fate == 1 and attempt == 1) or (fate == 2 and not is_late):
            raise RuntimeError("this visit fails")
        digest = hash_value([salt, place, without_errors(asked)])[7:15]
        return {"n": int(digest, 16) % 4, "from": place, "seen": digest}

    return answer


def without_errors(value: Any) -> Any:
    """Returns the value with each failed branch's error cut down to that there is one.

    Which of several failing steps of a branch fails first is the one thing that order decides.
    """
    if isinstance(value, dict):
        return {k: True if k == "error" else without_errors(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_errors(item) for item in value]
    return value
