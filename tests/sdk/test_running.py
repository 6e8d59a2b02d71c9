"""`run` and `arun`: supervisors of their own, runs that are joined, left open and carried on."""

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria import Client, Workflow, arun, run
from planaria.definition import load_target
from planaria.discovery import is_held, read_facts
from planaria.protocol.errors import (
    CapabilityDriftError,
    InputSchemaError,
    RunFailedError,
    RunInputMismatchError,
    WaitTimeoutError,
)

HERE = Path(__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("running")
    (folder / "pyproject.toml").write_text("")
    return Path(shutil.copy(HERE / "sdk_flows.py", folder / "running_flows.py"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def kept(data: Path) -> Iterator[Client]:
    """A client that keeps the supervisor between the calls of a test."""
    with Client(data) as client:
        client.ping()
        yield client


def load(module: Path, name: str) -> Workflow:
    return load_target(f"{module}:{name}")


def is_gone(data: Path) -> bool:
    return read_facts(data) is None and not is_held(data)


def when_started(data: Path, run_id: str, act: threading.Event) -> threading.Thread:
    """Starts a thread that sets `act` once the run's tool has been dispatched."""

    def follow() -> None:
        with Client(data) as client:
            for event in client.events(run_id, follow=True):
                if event["type"] == "harness.tool_call.started":
                    act.set()
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    return thread


def test_run_returns_the_output_and_leaves_no_supervisor(module: Path, data: Path) -> None:
    result = run(load(module, "plain"), 21, data_dir=data)

    assert (42, "completed") == (result.output, result.status)
    assert is_gone(data)


def test_failed_run_leaves_no_supervisor_either(module: Path, data: Path) -> None:
    with pytest.raises(RunFailedError, match="no such row"):
        run(load(module, "failing"), data_dir=data)

    assert is_gone(data)


def test_refused_input_records_nothing(module: Path, kept: Client) -> None:
    with pytest.raises(InputSchemaError, match=r"'plain' doesn't fit its schema: \$: "):
        run(load(module, "plain"), "x", data_dir=kept.directory)

    assert [] == kept.runs()


def test_the_same_run_id_gives_the_recorded_result_with_no_new_event(
    module: Path, kept: Client
) -> None:
    first = run(load(module, "plain"), 4, run_id="run_a", data_dir=kept.directory)
    recorded = list(kept.events("run_a"))

    second = run(load(module, "plain"), 4, run_id="run_a", data_dir=kept.directory)

    assert first == second
    assert recorded == list(kept.events("run_a"))


def test_the_same_run_id_raises_the_recorded_failure(module: Path, kept: Client) -> None:
    texts = []
    for _ in range(2):
        with pytest.raises(RunFailedError) as got:
            run(load(module, "failing"), run_id="run_a", data_dir=kept.directory)
        texts.append(str(got.value))

    assert texts[0] == texts[1]


def test_a_taken_run_id_is_refused_for_another_input_or_definition(
    module: Path, kept: Client
) -> None:
    run(load(module, "plain"), 4, run_id="run_a", data_dir=kept.directory)
    recorded = list(kept.events("run_a"))

    with pytest.raises(RunInputMismatchError, match="'run_a' was admitted with another input"):
        run(load(module, "plain"), 5, run_id="run_a", data_dir=kept.directory)
    with pytest.raises(CapabilityDriftError, match=r"'run_a'.*stepConfigHash: sha256:.* → sha256"):
        run(load(module, "larger"), 4, run_id="run_a", data_dir=kept.directory)

    assert recorded == list(kept.events("run_a"))


def test_run_works_inside_a_running_event_loop(module: Path, data: Path) -> None:
    async def cell() -> int:
        return int(run(load(module, "plain"), 1, data_dir=data).output)

    assert 2 == asyncio.run(cell())


def test_patience_ends_and_the_run_goes_on(module: Path, kept: Client, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flow = load(module, "waiting")

    with pytest.raises(WaitTimeoutError, match="'run_a' had not ended after 0.1 s; it goes on"):
        run(flow, str(flag), run_id="run_a", data_dir=kept.directory, wait_timeout=0.1)
    flag.touch()

    assert "run_a" == kept.wait("run_a", timeout=60).output


def test_the_deadline_of_a_run_fails_it(module: Path, kept: Client, tmp_path: Path) -> None:
    flow = load(module, "waiting")

    with pytest.raises(RunFailedError) as got:
        run(flow, str(tmp_path / "never"), run_id="run_a", data_dir=kept.directory, timeout=0.5)

    assert "timeout" == got.value.cause_code


def test_ctrl_c_leaves_the_run_open_and_says_how_to_carry_on(
    module: Path, kept: Client, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    flow = load(module, "waiting")
    kept.start(flow, str(flag), run_id="run_a")
    started = threading.Event()

    def interrupt() -> None:
        if started.wait(60):
            os.kill(os.getpid(), signal.SIGINT)

    threads = [when_started(kept.directory, "run_a", started), threading.Thread(target=interrupt)]
    threads[1].start()
    with pytest.raises(KeyboardInterrupt) as got:
        run(flow, str(flag), run_id="run_a", data_dir=kept.directory)
    for thread in threads:
        thread.join()

    assert "run 'run_a' is left open" in str(got.value)
    assert f"planaria resume run_a --data-dir {kept.directory}" in str(got.value)
    flag.touch()
    assert "run_a" == run(flow, str(flag), run_id="run_a", data_dir=kept.directory).output


def test_several_aruns_go_on_at_once(module: Path, data: Path) -> None:
    flow = load(module, "plain")

    async def several() -> list[int]:
        results = await asyncio.gather(*(arun(flow, n, data_dir=data) for n in range(3)))
        return [result.output for result in results]

    assert [0, 2, 4] == asyncio.run(several())
    assert is_gone(data)


def test_a_cancelled_arun_leaves_the_run_open_and_says_so(
    module: Path, kept: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flag = tmp_path / "flag"
    flow = load(module, "waiting")
    kept.start(flow, str(flag), run_id="run_a")
    started = threading.Event()

    async def give_up() -> None:
        waiting = asyncio.create_task(
            arun(flow, str(flag), run_id="run_a", data_dir=kept.directory)
        )
        await asyncio.to_thread(started.wait, 60)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    follower = when_started(kept.directory, "run_a", started)
    with caplog.at_level(logging.WARNING, "planaria"):
        asyncio.run(give_up())
    follower.join()

    assert "running" == kept.status("run_a")["status"]
    assert ["run 'run_a' is left open"] == [text[:24] for text in caplog.messages]
    flag.touch()
    assert "run_a" == kept.wait("run_a", timeout=60).output


PROMPT = """
from pydantic import BaseModel
from planaria import Workflow, call, run, tool

class Size(BaseModel):
    width: int
    height: int = 2

@tool(effect="read")
def area(size: Size) -> int:
    return size.width * size.height

flow = Workflow("prompt", input=Size, output=int, tools=[area],
                steps=[call("area", area, args={"size": "{{ input }}"})])
result = run(flow, Size(width=3), run_id="run_a", data_dir=DATA)
print(result.output)
"""


def test_a_workflow_without_a_file_runs(data: Path) -> None:
    code = f"DATA = {str(data)!r}\n{PROMPT}"

    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )

    assert ("6\n", "", 0) == (ended.stdout, ended.stderr, ended.returncode)
    assert is_gone(data)


def test_a_script_without_a_guard_runs_once(data: Path, tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(f"DATA = {str(data)!r}\n{PROMPT}")

    ended = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=120
    )

    assert ("6\n", "", 0) == (ended.stdout, ended.stderr, ended.returncode)
    with Client(data) as client:
        assert ["run_a"] == [row["runId"] for row in client.runs()]
