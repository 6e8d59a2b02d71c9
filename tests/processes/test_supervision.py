"""What tools and user modules can do to their process, and that nobody else notices.

One supervisor serves all of it: what a test leaves behind would show in those that follow.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import World, read_proc, wait_gone, wait_until, worlds
from process_programs import PREAMBLE

from planaria.client import Client
from planaria.definition import AGENT_LIBRARY
from planaria.protocol.errors import RunFailedError
from planaria.supervisor.data_directory import DataDirectory
from planaria.supervisor.event_reader import EventReader

pytestmark = pytest.mark.slow

HEARTBEAT_TIMEOUT_MS = 2_000

HAZARDS = (
    PREAMBLE
    + """
import asyncio, ctypes

def die(signum):
    os.kill(os.getpid(), signum)

def print_much():
    for n in range(5_000):
        print("a line that is printed", n)
    os.write(1, bytes(range(256)) * 40)
    os.write(2, b"no newline at the end")

def fork():
    pid = os.fork()
    assert pid != 0, "the copy goes on"
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def start(more="pass"):
    code = f"import os, time; {more}; open(os.environ['READY'], 'w').close(); time.sleep(1000)"
    ready = os.environ[LEDGER] + f".ready{os.getpid()}"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True,
                               env={**os.environ, "READY": ready})
    while not os.path.exists(ready):
        time.sleep(0.005)
    note("started", child=process.pid)

def start_and_die():
    start()
    die(signal.SIGKILL)

HAZARDS = {
    "exit_0": lambda: os._exit(0),
    "exit_3": lambda: os._exit(3),
    "exit_74": lambda: os._exit(74),  # says that the disk is full; it isn't
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "sigterm": lambda: die(signal.SIGTERM),
    "execute": lambda: os.execv("/bin/true", ["true"]),
    "print": print_much,
    "fork": fork,
    "start": start,
    "start_and_die": start_and_die,
    "daemon": lambda: start("os.fork() and os._exit(0); os.setsid()"),
    "stop": lambda: die(signal.SIGSTOP),
    "hold_interpreter": lambda: sum(range(10**13)),
    "sleep": lambda: time.sleep(3),
    "close_descriptors": lambda: os.closerange(3, 256),
    "close_output": lambda: (os.close(1), os.close(2)),
    "kill_server": lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(30)),
}

@tool(effect="idempotent")
def act(do: str) -> str:
    again = count(do)
    note(do)
    if not again:
        if do in ("raise_exit", "raise_interrupt"):
            raise SystemExit(0) if do == "raise_exit" else KeyboardInterrupt
        HAZARDS.get(do, lambda: None)()
    if do == "always":
        os._exit(0)
    return f"{do} is over"

@tool(effect="idempotent")
async def block_loop() -> str:
    note("block_loop")
    time.sleep(3)
    return "over"

flow = Workflow("hazards", tools=[act, block_loop], env=[LEDGER], steps=[
    decision("which", cases=[("{{ input.do == 'block_loop' }}", "b")], default="a"),
    call("a", act, args={"do": "{{ input.do }}"}),
    call("b", block_loop),
])
"""
)
DIES = {
    "exit_0": {"exitCode": 0},
    "exit_3": {"exitCode": 3},
    "exit_74": {"exitCode": 74},
    "segfault": {"signal": signal.SIGSEGV},
    "abort": {"signal": signal.SIGABRT},
    "sigterm": {"signal": signal.SIGTERM},
    "execute": {"exitCode": 0},
    "start_and_die": {"signal": signal.SIGKILL},
}
LIVES = ["print", "fork", "start", "daemon", "close_output"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    for world in worlds(tmp_path_factory.mktemp("world")):
        world.start("--heartbeat-timeout-ms", str(HEARTBEAT_TIMEOUT_MS), "--children", "6")
        yield world


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    supervisor = world.supervisors[0]
    client = world.client(start_if_missing=False)
    yield client
    assert supervisor.poll() is None, world.log()
    client.close()
    wait_until(lambda: not find_strays(world), f"strays end: {find_strays(world)}")


@pytest.fixture(scope="module")
def hazards(world: World) -> Any:
    return world.load(HAZARDS, "hazards")


def find_strays(world: World) -> list[str]:
    """Returns the processes that are neither the supervisor, a fork server nor a known child."""
    with Client(world.directory, start_if_missing=False) as client:
        known = {process["pid"] for process in client.processes()}
    return [
        f"{pid}: {command}"
        for pid, command in world.find_processes()
        if pid not in known
        and pid != world.supervisors[0].pid
        and not read_proc(str(pid), "comm").startswith(b"planaria-")
    ]


def ends(world: World, run_id: str) -> list[dict[str, Any]]:
    exits = [e["payload"] for e in world.events(run_id) if e["type"] == "ProcessExited"]
    for payload in exits:
        del payload["sessionId"], payload["incarnation"]
    return exits


def do(client: Client, hazards: Any, name: str) -> Any:
    client.start(hazards, {"do": name}, run_id=name)
    return client.wait(name, timeout=25).output


@pytest.mark.parametrize("hazard", DIES)
def test_tool_that_ends_its_process_is_called_again(
    world: World, client: Client, hazards: Any, hazard: str
) -> None:
    assert f"{hazard} is over" == do(client, hazards, hazard)
    assert [{"reason": "crashed", **DIES[hazard]}] == ends(world, hazard)


@pytest.mark.parametrize("hazard", LIVES)
def test_tool_that_leaves_its_process_alive_is_called_once(
    world: World, client: Client, hazards: Any, hazard: str
) -> None:
    assert f"{hazard} is over" == do(client, hazards, hazard)
    assert [] == ends(world, hazard)


@pytest.mark.parametrize("hazard", ["stop", "hold_interpreter"])
def test_process_without_a_sign_of_life_is_replaced(
    world: World, client: Client, hazards: Any, hazard: str
) -> None:
    assert f"{hazard} is over" == do(client, hazards, hazard)
    assert [{"reason": "heartbeat_timeout", "signal": 9}] == ends(world, hazard)


@pytest.mark.parametrize("hazard", ["sleep", "block_loop"])
def test_slow_tool_is_no_hung_process(
    world: World, client: Client, hazards: Any, hazard: str
) -> None:
    assert "over" in do(client, hazards, hazard)
    assert [] == ends(world, hazard)


@pytest.mark.parametrize("hazard", ["raise_exit", "raise_interrupt"])
def test_tool_that_raises_what_ends_programs_ends_its_run_at_most(
    world: World, client: Client, hazards: Any, hazard: str
) -> None:
    try:
        do(client, hazards, hazard)
    except RunFailedError as error:
        assert "step_failed" == error.fields["cause_code"]


def test_process_whose_descriptors_are_closed_is_replaced(
    world: World, client: Client, hazards: Any
) -> None:
    assert "close_descriptors is over" == do(client, hazards, "close_descriptors")


def test_killed_fork_server_is_replaced(world: World, client: Client, hazards: Any) -> None:
    assert "kill_server is over" == do(client, hazards, "kill_server")
    # The spares die with their server; one may have been given the session before that is seen.
    assert 1 <= len(ends(world, "kill_server")) <= 3


def test_stopped_fork_server_is_replaced(world: World, client: Client, hazards: Any) -> None:
    server = wait_until(lambda: find_server(world), "the fork server is there")
    os.kill(server, signal.SIGSTOP)

    for number in range(3):  # more than there are blank processes
        assert (
            "none is over" == client.wait(start_other(client, hazards, number), timeout=25).output
        )

    wait_until(lambda: find_server(world) not in (None, server), "another one is there")
    assert wait_gone(server)


def find_server(world: World) -> int | None:
    """Returns the pid of the fork server that the children of these runs come from."""
    # A workflow that is made where the agent library is loaded gets children that have it too.
    kind = b"planaria-heavy" if AGENT_LIBRARY in sys.modules else b"planaria-light"
    for pid, _ in world.find_processes():
        if read_proc(str(pid), "comm").startswith(kind):
            return pid
    return None


def start_other(client: Client, hazards: Any, number: int) -> str:
    return client.start(hazards, {"do": "none"}, run_id=f"other{number}{time.monotonic_ns()}")


def test_step_that_always_ends_its_process_fails_and_no_other_run_notices(
    world: World, client: Client, hazards: Any
) -> None:
    client.start(hazards, {"do": "always"}, run_id="always")
    outputs = [
        client.wait(start_other(client, hazards, number), timeout=25).output for number in range(3)
    ]

    with pytest.raises(RunFailedError) as caught:
        client.wait("always", timeout=25)

    assert "process_crashed" == caught.value.fields["cause_code"]
    assert "a" == caught.value.fields["failed_step_path"]
    assert ["none is over"] * 3 == outputs
    assert [{"reason": "crashed", "exitCode": 0}] * 6 == ends(world, "always")
    instants = read_instants(world, "always", "ProcessStarted")
    pauses = [after - before for before, after in zip(instants, instants[1:], strict=False)]
    assert all(pause >= 50_000 * 2**n for n, pause in enumerate(pauses[1:])), pauses


def read_instants(world: World, run_id: str, kind: str) -> list[int]:
    reader = EventReader.open(DataDirectory(world.directory).database)
    try:
        return [event.mono for _, event in reader.read_run(run_id) if event.type == kind]
    finally:
        reader.close()


MODULE = (
    PREAMBLE
    + """
if "PLANARIA_PROCESS" in os.environ:
    ACT

@tool(effect="read")
def say() -> str:
    return "said"

flow = Workflow("module", tools=[say], env=[LEDGER], steps=[call("a", say)])
"""
)


def test_module_that_fails_at_its_import_fails_the_step(world: World, client: Client) -> None:
    flow = world.load(MODULE.replace("ACT", "1 / 0"), "failing")
    client.start(flow, run_id="failing")

    with pytest.raises(RunFailedError, match="division by zero") as caught:
        client.wait("failing", timeout=25)

    assert "a" == caught.value.fields["failed_step_path"]
    assert [] == ends(world, "failing")


def test_module_that_sleeps_at_its_import_delays_its_own_run_only(
    world: World, client: Client, hazards: Any
) -> None:
    flow = world.load(MODULE.replace("ACT", "time.sleep(3)"), "sleeping")
    client.start(flow, run_id="sleeping")
    other = client.wait(start_other(client, hazards, 9), timeout=25)

    assert "none is over" == other.output
    assert "running" == client.status("sleeping")["status"]
    assert "said" == client.wait("sleeping", timeout=25).output
    assert [] == ends(world, "sleeping")


def test_module_that_ends_its_process_at_import_fails_as_a_crash(
    world: World, client: Client
) -> None:
    flow = world.load(MODULE.replace("ACT", "os._exit(0)"), "exiting")
    client.start(flow, run_id="exiting")

    with pytest.raises(RunFailedError) as caught:
        client.wait("exiting", timeout=25)

    assert "process_crashed" == caught.value.fields["cause_code"]


def test_child_killed_from_outside_is_replaced(world: World, client: Client) -> None:
    source = MODULE.replace('return "said"', 'note("say"); time.sleep(0.3); return "said"')
    client.start(world.load(source.replace("ACT", "pass"), "killed"), run_id="killed")

    os.kill(world.wait_ledger("say")["pid"], signal.SIGKILL)

    assert "said" == client.wait("killed", timeout=25).output
    assert [{"reason": "crashed", "signal": 9}] == ends(world, "killed")


def test_supervisor_log_holds_no_traceback(world: World) -> None:
    assert "Traceback" not in world.log(), world.log()


def test_no_fork_server_left_its_socket(world: World) -> None:
    sockets = [path for path in Path(world.directory).rglob("*") if path.is_socket()]
    kinds = [path.name.rsplit("-", 1)[0] for path in sockets]  # fork-light-1, fork-light-2, …

    assert len(set(kinds)) == len(kinds), sockets
