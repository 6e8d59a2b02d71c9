"""The kernel against an interpreter made from the specification: any order, the same output."""

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from random_documents import make_answer, make_document, without_errors
from reference import Interpreter
from world import World

CASES = json.loads((Path(__file__).parents[1] / "protocol/cases/lwir.json").read_text())
VALID = [case for case in CASES if not case["findings"]]
# The whole is 1,000 graphs; `PLANARIA_MANY=1000` plays as many, the suite a part of them.
GRAPHS = int(os.environ.get("PLANARIA_MANY", "250"))
CHUNK = 50
ORDERS = 4
# Which of several failing steps fails first is up to the order; that the run fails is not.
CAUSES = {None, "step_failed", "max_visits_exceeded"}


def play(document: Any, value: Any, answer: Any, seed: int) -> tuple[str, Any, Any]:
    draw = random.Random(seed)
    picks = [lambda moves: moves[0], lambda moves: moves[-1], draw.choice]
    pick = picks[min(seed, 2)]
    game = Interpreter(document, value, answer, pick)
    status, result = game.run()
    return (
        (status, without_errors(result), None) if status == "completed" else (status, None, result)
    )


def run_kernel(document: Any, value: Any, answer: Any, seed: int) -> tuple[str, Any, Any]:
    draw = random.Random(seed)
    world = World({"t": None, "lookup": None}, seed=seed, children_max=draw.choice((1, 2, 4, 9)))
    world.answer = answer
    if seed % 2:
        world.crash_at = draw.randrange(1, 150)
        world.kill_child_at = draw.randrange(1, 60)
    world.admit(document, value)
    world.run()
    state = world.state()
    assert not state.owed and not state.sessions
    if state.status == "completed":
        return "completed", without_errors(state.output), None
    assert state.error is not None
    return state.status, None, state.error["causeCode"]


def check(document: Any, value: Any, answer: Any, seed: int) -> str:
    """Plays the document in several orders and in the kernel; returns its status.

    Every other seed has a supervisor and a child killed on the way.
    """
    expected = play(document, value, answer, 0)
    for order in range(1, ORDERS):
        found = play(document, value, answer, order)
        assert expected[:2] == found[:2], (seed, order)
        assert found[2] in CAUSES, (seed, order)

    status, output, cause = run_kernel(document, value, answer, seed)

    assert expected[:2] == (status, output), (seed, cause)
    assert cause in CAUSES, (seed, cause)
    return status


@pytest.mark.parametrize("case", VALID, ids=[case["name"] for case in VALID])
@pytest.mark.parametrize("ok", [True, False, None])
def test_shared_valid_document_gives_the_output_of_the_reference(case: Any, ok: Any) -> None:
    document = copy.deepcopy(case["lwir"])
    document["output"] = {}  # the cases' own schema is the same list everywhere

    def answer(path: str, attempt: int, asked: Any) -> Any:
        passed = ok if ok is not None else ".visit[1]" in path
        is_text = path.endswith("]") and "worker" in path
        return f"{path}: {asked}" if is_text else {"ok": ok, "passed": passed, "asked": asked}

    value = {"candidates": [{"id": "x"}, {"id": 7}, {"id": "a.b"}]}
    for seed in range(6):
        check(document, value, answer, seed)


@pytest.mark.parametrize("chunk", range(GRAPHS // CHUNK))
def test_random_document_has_one_output_in_any_order(chunk: int) -> None:
    completed = 0
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        print("seed", seed)
        document = make_document(random.Random(seed))
        print(json.dumps(document))
        completed += check(document, {"x": seed}, make_answer(seed), seed) == "completed"

    assert completed > CHUNK // 5, "most documents fail: nothing would be compared"
