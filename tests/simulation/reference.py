"""What a workflow document means, written from the specification's words and not from our fold.

Slow and obvious: it works on the document itself, by names, and asks everything anew whenever it
needs it. A run is a game: as long as there is a move, `pick` chooses one of them, and a move is to
start a step that is ready or to finish one that has been started. The output must be the same
whatever `pick` does. A step sees what it sees when it starts; its answer counts when it finishes.
"""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.expressions import ExpressionError
from planaria.protocol.schemas import validate_value
from planaria.protocol.templates import Template, parse_template

Json = Any
Step = dict[str, Json]
Answer = Callable[[str, int, Json], Json]  # (path of the visit, attempt, what it was asked)
Pick = Callable[[Sequence[Any]], Any]

MOVES_MAX = 100_000


class Failed(Exception):
    """A step, and with it its scope, has failed."""

    def __init__(self, cause: str, path: str, *, may_retry: bool = False) -> None:
        super().__init__(f"{cause} at {path}")
        self.cause, self.path, self.may_retry = cause, path, may_retry


@functools.cache
def parse(text: str) -> Template:
    return parse_template(json.loads(text))


class Map:
    """Who comes before whom among the steps of one list."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = {step["id"]: step for step in steps}
        self.names = [step["id"] for step in steps]
        self.deps = {name: list(self.steps[name].get("needs", [])) for name in self.names}
        choices = [(d, t) for d in self.names for t in self._targets(d)]
        back = [(d, t) for d, t in choices if self._leads(t, d) or t == d]
        self.forward: list[tuple[str, str]] = []
        for decision, target in choices:
            if (decision, target) in back:
                continue
            if self._leads(target, decision):
                back.append((decision, target))
            else:
                self.forward.append((decision, target))
                self.deps[target].append(decision)
        self.before = {
            name: {other for other in self.names if self._leads(other, name)} for name in self.names
        }
        self.loops = {(d, t): self._between(t, d) for d, t in back}

    def _targets(self, name: str) -> list[str]:
        if self.steps[name]["uses"] != "decision":
            return []
        config = self.steps[name]["with"]
        named = [case["to"] for case in config.get("cases", [])] + [config["default"]]
        return list(dict.fromkeys(to for to in named if to != "end"))

    def is_before(self, one: str, other: str) -> bool:
        """Says whether a way over deps leads from one step to the other."""
        return one in self.before[other]

    def _leads(self, one: str, other: str) -> bool:
        seen: set[str] = set()
        waiting = list(self.deps[other])
        while waiting:
            name = waiting.pop()
            if name == one:
                return True
            if name not in seen:
                seen.add(name)
                waiting.extend(self.deps[name])
        return False

    def _between(self, target: str, decision: str) -> set[str]:
        inner = {n for n in self.names if self.is_before(target, n) and self.is_before(n, decision)}
        return inner | {target, decision}

    @functools.cached_property
    def waits(self) -> dict[str, set[str]]:
        return {name: self._waits_for(name) for name in self.names}

    def _waits_for(self, name: str) -> set[str]:
        """Returns what must be settled first: its deps, and whoever may still run one of those."""
        found = set(self.deps[name])
        while True:
            more = {
                decision
                for (decision, _), members in self.loops.items()
                if name not in members and members & found and not self.is_before(name, decision)
            }
            if more <= found:
                return found
            found |= more

    def is_on_loop(self, name: str) -> bool:
        return any(name in members for members in self.loops.values())

    def is_multi(self, name: str) -> bool:
        step = self.steps[name]
        is_decision = step["uses"] == "decision"
        return step.get("maxVisits", 1) > 1 or (is_decision and self.is_on_loop(name))

    def visits_max(self, name: str) -> int:
        """Returns how many visits a step may have; a decision, as many as there is work for it."""
        if self.steps[name]["uses"] != "decision" or not self.is_on_loop(name):
            return int(self.steps[name].get("maxVisits", 1))
        on_loops = [n for n in self.names if self.is_on_loop(n)]
        work = [self.steps[n] for n in on_loops if self.steps[n]["uses"] != "decision"]
        return 1 + sum(int(step.get("maxVisits", 1)) for step in work)

    def may_see(self, name: str, other: str) -> bool:
        """Says whether a step may refer to another: it comes before it, or shares a loop."""
        return self.is_before(other, name) or any(
            {name, other} <= members for members in self.loops.values()
        )


@dataclass
class Place:
    """One scope while it is played: the run (no path), or one branch."""

    map: Map
    path: str = ""
    item: Json = None
    key: str | None = None
    outer: "tuple[Place, str] | None" = None  # the scope around it, and the group's name there
    state: dict[str, str] = field(default_factory=dict)  # name -> started | completed | skipped
    outputs: dict[str, list[Json]] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)
    history: list[Any] = field(default_factory=list)  # names as they completed, loops as sets
    called: set[str] = field(default_factory=set)  # chosen by a back edge, not started since
    answers: dict[str, Json] = field(default_factory=dict)  # of steps that have only started

    def is_settled(self, name: str) -> bool:
        return self.state.get(name) in ("completed", "skipped")

    def is_ready(self, name: str) -> bool:
        return name not in self.state and all(map(self.is_settled, self.map.waits[name]))

    def visit_path(self, name: str) -> str:
        prefix = f"{self.path}." if self.path else ""
        visit = f".visit[{len(self.outputs.get(name, []))}]" if self.map.is_multi(name) else ""
        return f"{prefix}{name}{visit}"

    def visible(self, reader: str, name: str) -> list[Json]:
        """Returns the visits of a step that a reader sees: those of the passes before, at least."""
        if self.map.is_before(name, reader):
            return self.outputs.get(name, [])
        shared = [
            position
            for position, entry in enumerate(self.history)
            if isinstance(entry, set) and {name, reader} <= entry
        ]
        past = self.history[: shared[-1]] if shared else []
        return self.outputs.get(name, [])[: past.count(name)]


@dataclass
class Interpreter:
    """Plays one run of a document."""

    document: Json
    input: Json
    answer: Answer
    pick: Pick
    moves: int = 0

    def run(self) -> tuple[str, Json]:
        """Returns ("completed", output) or ("failed", cause)."""
        try:
            output = self._play(Place(Map(self.document["steps"])))
            schema = self.document.get("output", {}).get("schema")
            if schema and validate_value(schema, output):
                raise Failed("step_schema_error", "")
        except Failed as failure:
            return "failed", failure.cause
        return "completed", output

    def _play(self, place: Place) -> Json:
        names = place.map.names
        while True:
            moves = [(self._start, n) for n in names if place.is_ready(n)]
            moves += [(self._finish, n) for n in names if place.state.get(n) == "started"]
            if not moves:
                break
            self.moves += 1
            assert self.moves < MOVES_MAX, "the document never ends"
            act, name = self.pick(moves)
            act(place, name)
        assert all(map(place.is_settled, names)), "a valid document leaves no step behind"
        return self._output(place)

    def _start(self, place: Place, name: str) -> None:
        step = place.map.steps[name]
        choosers = [d for d, t in place.map.forward if t == name]
        needs = step.get("needs", [])
        is_called = name in place.called
        place.called.discard(name)
        not_chosen = choosers and not is_called and name not in map(place.chosen.get, choosers)
        if not_chosen or (needs and all(place.state[n] == "skipped" for n in needs)):
            place.state[name] = "skipped"
            return
        visits = len(place.outputs.get(name, []))
        if visits >= place.map.visits_max(name):
            raise Failed("max_visits_exceeded", place.visit_path(name))
        place.answers[name] = self._attempt(place, name)
        place.state[name] = "started"

    def _finish(self, place: Place, name: str) -> None:
        place.state[name] = "completed"
        output = place.answers.pop(name)
        place.outputs.setdefault(name, []).append(output)
        place.history.append(name)
        if place.map.steps[name]["uses"] != "decision":
            return
        place.chosen[name] = output["chosen"]
        loop = place.map.loops.get((name, output["chosen"]))
        if loop is not None:
            place.history.append(loop)
            place.called.add(output["chosen"])
            for member in loop:
                del place.state[member]
                place.chosen.pop(member, None)

    def _attempt(self, place: Place, name: str) -> Json:
        step = place.map.steps[name]
        attempts = step.get("retry", {}).get("maxAttempts", 1)
        path = place.visit_path(name)
        kept: dict[str, Json] = {}
        for attempt in range(1, attempts + 1):
            try:
                if step["uses"] == "decision":
                    return {"chosen": self._choose(place, step)}
                if step["uses"] == "parallel":
                    return self._fan_out(place, step, attempt, kept)
                asked = self._evaluate(place, name, question(step))
                return self._check(step, path, self._ask(path, attempt, asked))
            except ExpressionError as error:
                raise Failed("step_failed", path) from error
            except Failed as failure:
                if attempt == attempts or not failure.may_retry:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _ask(self, path: str, attempt: int, asked: Json) -> Json:
        try:
            return self.answer(path, attempt, asked)
        except RuntimeError as error:
            raise Failed("step_failed", path, may_retry=True) from error

    def _check(self, step: Step, path: str, value: Json) -> Json:
        schema = step.get("output", {}).get("schema")
        if schema and validate_value(schema, value):
            raise Failed("step_schema_error", path)
        return value

    def _choose(self, place: Place, step: Step) -> str:
        for case in step["with"].get("cases", []):
            if self._evaluate(place, step["id"], case["when"]):
                return str(case["to"])
        return str(step["with"]["default"])

    def _fan_out(self, place: Place, step: Step, attempt: int, kept: dict[str, Json]) -> Json:
        config, name, path = step["with"], step["id"], place.visit_path(step["id"])
        items = self._evaluate(place, name, config["items"])
        if not isinstance(items, list) or len(items) > config.get("maxBranches", 10_000):
            raise Failed("step_failed", path)
        keys = [str(index) for index in range(len(items))]
        if "itemKey" in config:
            keys = [self._key(place, name, config["itemKey"], item) for item in items]
        if len(set(keys)) < len(keys):
            raise Failed("step_failed", path)
        mark = f"@attempt_{attempt}" if attempt > 1 else ""
        waiting = [index for index, key in enumerate(keys) if key not in kept]
        entries = {k: {"itemKey": k, "status": "completed", "output": v} for k, v in kept.items()}
        while waiting:
            index = self.pick(waiting)
            waiting.remove(index)
            key = keys[index]
            around = f"{path}{mark}[{encode(key)}]"
            branch = Place(Map(step["steps"]), around, items[index], key, (place, name))
            try:
                kept[key] = self._play(branch)
                entries[key] = {"itemKey": key, "status": "completed", "output": kept[key]}
            except Failed as failure:
                if config.get("failureMode", "fail_fast") == "fail_fast":
                    raise
                entries[key] = {"itemKey": key, "status": "failed", "error": failure.cause}
        by_key = config.get("fanIn", {}).get("order") == "itemKey"
        return self._check(step, path, [entries[k] for k in (sorted(keys) if by_key else keys)])

    def _key(self, place: Place, name: str, template: Json, item: Json) -> str:
        roots = {**self._roots(place, name), "item": item}
        key = parse(json.dumps(template)).evaluate(roots)
        if isinstance(key, str):
            return key
        return json.dumps(key, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def _evaluate(self, place: Place, name: str, template: Json) -> Json:
        return parse(json.dumps(template)).evaluate(self._roots(place, name))

    def _roots(self, place: Place, name: str) -> dict[str, Json]:
        steps: dict[str, Json] = {}
        around: tuple[Place, str] | None = (place, name)
        while around is not None:
            scope, reader = around
            for other in scope.map.names:
                visits = list(scope.visible(reader, other))
                last = visits[-1] if visits else None
                seen = {"output": last, "lastOutput": last, "allVisits": visits}
                steps.setdefault(other, seen)
            around = scope.outer
        return {"input": self.input, "item": place.item, "itemKey": place.key, "steps": steps}

    def _output(self, place: Place) -> Json:
        """The last committed step in the document that no committed one needs; no decisions."""
        if place.outer is None:
            named = self.document.get("output", {}).get("step")
        else:
            group = place.outer[0].map.steps[place.outer[1]]
            named = group["with"].get("fanIn", {}).get("outputStep")
        steps = place.map.steps
        committed = [n for n in place.outputs if steps[n]["uses"] != "decision"]
        needed = {need for n in committed for need in steps[n].get("needs", [])}
        last = [n for n in place.map.names if n in committed and n not in needed][-1:]
        visits = place.outputs.get(named if named else (last or [""])[0], [])
        return visits[-1] if visits else None


def question(step: Step) -> Json:
    """Returns the template of what a step asks the world outside."""
    config = step.get("with", {})
    return {name: config[name] for name in ("args", "prompt") if name in config}


def encode(key: str) -> str:
    """Returns a key as it stands in a path."""
    kept = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_~"
    pieces = (c if c in kept else "".join(f"%{b:02X}" for b in c.encode()) for c in key)
    return "".join(pieces)
