"""Definitions that are edited while their runs wait, and projects of usual shapes."""

from process_programs import PREAMBLE
from role_programs import ASKING

DRIFTING = (
    ASKING
    + """
from planaria import Skill

@tool(effect="idempotent")
def hold(n: int) -> str:
    "Holds on."
    note("hold")
    wait_for("open")
    return f"old {n}"

def answer(messages, info):
    return say(TextPart("answered"))

def plan(messages, info):
    steps = [{"id": "a", "uses": "tool.call", "with": {"tool": "hold", "args": {"n": 2}}}]
    return say(ToolCallPart("submit_workflow", {"steps": steps}))

def orchestrate(messages, info):
    if count_turns(messages):
        return say(TextPart(messages[-1].parts[0].content))
    return say(ToolCallPart("hold", {"n": 3}))

FIXER = {"model": "m", "maxAttempts": 2, "instructions": "Be careful."}

flow = Workflow("drifting", "It drifts.",
    input=NUMBER,
    tools=[hold, put],
    models={"m": FunctionModel(answer), "w": FunctionModel(answer)},
    memory=["org", "workflow"],
    skills=[Skill("style", "How to write.", "style.md"), Skill("tone", "How to speak.", "tone.md")],
    steps=[
        call("a", hold, args={"n": "{{ input.n }}"}),
        generate("b", model="m", prompt="go", instructions="Be kind.", needs=["a"]),
        code("c", source="[input, put(4)]", input="{{ steps.a.output }}", tools=["put"],
            needs=["b"], on_failure={"fixer": FIXER}),
    ],
    env=[LEDGER])

planned = Workflow("planned", "Plans.", tools=[hold, put], models={"p": FunctionModel(plan)},
    planner=Planner(model="p", instructions="Plan well."), env=[LEDGER])

def make(name):
    return Workflow(name, "A part.", tools=[put], steps=[call("a", put, args={"n": 1})],
        env=[LEDGER])

boss = Orchestrator("boss", "Leads.", model=FunctionModel(orchestrate), tools=[hold, put],
    workflows=[make("one"), make("two")], max_concurrent_sub_runs=7, instructions="Lead well.",
    env=[LEDGER])
"""
)

# What fails at first; a later version of its body doesn't.
FAILING = (
    PREAMBLE
    + """
@tool(effect="idempotent")
def put(n: int) -> int:
    note("put")
    return n

@tool(effect="read")
def judge(n: int) -> str:
    raise ValueError("not yet")

flow = Workflow("failing", tools=[put, judge], env=[LEDGER], steps=[
    call("a", put, args={"n": 4}),
    call("b", judge, args={"n": "{{ steps.a.output }}"}, needs=["a"])])
"""
)

WAITING = """
def hold(name):
    note("hold", project=name)
    while not os.path.exists(os.environ[LEDGER] + ".open"):
        time.sleep(0.005)
"""
STEPS = """
    steps=[call("a", begin), call("b", end, needs=["a"])])
"""
# Name of a file in its project -> its text; {word} is "old" at first.
FLAT = {
    "flat_flow.py": PREAMBLE
    + WAITING
    + """
import flat_part

@tool(effect="idempotent")
def begin() -> str:
    hold("flat")
    return "begun"

@tool(effect="read")
def end() -> str:
    return flat_part.speak() + " {word}"

flow = Workflow("flat", tools=[begin, end], env=[LEDGER],
"""
    + STEPS,
    "flat_part.py": 'def speak():\n    return "flat {word}"\n',
}
SRC_LAYOUT = {
    "pyproject.toml": '[project]\nname = "laid"\nversion = "1"\n',
    "src/laid/__init__.py": "",
    "src/laid/parts/__init__.py": "",
    "src/laid/parts/speech.py": 'def speak():\n    return "laid {word}"\n',
    "src/laid/flow.py": PREAMBLE
    + WAITING
    + """
from .parts.speech import speak

@tool(effect="idempotent")
def begin() -> str:
    hold("laid")
    return "begun"

@tool(effect="read")
def end() -> str:
    return speak() + " {word}"

flow = Workflow("laid", tools=[begin, end], env=[LEDGER],
"""
    + STEPS,
}
LAZY = {
    "lazy_flow.py": PREAMBLE
    + WAITING
    + """
@tool(effect="idempotent")
def begin() -> str:
    hold("lazy")
    return "begun"

@tool(effect="read")
def end() -> str:
    import lazy_late
    return lazy_late.speak() + " {word}"

flow = Workflow("lazy", tools=[begin, end], env=[LEDGER], include=["letters/*.txt"],
"""
    + STEPS,
    "lazy_late.py": """
from pathlib import Path

def speak():
    return (Path(__file__).parent / "letters" / "letter.txt").read_text()
""",
    "letters/letter.txt": "lazy {word}",
}
