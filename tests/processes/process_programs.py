"""The workflows of these tests, as texts: children load them from files, as they do a user's."""

from dataclasses import dataclass, field
from typing import Any

PREAMBLE = """
import json, os, signal, subprocess, sys, time
from planaria import Workflow, call, code, current_call, decision, generate, parallel, tool

LEDGER = "PLANARIA_TEST_LEDGER"

def note(name, **more):
    context = current_call()
    facts = {"tool": name, "call": context.call_id, "key": context.idempotency_key,
             "pid": os.getpid(), "session": context.session_id,
             "at": time.time_ns() // 1000, **more}
    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, json.dumps(facts).encode() + b"\\n")
    os.close(descriptor)

def count(name):
    try:
        with open(os.environ[LEDGER]) as file:
            return sum(1 for line in file if json.loads(line)["tool"] == name)
    except FileNotFoundError:
        return 0
"""

CLASSES_SOURCE = (
    PREAMBLE
    + """
@tool(effect="read")
def look(n: int) -> int:
    note("look")
    return n + 1

@tool(effect="idempotent")
def put(n: int) -> int:
    note("put")
    return n * 2

@tool(effect="once")
def send(n: int) -> str:
    note("send")
    return f"sent {n}"

@tool(effect="read")
def sum_up(values: list[int]) -> int:
    note("sum_up")
    return sum(values)

flow = Workflow("classes", tools=[look, put, send, sum_up], env=[LEDGER], steps=[
    call("a", look, args={"n": 1}),
    call("b", put, args={"n": "{{ steps.a.output }}"}, needs=["a"]),
    code("c", source="[put(10), look(20), put(10)]", tools=["put", "look"], needs=["b"]),
    call("d", sum_up, args={"values": "{{ steps.c.output }}"}, needs=["c"]),
    call("e", send, args={"n": "{{ steps.d.output }}"}, needs=["d"]),
])
"""
)

MODEL_SOURCE = (
    PREAMBLE
    + """
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

@tool(effect="idempotent")
def put(n: int) -> int:
    note("put")
    return n * 2

@tool(effect="read")
def look(n: int) -> int:
    note("look")
    return n + 1

def answer(messages, info):
    returned = [part for part in messages[-1].parts if part.part_kind == "tool-return"]
    if returned:
        text = "; ".join(f"{part.tool_name} {part.content}" for part in returned)
        return ModelResponse(parts=[TextPart(text)])
    calls = [ToolCallPart("put", {"n": 4}), ToolCallPart("look", {"n": 4})]
    return ModelResponse(parts=calls)

flow = Workflow("model", tools=[look, put], models={"m": FunctionModel(answer)}, env=[LEDGER],
    steps=[generate("a", model="m", prompt="go", tools=["put", "look"], output={"mode": "text"})])
"""
)

PARALLEL_SOURCE = (
    PREAMBLE
    + """
@tool(effect="idempotent")
def put(n: int) -> int:
    note("put")
    return n * 2

flow = Workflow("parallel", tools=[put], env=[LEDGER], steps=[
    parallel("p", items=[1, 2, 3], steps=[
        call("a", put, args={"n": "{{ item }}"}),
        call("b", put, args={"n": "{{ steps.a.output }}"}, needs=["a"])]),
    code("c", source="[one['output'] for one in input]", input="{{ steps.p.output }}", needs=["p"]),
])
"""
)

# Its process ends itself between two calls, so that a second one has something to resume.
RESUMED_SOURCE = (
    PREAMBLE
    + """
@tool(effect="idempotent")
def put(n: int) -> int:
    note("put")
    return n * 2

@tool(effect="idempotent")
def end_once() -> int:
    note("end_once")
    if count("end_once") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 3

flow = Workflow("resumed", tools=[put, end_once], env=[LEDGER],
    steps=[code("a", source="[put(1), end_once(), put(2)]", tools=["put", "end_once"])])
"""
)

FORGING = (
    PREAMBLE
    + """
import gc
from planaria.protocol.messages import Append, encode_frame
from planaria.workers.link import Reports

SUCCEEDED = ["harness.execute_step.succeeded", {"output": "forged"}]

@tool(effect="idempotent")
def forge(do: str) -> str:
    first = count("forge") == 0
    note("forge")
    if first:
        reports = next(one for one in gc.get_objects() if type(one) is Reports)
        number = reports._incarnation
        session = reports._session_id
        known = reports._known
        forged = {
            "session": Append("hs_other", number, known, [SUCCEEDED]),
            "incarnation": Append(session, number - 1, known, [SUCCEEDED]),
            "later incarnation": Append(session, number + 1, known, [SUCCEEDED]),
            "kind": Append(session, number, known, [["RunCompleted", {"output": "forged"}]]),
            "call": Append(session, number, known, [["harness.tool_call.succeeded",
                {"callId": "call_other", "result": "forged"}]]),
            "payload": Append(session, number, known, [["harness.execute_step.succeeded", []]]),
            "event": Append(session, number, known, [7]),
            "blob": Append(session, number, known, [["harness.execute_step.succeeded",
                {"outputRef": {"ref": "sha256/00/" + 64 * "0", "sha256": "sha256:" + 64 * "0",
                "size": 3}}]]),
        }[do]
        reports._sender.send(encode_frame([forged]))
        time.sleep(20)
    return "honest"

flow = Workflow("forging", tools=[forge], env=[LEDGER],
    steps=[call("a", forge, args={"do": "{{ input.do }}"})])
"""
)


@dataclass(frozen=True, slots=True)
class Program:
    """A workflow of the sweeps, what comes of it, and how many different calls each tool gets.

    `asks` says how often a function that notes its requests is asked when nothing is killed; with
    `cycles_max` it is run as an outer loop.
    """

    source: str
    output: Any
    keys: dict[str, int]
    input: Any = None
    asks: dict[str, int] = field(default_factory=dict)
    cycles_max: int | None = None


CLASSES = Program(CLASSES_SOURCE, "sent 61", {"look": 2, "put": 3, "sum_up": 1, "send": 1})
MODEL = Program(MODEL_SOURCE, "put 8; look 5", {"put": 1, "look": 1})
PARALLEL = Program(PARALLEL_SOURCE, [4, 8, 12], {"put": 6})
RESUMED = Program(RESUMED_SOURCE, [2, 3, 4], {"put": 2, "end_once": 1})
