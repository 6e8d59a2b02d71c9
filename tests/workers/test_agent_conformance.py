"""pydantic-ai made durable: what its private and public surface has to go on doing for us.

Run it on the lowest and the newest version that is allowed.
"""

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, FunctionToolset, ModelRetry, RunContext
from pydantic_ai.capabilities import AbstractCapability, ModelFallback
from pydantic_ai.exceptions import ModelHTTPError, UsageLimitExceeded
from pydantic_ai.mcp import MCPToolset, StdioTransport
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.usage import UsageLimits

from planaria.protocol.errors import RecordedError, ReplayMismatchError, UsageError
from planaria.workers.agent_codec import TAG
from planaria.workers.agent_durability import Durability
from planaria.workers.agent_loop import AgentOutcome, run_agent

sys.path.append(str(Path(__file__).parent))
from memory_journal import Log, MemoryJournal, ProcessDied  # noqa: E402
from scripted_model import ScriptedModel, call, say  # noqa: E402

SEED = 20


@dataclass
class Case:
    """One agent with what it did outside of the journal."""

    agent: Agent[Any, Any]
    model: ScriptedModel
    did: Counter[str] = field(default_factory=Counter)
    options: dict[str, Any] = field(default_factory=dict)
    journal: MemoryJournal | None = None

    async def run(self, journal: MemoryJournal, **options: Any) -> AgentOutcome:
        try:
            return await self.run_only(journal, **options)
        finally:
            await journal.finish()

    async def run_only(self, journal: MemoryJournal, **options: Any) -> AgentOutcome:
        self.journal = journal
        return await run_agent(
            self.agent,
            "go",
            journal=journal,
            session_id="hs_1",
            run_id="run_1",
            **{**self.options, **options},
        )


def parallel_tools() -> Case:
    model = ScriptedModel(
        [call("twice", "a", n=1), call("slow_twice", "b", n=2), call("twice", "c", n=3)],
        [call("twice", "d", n=1)],
        say("done"),
    )
    case = Case(Agent(model), model)

    @case.agent.tool_plain
    def twice(n: int) -> int:
        case.did[f"twice {n}"] += 1
        return 2 * n

    @case.agent.tool_plain
    async def slow_twice(n: int) -> int:
        case.did[f"slow_twice {n}"] += 1
        await asyncio.sleep(0)
        return 2 * n

    return case


def model_retry() -> Case:
    model = ScriptedModel([call("guess", "a", n=1)], [call("guess", "b", n=2)], say("done"))
    case = Case(Agent(model), model)

    @case.agent.tool_plain(retries=2)
    def guess(n: int) -> str:
        case.did[f"guess {n}"] += 1
        if n == 1:
            raise ModelRetry("higher")
        return "right"

    return case


def invalid_args() -> Case:
    model = ScriptedModel([call("guess", "a", n="no number")], [call("guess", "b", n=2)], say("ok"))
    case = Case(Agent(model), model)

    @case.agent.tool_plain
    def guess(n: int) -> str:
        case.did[f"guess {n}"] += 1
        return "right"

    return case


def args_validator() -> Case:
    model = ScriptedModel(
        [call("pay", "a", cents=-5), call("pay", "b", cents=5)],
        [call("pay", "c", cents=6)],
        say("paid"),
    )
    case = Case(Agent(model), model)

    async def check(ctx: RunContext[Any], cents: int) -> None:
        case.did[f"check {cents}"] += 1
        if cents < 0:
            raise ModelRetry("positive amounts only")

    @case.agent.tool_plain(args_validator=check, retries=2)
    def pay(cents: int) -> str:
        case.did[f"pay {cents}"] += 1
        return f"paid {cents}"

    return case


class City(BaseModel):
    name: str
    people: int


def structured_output() -> Case:
    model = ScriptedModel(
        [call("final_result", "a", name="Ulm", people="many")],
        [call("final_result", "b", name="Ulm", people=7)],
        [call("final_result", "c", name="Ulm", people=128_000)],
    )
    agent: Agent[Any, Any] = Agent(model, output_type=City, retries={"output": 3})

    @agent.output_validator
    def plausible(city: City) -> City:
        if city.people < 1_000:
            raise ModelRetry("too few")
        return city

    return Case(agent, model)


def nested_agent() -> Case:
    inner_model = ScriptedModel([call("look", "x")], say("inner answer"))
    inner = Agent(inner_model)
    model = ScriptedModel([call("ask", "a", q="?"), call("ask", "b", q="!")], say("done"))
    case = Case(Agent(model), model)

    @inner.tool_plain
    def look() -> str:
        case.did["look"] += 1
        return "seen"

    @case.agent.tool
    async def ask(ctx: RunContext[Any], q: str) -> str:
        case.did[f"ask {q}"] += 1
        assert case.journal is not None
        # Durable as well, as an agent that belongs to another workflow would be.
        durability = Durability(case.journal, name="inner")
        return (await inner.run(q, usage=ctx.usage, capabilities=[durability])).output

    return case


def streamed() -> Case:
    case = parallel_tools()
    case.options["streaming"] = True
    return case


def own_toolsets() -> Case:
    """Toolsets without ids, one that is made at run time, and one of the worker's own."""
    model = ScriptedModel(
        [call("first", "a"), call("second", "b"), call("made", "c"), call("note", "d")], say("done")
    )
    unnamed, other, extra = FunctionToolset[Any](), FunctionToolset[Any](), FunctionToolset[Any]()
    extra._id = "planaria-memory"
    case = Case(Agent(model, toolsets=[unnamed, other]), model)
    case.options["extra_toolsets"] = [extra]

    def add(toolset: FunctionToolset[Any], name: str) -> None:
        def body() -> str:
            case.did[name] += 1
            return name

        toolset.add_function(body, name=name)

    for toolset, name in ((unnamed, "first"), (other, "second"), (extra, "note")):
        add(toolset, name)

    @case.agent.toolset(id="made")
    def make(ctx: RunContext[Any]) -> FunctionToolset[Any]:
        made = FunctionToolset[Any]()
        add(made, "made")
        return made

    return case


CASES: dict[str, Callable[[], Case]] = {
    factory.__name__: factory
    for factory in (
        parallel_tools,
        model_retry,
        invalid_args,
        args_validator,
        structured_output,
        nested_agent,
        streamed,
        own_toolsets,
    )
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def make_case(request: pytest.FixtureRequest) -> Callable[[], Case]:
    factory: Callable[[], Case] = request.param
    return factory


def test_replay_gives_the_same_outcome_and_calls_nothing(make_case: Callable[[], Case]) -> None:
    log = Log()
    first = asyncio.run(make_case().run(MemoryJournal(log)))
    again = make_case()
    journal = MemoryJournal(log)

    second = asyncio.run(again.run(journal))

    assert (first.output, first.usage) == (second.output, second.usage)
    assert [] == journal.performed
    assert not again.did
    assert [] == again.model.requests


def test_death_at_every_point_repeats_no_recorded_call(make_case: Callable[[], Case]) -> None:
    reference = asyncio.run(make_case().run(MemoryJournal()))
    for point in range(1, 200):
        log = Log()
        dying = MemoryJournal(log, die_at=point)
        try:
            asyncio.run(make_case().run(dying))
        except ProcessDied:
            pass
        else:
            assert point > 3
            return
        settled = log.settled()
        successor = MemoryJournal(log)

        outcome = asyncio.run(make_case().run(successor))

        assert (reference.output, reference.usage) == (outcome.output, outcome.usage), point
        assert settled.isdisjoint(successor.performed), point
    raise AssertionError("no end of the points was reached")


class SlowHook(AbstractCapability[Any]):
    """A user's capability whose hook takes another time for every call."""

    def __init__(self, delays: dict[str, int]) -> None:
        self.delays = delays

    async def before_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: Any, args: dict[str, Any]
    ) -> dict[str, Any]:
        for _ in range(self.delays[call.tool_call_id]):
            await asyncio.sleep(0)
        return args


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_slow_hooks_do_not_swap_answers(seed: int) -> None:
    drawn = random.Random(seed)
    labels = ["a", "b", "c", "d", "e"]

    def make(order: list[str]) -> Case:
        places = drawn.sample(range(len(labels)), len(labels))
        print("seed", seed, "places", places)
        delays = {label: 20 * place for label, place in zip(labels, places, strict=True)}
        model = ScriptedModel([call("find", x, key=x) for x in labels], say("done"))
        case = Case(Agent(model, capabilities=[SlowHook(delays)]), model)

        @case.agent.tool_plain
        async def find(key: str) -> str:
            order.append(key)
            return f"answer {key}"

        return case

    log = Log()
    before: list[str] = []
    after: list[str] = []
    with pytest.raises(ProcessDied):  # in the middle of the calls
        asyncio.run(make(before).run(MemoryJournal(log, die_at=12)))
    settled = log.settled() - {"m1.0"}
    outcome = asyncio.run(make(after).run(MemoryJournal(log)))

    assert [f"answer {key}" for key in labels] == [p.content for p in outcome.messages[2].parts]
    assert before != sorted(before)  # the hooks did change the order of arrival
    assert 0 < len(settled) < len(labels)
    assert len(labels) - len(settled) == len(after)


def test_raising_tool_waits_for_its_slow_sibling() -> None:
    def make() -> Case:
        model = ScriptedModel([call("slow", "a"), call("bad", "b")], say("never"))
        case = Case(Agent(model), model)

        @case.agent.tool_plain
        def slow() -> str:
            time.sleep(0.05)  # in a thread, which nobody can cancel
            case.did["slow"] += 1
            return "happened"

        @case.agent.tool_plain
        async def bad() -> str:
            case.did["bad"] += 1
            raise LookupError("no such thing")

        return case

    log = Log()
    first, second = make(), make()
    with pytest.raises(RecordedError) as raised:
        # Without the journal's own wait: also the MCP servers stay open until the sibling is done.
        asyncio.run(first.run_only(MemoryJournal(log)))
    with pytest.raises(RecordedError) as replayed:
        asyncio.run(second.run_only(MemoryJournal(log)))

    assert ("LookupError", "no such thing") == (raised.value.name, raised.value.message)
    assert str(raised.value) == str(replayed.value)
    assert "happened" == log.result("t1.0")
    assert Counter(slow=1, bad=1) == first.did
    assert not second.did


def test_mcp_server_is_not_even_started_on_replay(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    script = str(Path(__file__).with_name("mcp_echo_server.py"))

    def make(command: str) -> Case:
        model = ScriptedModel([call("echo", "a", text="hi"), call("send", "b", text="x")], say("k"))
        transport = StdioTransport(command, [script, str(notes)], keep_alive=False)
        return Case(Agent(model, toolsets=[MCPToolset(transport)]), model)

    log = Log()
    first = asyncio.run(make(sys.executable).run(MemoryJournal(log)))
    journal = MemoryJournal(log)
    second = asyncio.run(make(str(tmp_path / "no-such-program")).run(journal))

    assert ["start", "echo", "send"] == sorted(
        notes.read_text().split(), key="start echo send".find
    )
    assert [] == journal.performed
    assert (first.output, first.usage) == (second.output, second.usage)
    assert ("HI", "sent x") == (log.result("t1.0"), log.result("t1.1"))
    assert {"t1.0": "read", "t1.1": "once"} == {
        position: record.details["effect"] for position, record in log.of("tool").items()
    }


@pytest.mark.parametrize("label", ["same", ""])
def test_repeated_provider_ids_are_labels_only(label: str) -> None:
    def make() -> Case:
        case = parallel_tools()
        case.model.turns = (
            [call("twice", label, n=1), call("twice", label, n=2)],
            [call("twice", label, n=3)],
            say("done"),
        )
        return case

    log = Log()
    first, second = make(), make()
    outcome = asyncio.run(first.run(MemoryJournal(log)))
    replayed = asyncio.run(second.run(MemoryJournal(log)))

    assert Counter({"twice 1": 1, "twice 2": 1, "twice 3": 1}) == first.did
    assert not second.did
    assert outcome.usage == replayed.usage
    assert [2, 4, 6] == [log.result(place) for place in ("t1.0", "t1.1", "t2.0")]


def test_volatile_prompt_gets_the_recorded_response_and_one_warning() -> None:
    clock = iter(range(100))

    def make() -> Case:
        case = parallel_tools()
        case.options["effects"] = {"twice": "read", "slow_twice": "read"}
        case.agent.instructions(lambda: f"the time is {next(clock)}")
        return case

    log = Log()
    asyncio.run(make().run(MemoryJournal(log)))
    again, journal = make(), MemoryJournal(log)
    outcome = asyncio.run(again.run(journal))

    assert "done" == outcome.output
    assert [] == again.model.requests
    assert ["the request at m1.0 differs from the recorded one"] == journal.warnings


def test_stable_prompt_gets_no_warning() -> None:
    log = Log()
    asyncio.run(model_retry().run(MemoryJournal(log), effects={"guess": "read"}))
    journal = MemoryJournal(log)
    asyncio.run(model_retry().run(journal, effects={"guess": "read"}))

    assert [] == journal.warnings


def test_run_stream_goes_through_the_journal() -> None:
    async def run(case: Case, journal: MemoryJournal) -> str:
        durability = Durability(journal, name="hs_1")
        async with case.agent.run_stream(
            "go", capabilities=[durability], run_id="run_1", conversation_id="hs_1"
        ) as stream:
            output: str = await stream.get_output()
        await journal.finish()
        return output

    log = Log()
    first, second, journal = parallel_tools(), parallel_tools(), MemoryJournal(log)
    output = asyncio.run(run(first, MemoryJournal(log)))

    assert output == asyncio.run(run(second, journal)) == "done"
    assert [] == journal.performed
    assert not second.did


def test_other_tool_at_a_recorded_position_is_a_mismatch() -> None:
    log = Log()
    asyncio.run(parallel_tools().run(MemoryJournal(log)))
    log.records["t1.1"], log.records["t1.2"] = log.records["t1.2"], log.records["t1.1"]

    with pytest.raises(ReplayMismatchError, match=r"t1\.1"):
        asyncio.run(parallel_tools().run(MemoryJournal(log)))


def test_model_failure_is_recorded_and_raised_again() -> None:
    def fail(messages: Any) -> Any:
        raise ModelHTTPError(503, "scripted", body="overloaded")

    log = Log()
    texts = []
    for _ in range(2):
        model = ScriptedModel(fail)
        with pytest.raises(RecordedError) as raised:
            asyncio.run(Case(Agent(model), model).run(MemoryJournal(log)))
        texts.append((raised.value.name, raised.value.message, len(model.requests)))

    assert "ModelHTTPError" == texts[0][0]
    assert texts[0][:2] == texts[1][:2]
    assert [1, 0] == [requests for _, _, requests in texts]


def test_fallback_model_is_one_operation() -> None:
    def fail(messages: Any) -> Any:
        raise ModelHTTPError(503, "broken", body="overloaded")

    def make() -> tuple[Case, ScriptedModel]:
        broken, working = ScriptedModel(fail), ScriptedModel(say("from the second"))
        return Case(Agent(FallbackModel(broken, working)), working), broken

    log = Log()
    (first, broken), (second, _) = make(), make()
    outcome = asyncio.run(first.run(MemoryJournal(log)))
    replayed = asyncio.run(second.run(MemoryJournal(log)))

    assert "from the second" == outcome.output == replayed.output
    assert 1 == len(broken.requests)
    assert ["m1.0"] == list(log.records)
    assert [] == second.model.requests


def test_fallback_capability_reacts_to_a_recorded_failure() -> None:
    def fail(messages: Any) -> Any:
        raise ModelHTTPError(503, "broken", body="overloaded")

    log = Log()
    requests = []
    for _ in range(2):
        broken, working = ScriptedModel(fail), ScriptedModel(say("from the second"))
        agent: Agent[Any, Any] = Agent(broken, capabilities=[ModelFallback(working)])
        case = Case(agent, broken, options={"models": {"second": working}})
        outcome = asyncio.run(case.run(MemoryJournal(log)))
        assert "from the second" == outcome.output
        requests.append(len(broken.requests) + len(working.requests))

    assert [2, 0] == requests
    assert ["m1.0", "m1.1"] == list(log.records)


def test_usage_limit_strikes_at_the_same_place_on_replay() -> None:
    log = Log()
    requests = []
    for _ in range(2):
        case = parallel_tools()
        with pytest.raises(UsageLimitExceeded):
            asyncio.run(case.run(MemoryJournal(log), usage_limits=UsageLimits(request_limit=2)))
        requests.append(len(case.model.requests))

    assert [2, 0] == requests


def test_tool_given_past_the_journal_is_refused() -> None:
    ran = []

    def outside() -> str:
        ran.append("outside")
        return "no"

    async def run() -> None:
        model = ScriptedModel([call("outside", "a")], say("done"))
        journal = MemoryJournal()
        await Agent(model).run(
            "go",
            capabilities=[Durability(journal, name="hs_1")],
            toolsets=[FunctionToolset([outside])],
        )

    with pytest.raises(UsageError, match="outside of the journal"):
        asyncio.run(run())
    assert [] == ran


def test_nested_agent_leaves_no_operation_of_its_own() -> None:
    log = Log()
    case = nested_agent()
    outcome = asyncio.run(case.run(MemoryJournal(log)))

    assert "done" == outcome.output
    assert ["inner answer"] * 2 == [
        log.result("t1.0")[TAG]["result"],
        log.result("t1.1")[TAG]["result"],
    ]
    assert Counter({"ask ?": 1, "ask !": 1, "look": 2}) == case.did
    assert ["m1.0", "t1.0", "t1.1", "m2.0"] == list(log.records)
    assert 6 == outcome.usage["requests"]  # two of its own, two of each inner agent


def test_requests_hold_only_what_was_added() -> None:
    log = Log()
    outcome = asyncio.run(parallel_tools().run(MemoryJournal(log)))

    requests = [record.details["request"] for record in log.of("model").values()]
    assert [1, 1, 1] == [len(request) for request in requests]
    assert [["user-prompt"], ["tool-return"] * 3, ["tool-return"]] == [
        [part["part_kind"] for part in request[0]["parts"]] for request in requests
    ]
    assert "timestamp" not in str(requests)
    kinds = [type(message) for message in outcome.messages]
    assert [ModelRequest, ModelResponse] * 3 == kinds
