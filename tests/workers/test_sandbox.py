"""Sandboxed code calls tools by position, gives plain JSON, and reaches nothing else."""

import asyncio
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest

from planaria.protocol.errors import RecordedError, ReplayMismatchError
from planaria.workers import sandbox
from planaria.workers.code_body import SandboxError, SandboxLimits
from planaria.workers.sandbox import run_code

CLOCK_US = 1_767_323_045_000_678  # 2026-01-02 03:04:05.000678 UTC
QUICK = SandboxLimits(execution_seconds=0.3, memory_bytes=32 << 20)


class Tools:
    """A journal's twin: counts live calls, and replays outcomes that it was given."""

    def __init__(self, recorded: dict[int, Any] | None = None, delays: int | None = None) -> None:
        self.recorded = recorded or {}
        self.outcomes: dict[int, Any] = {}
        self.asked: dict[int, tuple[str, Any, Any]] = {}
        self.live = 0
        self._random = random.Random(delays) if delays is not None else None

    async def __call__(self, position: int, tool: str, args: Any, kwargs: Any) -> Any:
        self.asked[position] = (tool, args, kwargs)
        if position in self.recorded:
            return self.recorded[position]
        self.live += 1
        if self._random is not None:  # arrivals in another order: some turns of the loop each
            for _ in range(self._random.randrange(20)):
                await asyncio.sleep(0)
        if tool == "broken":
            raise RecordedError(name=args[0], message="no luck")
        self.outcomes[position] = {"x": args[0] if args else kwargs}
        return self.outcomes[position]


def run(
    source: str,
    tools: Callable[..., Awaitable[Any]] | None = None,
    *,
    input: Any = None,
    limits: SandboxLimits = QUICK,
    seed: bytes = b"seed",
    on_output: Callable[[str], None] | None = None,
) -> Any:
    return asyncio.run(
        run_code(
            source,
            input=input,
            tools=["lookup", "broken"],
            call=tools or Tools(),
            seed=seed,
            clock_us=CLOCK_US,
            limits=limits,
            on_output=on_output,
        )
    )


def fail(source: str, **options: Any) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        run(source, **options)
    return caught.value


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("input['a'] + 1", 2),
        ("return [input, None]", [{"a": 1}, None]),
        ("result = []\nfor key in input:\n    result.append(key)", ["a"]),
        ("if input:\n    output = 1\nelse:\n    output = 2", 1),
        ("x = 1", None),
        ("import json, math, re, datetime\njson.loads('[1]') + [math.floor(2.5)]", [1, 2]),
    ],
)
def test_body_gives_its_last_value(source: str, expected: Any) -> None:
    assert run(source, input={"a": 1}) == expected


@pytest.mark.parametrize(
    "source",
    [
        "lookup(1)['x']",
        "(await lookup(1))['x']",
        "call = lookup\ncall(1)['x']",
        "call = lookup\n(await call(1))['x']",
        "r = await lookup(1)\nr['x']",
        "def f(i):\n    return lookup(i)\nf(1)['x']",
        "def f(i):\n    return lookup(i)\n(await f(1))['x']",
        "f = lambda i: lookup(i)\n(await f(1))['x']",
        "async def f(i):\n    return await lookup(i)\n(await f(1))['x']",
        "task = lookup(1)\n(await task)['x']",
        "int(f\"{lookup(1)['x']}\")",
        "int(f\"{(await lookup(1))['x']}\")",
        "eval('lookup(1)')['x']",
        "import asyncio\n(await asyncio.gather(lookup(1)))[0]['x']",
    ],
)
def test_call_may_be_awaited_or_not(source: str) -> None:
    tools = Tools()

    assert run(source, tools) == 1
    assert tools.asked == {0: ("lookup", [1], {})}


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nr = await asyncio.gather(*[lookup(i) for i in range(3)])",
        "from asyncio import gather\nts = [lookup(i) for i in range(3)]\nr = await gather(*ts)",
        "import asyncio\nts = []\nfor i in range(3):\n    ts.append(lookup(i))\n"
        "r = await asyncio.gather(*ts)",
        "import asyncio\nd = {i: lookup(i) for i in range(3)}\n"
        "r = await asyncio.gather(*d.values())",
        "import asyncio\nd = {}\nfor i in range(3):\n    d[i] = lookup(i)\n"
        "r = await asyncio.gather(*d.values())",
        "ts = [lookup(i) for i in range(3)]\nr = [await t for t in ts]",
        "r = [lookup(i) for i in range(3)]",
        "r = []\nfor i in range(3):\n    r.append(await lookup(i))",
    ],
)
def test_several_calls_work_however_they_are_gathered(source: str) -> None:
    assert run(source + "\n[a['x'] for a in r]") == [0, 1, 2]


CHAINS = (
    "import asyncio\n"
    "async def chain(i):\n"
    "    a = await lookup(i)\n"
    "    b = await lookup(a['x'] + 10)\n"
    "    return b['x']\n"
    "await asyncio.gather(*[chain(i) for i in range(5)])"
)


def test_positions_are_the_same_whatever_order_tools_answer_in() -> None:
    runs = [Tools(delays=seed) for seed in range(4)]
    results = [run(CHAINS, tools) for tools in runs]

    assert results == [[10, 11, 12, 13, 14]] * 4
    assert all(sorted(tools.asked) == list(range(10)) for tools in runs)
    assert all(tools.asked == runs[0].asked for tools in runs)


def test_recorded_outcomes_give_the_same_result_and_no_live_call() -> None:
    first = Tools(delays=1)
    result = run(CHAINS, first)
    for known in range(11):
        recorded = {k: v for k, v in first.outcomes.items() if k < known}
        again = Tools(recorded, delays=known)

        assert run(CHAINS, again) == result
        assert again.live == 10 - known


def test_refused_calls_take_no_position() -> None:
    source = (
        "for bad in [lambda: open('x'), lambda: absent(1), lambda: lookup({1})]:\n"
        "    try:\n"
        "        bad()\n"
        "    except Exception:\n"
        "        pass\n"
        "lookup(5)"
    )
    tools = Tools()
    run(source, tools)

    assert tools.asked == {0: ("lookup", [5], {})}


def test_tools_of_a_gather_run_side_by_side() -> None:
    together = 0

    async def call(position: int, tool: str, args: Any, kwargs: Any) -> Any:
        nonlocal together
        together += 1
        while together < 3:  # ends only when all three are in flight
            await asyncio.sleep(0)
        return position

    source = "import asyncio\nawait asyncio.gather(lookup(), lookup(), lookup())"
    assert run(source, call) == [0, 1, 2]


@pytest.mark.parametrize("called", ["broken", "await broken"])
def test_tool_error_can_be_caught_by_the_code(called: str) -> None:
    source = f"try:\n    {called}('ValueError')\nexcept ValueError as error:\n    r = str(error)\nr"

    assert run(source) == "no luck"


def test_error_of_an_unknown_type_keeps_its_name_in_the_text() -> None:
    error = fail("x = 1\nbroken('HTTPError')")

    assert (error.kind, str(error.fields["message"])) == (
        "raised",
        "RuntimeError: HTTPError: no luck",
    )
    assert 'File "<code>", line 2' in error.display


def test_journal_error_ends_the_run_and_is_not_caught_by_the_code() -> None:
    async def call(position: int, tool: str, args: Any, kwargs: Any) -> Any:
        raise ReplayMismatchError(session_id="s", position="0", recorded="a", asked="b")

    for source in ("lookup()", "await lookup()"):
        with pytest.raises(ReplayMismatchError):
            run(f"try:\n    {source}\nexcept BaseException:\n    pass", call)


def test_call_that_is_never_awaited_is_finished_and_its_result_refused() -> None:
    tools = Tools(delays=2)

    async def call(*args: Any) -> Any:
        return await tools(*args)

    with pytest.raises(SandboxError, match="never awaited"):
        run("task = lookup(1)\nif False:\n    await task\ntask", call)
    assert tools.outcomes == {0: {"x": 1}}


@pytest.mark.parametrize(
    ("source", "kind", "text"),
    [
        ("def f(:\n  1", "syntax", "line 1"),
        ("class B(ValueError):\n    pass", "syntax", "does not yet support"),
        ("(" * 400 + ")" * 400, "syntax", ""),
        ("'\0'", "syntax", "null bytes"),
        ("x = 1\n1 / 0", "raised", "ZeroDivisionError: division by zero"),
        ("absent(1)", "raised", "name 'absent' is not defined"),
        ("absent", "raised", "name 'absent' is not defined"),
        ("def f(n):\n    return f(n + 1)\nf(0)", "raised", "RecursionError"),
        ("while True:\n    pass", "time_limit", "0.3 s"),
        (
            "try:\n    while True:\n        pass\nexcept BaseException:\n    1",
            "time_limit",
            "more than 0.3 s",
        ),
        ("'x' * 10**9", "memory_limit", "33554432 bytes"),
        ("9**9**9", "memory_limit", "33554432 bytes"),
        ("x = []\nwhile True:\n    x.append('a' * 1000)", "memory_limit", "memory"),
        ("print('a' * 100_000)", "output_limit", "65536 bytes"),
        ("#" * 300_000, "syntax", "at most 262144"),
    ],
)
def test_failures_are_typed(source: str, kind: str, text: str) -> None:
    error = fail(source)

    assert error.kind == kind
    assert text in str(error)


def test_call_limit_holds_at_the_limit_and_one_beyond() -> None:
    limits = SandboxLimits(suspensions=20)

    assert run("for i in range(20):\n    lookup(i)\n'done'", limits=limits) == "done"
    assert fail("for i in range(21):\n    lookup(i)", limits=limits).kind == "call_limit"


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("(1, 2)", "$"),
        ("{'a': [{1}]}", "$.a[0]"),
        ("{1: 2}", "$"),
        ("[b'x']", "$[0]"),
        ("float('nan')", "$"),
        ("{'r': range(3)}", "$.r"),
        ("lambda: 1", "$"),
        ("[lookup]", "$[0]"),
        ("class A:\n    pass\n[A]", "$[0]"),
        ("class A:\n    pass\nA()", "$"),
        ("{'a': 1}.keys()", "$"),
        ("...", "$"),
        ("len", "$"),
        ("a = []\na.append(a)\na", "$[0]"),
    ],
)
def test_result_that_is_no_json_is_refused_with_its_path(source: str, path: str) -> None:
    error = fail(source)

    assert error.kind == "result"
    assert f"the value at {path} can't be recorded" in str(error)


def test_text_that_only_looks_odd_is_a_result() -> None:
    texts = ["<p>hello</p>", "range", "lookup", "<coroutine", "<b>function</b>"]

    assert run("input", input=texts) == texts


@pytest.mark.parametrize("module", ["os", "sys", "time", "random", "socket", "pathlib", "numpy"])
def test_other_imports_are_refused_by_name(module: str) -> None:
    tools = Tools()

    with pytest.raises(SandboxError, match=f"import of '{module}' at line 2"):
        run(f"lookup(1)\nimport {module}", tools)
    assert tools.live == 0


@pytest.mark.parametrize(
    "source",
    [
        "open('/etc/passwd').read()",
        "import asyncio\nawait asyncio.sleep(0.01)",
        "exec('import os')\neval('os.getenv(\"PATH\")')",
        "exec('import time')\neval('time.sleep(1)')",
        "exec('import pathlib')\neval('pathlib.Path(\"/\").exists()')",
        "exec('import socket')",
        "__import__('os')",
        "().__class__.__bases__[0].__subclasses__()",
    ],
)
def test_nothing_outside_is_reached(source: str) -> None:
    assert fail(source).kind == "raised"


def test_clock_and_randomness_are_fixed_per_attempt() -> None:
    source = (
        "import datetime\nexec('import random, time')\n"
        "[str(datetime.datetime.now()), eval('time.time()'), eval('random.random()')]"
    )
    first, second, other = run(source), run(source), run(source, seed=b"other")

    assert first == second
    assert first[:2] == ["2026-01-02 03:04:05.000678", 1767323045.000678]
    assert first[2] != other[2]


def test_print_is_captured_also_when_the_code_fails() -> None:
    printed: list[str] = []
    run("print('one')", on_output=printed.append)
    fail("print('two')\n1 / 0", on_output=printed.append)

    assert printed == ["one\n", "two\n"]


def test_cancelling_ends_the_calls_in_flight() -> None:
    async def scenario() -> bool:
        entered, cancelled = asyncio.Event(), asyncio.Event()

        async def call(position: int, tool: str, args: Any, kwargs: Any) -> Any:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        task = asyncio.create_task(
            run_code("await lookup()", input=0, tools=["lookup"], call=call, seed=b"", clock_us=0)
        )
        await asyncio.wait_for(entered.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return cancelled.is_set()

    assert asyncio.run(scenario())


def test_one_pool_serves_several_bodies_and_keeps_nothing_between() -> None:
    async def scenario() -> list[Any]:
        results: list[Any] = []
        async with sandbox.open_pool() as pool:
            for source in ("x = 1\nx", "while True:\n    pass", "x"):
                try:
                    results.append(
                        await run_code(
                            source,
                            input=0,
                            tools=[],
                            call=Tools(),
                            seed=b"",
                            clock_us=0,
                            limits=QUICK,
                            pool=pool,
                        )
                    )
                except SandboxError as error:
                    results.append(error.kind)
        return results

    assert asyncio.run(scenario()) == [1, "time_limit", "raised"]


def test_body_runs_without_setpriv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)

    assert run("1 + 1") == 2


KILLED_PARENT = """
import asyncio
from planaria.workers.sandbox import SandboxLimits, run_code
async def call(*asked):
    print("ready", flush=True)
asyncio.run(run_code("lookup()\\nwhile True:\\n    pass", input=0, tools=["lookup"], call=call,
                     seed=b"", clock_us=0, limits=SandboxLimits(execution_seconds=50)))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_spinning_interpreter_dies_with_its_killed_parent() -> None:
    command = [sys.executable, "-c", KILLED_PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        workers = psutil.Process(parent.pid).children(recursive=True)
        deadline = time.monotonic() + 20
        while workers[0].cpu_times().user < 0.1 and time.monotonic() < deadline:
            pass  # a worker that isn't spinning yet would end by the EOF of its pipe
        descriptors = [os.pidfd_open(worker.pid) for worker in workers]
        os.kill(parent.pid, signal.SIGKILL)
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, select.POLLIN)
        ended = poller.poll(10_000)
        for descriptor in descriptors:
            os.close(descriptor)

    assert len(workers) == len(ended) == 1
