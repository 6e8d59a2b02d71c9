"""The builders give what a document has, whatever Python was given."""

from datetime import timedelta
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from planaria.steps import call, code, decision, generate, normalize_step, parallel, write_duration
from planaria.tools import tool


class Report(BaseModel):
    text: str


@tool(effect="read", name="look_up")
def look(key: str) -> str:
    return key


def test_generate_has_what_was_given_and_nothing_else() -> None:
    step = generate(
        "draft",
        model="fast",
        prompt="Write.",
        tools=[look, "other"],
        instructions="Short.",
        max_turns=3,
        needs=["a"],
        output=Report,
        max_visits=2,
        on_failure={"repair": {"maxAttempts": 1}},
    )

    assert step == {
        "id": "draft",
        "uses": "ai.generate",
        "with": {
            "model": "fast",
            "prompt": "Write.",
            "tools": ["look_up", "other"],
            "instructions": "Short.",
            "maxTurns": 3,
        },
        "needs": ["a"],
        "output": {
            "mode": "object",
            "schema": {
                "title": "Report",
                "type": "object",
                "properties": {"text": {"title": "Text", "type": "string"}},
                "required": ["text"],
            },
        },
        "maxVisits": 2,
        "onFailure": {"repair": {"maxAttempts": 1}},
    }
    assert generate("g", model="m", prompt="p") == {
        "id": "g",
        "uses": "ai.generate",
        "with": {"model": "m", "prompt": "p"},
    }


def test_call_code_decision_and_parallel_give_their_steps() -> None:
    inner = call("c", look, args={"key": "{{ item }}"}, timeout=timedelta(minutes=2))
    ranked = code("r", source="1", tools=[look], input=None)
    route = decision("d", cases=[("{{ input.ok }}", "c")], default="end")
    group = parallel("p", items="{{ input }}", steps=[inner], max_branches=5, output_step="c")

    assert inner["with"] == {"tool": "look_up", "args": {"key": "{{ item }}"}}
    assert inner["timeout"] == "2m"
    assert (ranked["with"], ranked["input"]) == ({"source": "1", "tools": ["look_up"]}, None)
    assert route["with"] == {"cases": [{"when": "{{ input.ok }}", "to": "c"}], "default": "end"}
    assert group["steps"] == [inner]
    assert group["with"] == {
        "items": "{{ input }}",
        "itemKey": "{{ item }}",
        "maxBranches": 5,
        "maxConcurrency": 5,
        "failureMode": "fail_fast",
        "fanIn": {"order": "input", "outputStep": "c"},
    }


@pytest.mark.parametrize(
    ("annotation", "output"),
    [
        (str, {"mode": "text"}),
        (Any, {"mode": "json"}),
        (Literal["a", "b"], {"mode": "choice", "values": ["a", "b"]}),
        (Literal["a"], {"mode": "choice", "values": ["a"]}),
        (list[int], {"mode": "array", "schema": {"type": "array", "items": {"type": "integer"}}}),
        (int, {"mode": "json", "schema": {"type": "integer"}}),
    ],
)
def test_output_may_be_a_type(annotation: Any, output: dict[str, Any]) -> None:
    assert call("a", "t", output=annotation)["output"] == output


def test_durations_are_written_where_documents_have_them_and_nowhere_else() -> None:
    lasting = timedelta(seconds=90)
    retry = {"maxAttempts": 3, "delay": lasting, "maxDelay": timedelta(hours=48)}

    step = call("a", "t", args={"for": lasting}, retry=retry, input={"timeout": lasting})

    assert step["retry"] == {"maxAttempts": 3, "delay": "90s", "maxDelay": "2d"}
    assert step["with"]["args"] == {"for": lasting}
    assert step["input"] == {"timeout": lasting}


def test_durations_are_exact() -> None:
    written = [
        write_duration(timedelta(**{unit: n}))
        for unit, n in [("milliseconds", 1), ("seconds", 61), ("minutes", 60), ("days", 7)]
    ]

    assert written == ["1ms", "61s", "1h", "7d"]
    assert write_duration(timedelta()) == "0s"
    for bad in (timedelta(microseconds=1), timedelta(seconds=-1)):
        with pytest.raises(ValueError, match="expected a whole number of milliseconds"):
            write_duration(bad)


def test_steps_share_nothing_with_what_was_given() -> None:
    given: dict[str, Any] = {"id": "a", "uses": "tool.call", "with": {"args": {"x": [1]}}}

    made = normalize_step(given)
    made["with"]["args"]["x"].append(2)

    assert given["with"]["args"]["x"] == [1]
