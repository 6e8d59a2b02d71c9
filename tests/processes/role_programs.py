"""The workflows of the roles: a planner, an orchestrator, a fixer, and outer loops of them.

Their models are functions that note, outside of the system, every request that they get.
"""

import pydantic_ai  # noqa: F401  # the programs look whether their process has it
from process_programs import PREAMBLE, Program

# The names in the file LEDGER.mortal stand for functions that end their process, by SIGKILL, the
# first time that they are asked something; the same question is answered the second time.
ASKING = (
    PREAMBLE
    + """
from planaria import Continue, Done, Orchestrator, Planner

if "pydantic_ai" in sys.modules:  # in every process that carries an agent: it is preloaded
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel
else:  # others would spend a second on it, for nothing
    def FunctionModel(function):
        return "openai:unused"

def ask(name, turn, **more):
    path = os.environ[LEDGER] + ".asks"
    facts = {"ask": name, "turn": turn, "pid": os.getpid(), "at": time.time_ns() // 1000, **more}
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, json.dumps(facts).encode() + b"\\n")
    os.fsync(descriptor)
    os.close(descriptor)
    if is_mortal(name):
        with open(path) as file:
            same = [one for line in file if (one := json.loads(line))["ask"] == name
                    and one["turn"] == turn and one.get("attempt") == more.get("attempt")]
        if len(same) == 1:
            os.kill(os.getpid(), signal.SIGKILL)

def is_mortal(name):
    try:
        with open(os.environ[LEDGER] + ".mortal") as file:
            return name in file.read().split()
    except FileNotFoundError:
        return False

def wait_for(name):
    while not os.path.exists(os.environ[LEDGER] + "." + name):
        time.sleep(0.005)

def count_turns(messages):
    return sum(1 for one in messages if one.kind == "response")

def say(*parts):
    return ModelResponse(parts=list(parts))

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

@tool(effect="idempotent")
def put(n: int) -> int:
    "Doubles a number."
    note("put")
    return n * 2
"""
)

PLANNED_SOURCE = (
    ASKING
    + """
DRAFT = {"steps": [
    {"id": "a", "uses": "tool.call", "with": {"tool": "put", "args": {"n": "{{ input.n }}"}}},
    {"id": "b", "uses": "tool.call", "needs": ["a"],
     "with": {"tool": "put", "args": {"n": "{{ steps.a.output }}"}}}]}
REFUSED = {"steps": [{"id": "a", "uses": "tool.call", "with": {"tool": "double"}}]}

def plan(messages, info):
    turn = count_turns(messages)
    ask("plan", turn)
    if turn == 0:
        return say(ToolCallPart("write_file", {
            "path": "memory/workflow/idea.txt", "content": "twice"}))
    return say(ToolCallPart("submit_workflow", REFUSED if turn == 1 else DRAFT))

flow = Workflow("planned", "Doubles n twice.", input=NUMBER, tools=[put], memory=["workflow"],
    models={"p": FunctionModel(plan)}, planner=Planner(model="p"), env=[LEDGER])
"""
)

ORCHESTRATED_SOURCE = (
    ASKING
    + """
COUNT = 50
STAYS = True  # a tool of its own, which keeps the orchestrator's process as long as there is work

@tool(effect="idempotent")
def square(n: int) -> int:
    "Squares a number."
    note("square", n=n)
    if STAYS and n >= 30:
        wait_for("thirty")
    return n * n

@tool(effect="idempotent")
def stay() -> str:
    note("stay")
    while STAYS and count("square") < COUNT:
        time.sleep(0.01)
    return "stayed"

small = Workflow("small", "Squares n.", input=NUMBER, tools=[square], env=[LEDGER],
    steps=[call("a", square, args={"n": "{{ input.n }}"})])

def orchestrate(messages, info):
    turn = count_turns(messages)
    ask("orchestrate", turn)
    if turn == 0:
        return say(ToolCallPart("plan_workflow", {"workflowId": "small"}))
    returned = [part for part in messages[-1].parts if part.part_kind == "tool-return"]
    if turn == 1:
        version = returned[0].content["workflowVersionId"]
        calls = [ToolCallPart("run_workflow", {"workflowVersionId": version, "input": {"n": n}})
                 for n in range(COUNT)]
        return say(ToolCallPart("stay", {}), *calls)
    return say(TextPart(json.dumps([part.content["output"] for part in returned[1:]])))

flow = Orchestrator("boss", "Squares them all.", model=FunctionModel(orchestrate), tools=[stay],
    workflows=[small], env=[LEDGER])
"""
)

FIXED_SOURCE = (
    ASKING
    + """
@tool(effect="idempotent")
def look(n: int) -> dict[str, int]:
    "Looks a number up."
    note("look")
    return {"found": n}

BROKEN = "n = put(3)\\nlook(n)['missing']"
HALF = "n = put(3)\\nm = put(n)\\nlook(m)['absent']"
GOOD = "n = put(3)\\nm = put(n)\\n[n, m, look(m)['found']]"

def fix(messages, info):
    attempt = 2 if "Fix 1 failed too" in str(messages[0].parts) else 1
    turn = count_turns(messages)
    ask("fix", turn, attempt=attempt)
    source = HALF if attempt == 1 else GOOD
    return say(ToolCallPart("submit_source" if turn else "try_source", {"source": source}))

flow = Workflow("fixed", tools=[put, look], models={"f": FunctionModel(fix)}, env=[LEDGER], steps=[
    code("a", source=BROKEN, tools=["put", "look"],
        on_failure={"fixer": {"model": "f", "maxAttempts": 2, "instructions": "Be careful."}})])
"""
)

SUPERVISED = """
def supervise(state):
    ask("supervise", len(state["cycles"]), state=state)
    if os.path.exists(os.environ[LEDGER] + ".held"):
        wait_for("released")
    if len(state["cycles"]) < 2:
        return Continue("note " + str(len(state["cycles"])))
    return Done([one["output"] for one in state["cycles"]])
"""

LOOPED_SOURCE = (
    ASKING
    + SUPERVISED
    + """
flow = Workflow("looped", "Doubles n.", input=NUMBER, tools=[put], env=[LEDGER],
    steps=[call("a", put, args={"n": "{{ input.n }}"})])
"""
)
PLANNED_LOOP_SOURCE = PLANNED_SOURCE + SUPERVISED

# Never content: its loop is exhausted.
EXHAUSTED_SOURCE = LOOPED_SOURCE.replace("< 2:", "< 9:")
HELD_LOOP_SOURCE = LOOPED_SOURCE.replace(
    '    note("put")', '    note("put")\n    if n == 5:\n        wait_for("open")'
)

FEW = ORCHESTRATED_SOURCE.replace("COUNT = 50", "COUNT = 3").replace(
    "STAYS = True", "STAYS = False"
)
SQUARES = [n * n for n in range(50)]

PLANNED = Program(PLANNED_SOURCE, 20, {"put": 2}, {"n": 5}, asks={"plan": 3})
ORCHESTRATED = Program(
    ORCHESTRATED_SOURCE, str(SQUARES), {"square": 50, "stay": 1}, {}, asks={"orchestrate": 3}
)
ORCHESTRATED_FEW = Program(FEW, "[0, 1, 4]", {"square": 3, "stay": 1}, {}, asks={"orchestrate": 3})
FIXED = Program(FIXED_SOURCE, [6, 12, 12], {"put": 2, "look": 2}, asks={"fix": 4})
LOOPED = Program(LOOPED_SOURCE, [10, 10], {"put": 2}, {"n": 5}, asks={"supervise": 2}, cycles_max=3)
PLANNED_LOOP = Program(
    PLANNED_LOOP_SOURCE,
    [20, 20],
    {"put": 4},
    {"n": 5},
    asks={"plan": 6, "supervise": 2},
    cycles_max=3,
)
