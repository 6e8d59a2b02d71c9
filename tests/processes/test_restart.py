"""Ends and starts of the supervisor: signals, locks, take-over; runs go on with what is pinned."""

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import World, finish, judge, wait_gone, wait_until, worlds
from process_programs import CLASSES, MODEL, PREAMBLE

from planaria.protocol.errors import EXIT_COMMIT_IO, EXIT_DATA_DIRECTORY, SupervisorUnavailableError
from planaria.supervisor.data_directory import DataDirectory

pytestmark = pytest.mark.slow

GATED = (
    PREAMBLE
    + """
GATE = "PLANARIA_TEST_GATE"

@tool(effect="idempotent")
def wait_open() -> str:
    note("wait_open")
    while not os.path.exists(os.environ[LEDGER] + ".open"):
        time.sleep(0.005)
    note("opened")
    return "old"

@tool(effect="idempotent")
def say(word: str) -> str:
    note("say")
    return word + " code"

flow = Workflow("gated", tools=[wait_open, say], env=[LEDGER], steps=[
    call("a", wait_open), call("b", say, args={"word": "{{ steps.a.output }}"}, needs=["a"])])
"""
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from worlds(tmp_path)


def start_gated(world: World) -> Any:
    """Starts a supervisor and a run that waits in its first tool; returns its client."""
    world.start()
    client = world.client(start_if_missing=False)
    client.start(world.load(GATED), run_id="r")
    world.wait_ledger("wait_open")
    return client


def open_gate(world: World) -> None:
    Path(f"{world.ledger_path}.open").touch()


def kill_newest(world: World) -> None:
    world.supervisors[-1].kill()
    assert -signal.SIGKILL == world.wait_exit()


def count(world: World, tool: str) -> int:
    return sum(1 for one in world.executions() if one["tool"] == tool)


def test_open_run_goes_on_with_the_code_it_was_admitted_with(world: World) -> None:
    start_gated(world)
    project = world.folder / "project" / "flow.py"
    project.write_text(GATED.replace(" code", " NEW code") + "\nraise RuntimeError('new')\n")
    kill_newest(world)
    open_gate(world)
    world.start()

    result = world.client(start_if_missing=False).wait("r", timeout=25)

    assert "old code" == result.output


def test_open_run_goes_on_when_its_project_is_gone(world: World) -> None:
    start_gated(world)
    (world.folder / "project" / "flow.py").unlink()
    kill_newest(world)
    open_gate(world)
    world.start()

    assert "old code" == world.client(start_if_missing=False).wait("r", timeout=25).output


def test_killed_supervisor_takes_its_processes_with_it(world: World) -> None:
    start_gated(world)
    pids = [pid for pid, _ in world.find_processes()]
    kill_newest(world)

    assert len(pids) >= 3  # itself, a fork server, a child
    assert all(wait_gone(pid) for pid in pids)
    world.start()  # which removes the socket files that nobody could


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_lets_the_effect_in_flight_end(world: World, signum: int) -> None:
    client = start_gated(world)
    world.supervisors[-1].send_signal(signum)
    wait_until(lambda: client.ping()["isStopping"], "it is stopping")
    open_gate(world)

    assert 0 == world.wait_exit()
    assert "harness.tool_call.succeeded" in [e["type"] for e in world.events()]
    world.start()
    assert "old code" == world.client(start_if_missing=False).wait("r", timeout=25).output
    assert 1 == count(world, "wait_open")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_it_at_once_and_the_run_goes_on_later(world: World, signum: int) -> None:
    client = start_gated(world)
    world.supervisors[-1].send_signal(signum)
    wait_until(lambda: client.ping()["isStopping"], "it is stopping")
    world.supervisors[-1].send_signal(signum)

    assert 0 == world.wait_exit()
    assert [] == [pid for pid, _ in world.find_processes() if not wait_gone(pid)]
    open_gate(world)
    world.start()
    assert "old code" == world.client(start_if_missing=False).wait("r", timeout=25).output
    assert 2 == count(world, "wait_open")


def test_signal_to_an_idle_supervisor_ends_it_without_a_word(world: World) -> None:
    world.start()

    assert 0 == world.end(signal.SIGINT)
    assert "Traceback" not in world.log()
    assert not DataDirectory(world.directory).supervisor_json.exists()


def test_end_of_the_terminal_ends_nothing(world: World) -> None:
    client = start_gated(world)
    world.supervisors[-1].send_signal(signal.SIGHUP)
    open_gate(world)

    assert "old code" == client.wait("r", timeout=25).output


def test_second_supervisor_is_refused_and_names_the_first(world: World) -> None:
    facts = world.start()
    assert facts is not None

    assert world.start() is None
    assert EXIT_DATA_DIRECTORY == world.wait_exit()
    assert "DataDirLockedError" == world.refusal["class"]
    assert f"pid {facts['pid']}" in world.refusal["message"]
    assert facts["pid"] == world.client(start_if_missing=False).ping()["pid"]


def test_stopped_supervisor_is_refused_to_others_until_one_takes_over(world: World) -> None:
    client = start_gated(world)
    first = world.supervisors[-1]
    client.close()
    first.send_signal(signal.SIGSTOP)

    assert world.start() is None
    facts = world.start("--take-over")

    assert facts is not None
    assert -signal.SIGKILL == first.wait(5)
    open_gate(world)
    assert "old code" == world.client(start_if_missing=False).wait("r", timeout=25).output


def test_lock_file_of_a_dead_process_keeps_nobody_out(world: World) -> None:
    start_gated(world)
    kill_newest(world)
    lock = DataDirectory(world.directory).supervisor_lock
    # As if the pid had been given to another process since: this one.
    text = lock.read_text().replace(str(world.supervisors[-1].pid), str(os.getpid()))
    lock.write_text(text)
    open_gate(world)

    assert world.start("--take-over") is not None
    assert "old code" == world.client(start_if_missing=False).wait("r", timeout=25).output


def test_sockets_of_killed_fork_servers_are_removed_by_the_next_supervisor(world: World) -> None:
    world.start(faults=world.kill_point("S15"))
    client = world.client(start_if_missing=False)
    client.start(world.load(MODEL), run_id="r")
    client.wait("r", timeout=25)
    client.close()
    world.end()
    left = {path.name for path in world.directory.glob("fork-*")}
    world.start()

    assert "fork-heavy-2" in left
    assert ["fork-light-1"] == [path.name for path in world.directory.glob("fork-*")]


def test_restart_changes_nothing_of_an_ended_run(world: World) -> None:
    world.start()
    client = world.client(start_if_missing=False)
    client.start(world.load(CLASSES), run_id="r")
    outcome = finish(client)
    before = world.events()
    world.end()
    world.start()

    assert before == world.events()
    assert CLASSES.output == world.client(start_if_missing=False).wait("r", timeout=5).output
    judge(world, outcome)


def test_second_restart_adds_only_its_own_processes_end(world: World) -> None:
    start_gated(world)
    for _ in range(2):
        kill_newest(world)
        world.start()
        world.wait_ledger("wait_open", len(world.supervisors))
    open_gate(world)

    assert "old code" == world.client(start_if_missing=False).wait("r", timeout=25).output
    kinds = [event["type"] for event in world.events()]
    assert 2 == kinds.count("ProcessExited")
    assert 1 == kinds.count("RunStarted")


@pytest.mark.parametrize("nth", [2, 7])
def test_failed_commit_ends_the_supervisor_without_an_answer(world: World, nth: int) -> None:
    world.start(faults=world.kill_point("S5", nth, action="commit_error"))
    client = world.client(start_if_missing=False)
    workflow = world.load(CLASSES)

    with pytest.raises(SupervisorUnavailableError):
        client.start(workflow, run_id="r")
        client.wait("r", timeout=25)

    assert EXIT_COMMIT_IO == world.wait_exit()
    world.start()
    again = world.client(start_if_missing=False)
    again.start(workflow, run_id="r")  # joins it, whether it was recorded or not
    judge(world, finish(again))


LARGE = (
    PREAMBLE
    + """
@tool(effect="idempotent")
def make() -> str:
    note("make")
    return "x" * 700_000

flow = Workflow("large", tools=[make], env=[LEDGER], steps=[call("a", make)])
"""
)
FILE_BYTES_MAX = 600_000  # a log fits, but no value of the tool above and no probe


def test_value_that_the_disk_refuses_ends_the_supervisor_and_not_the_run(world: World) -> None:
    world.start()
    client = world.client(start_if_missing=False)
    workflow = world.load(LARGE)
    for pid, _ in world.find_processes():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, resource.RLIM_INFINITY))
    with pytest.raises(SupervisorUnavailableError):
        client.start(workflow, run_id="r")
        client.wait("r", timeout=25)
    assert EXIT_COMMIT_IO == world.wait_exit()

    world.start()
    result = world.client(start_if_missing=False).wait("r", timeout=25)

    assert 700_000 == len(result.output)
    assert 1 == len({one["key"] for one in world.executions()})
    assert 2 == count(world, "make")


GROUP = GATED.replace('return "old"', 'return "x" * 100_000').replace(
    'call("b", say, args={"word": "{{ steps.a.output }}"}, needs=["a"])])',
    'parallel("g", items=[1, 2, 3, 4], steps=[call("c", wait_open)])])',
)


def test_value_of_the_supervisor_that_the_disk_refuses_ends_it_the_same_way(world: World) -> None:
    world.start()
    client = world.client(start_if_missing=False)
    client.start(world.load(GROUP), run_id="r")
    wait_until(lambda: count(world, "wait_open") == 5, "five tools wait")
    resource.prlimit(world.supervisors[-1].pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    open_gate(world)
    with pytest.raises(SupervisorUnavailableError):
        client.wait("r", timeout=25)
    assert EXIT_COMMIT_IO == world.wait_exit()

    world.start()
    assert world.client(start_if_missing=False).wait("r", timeout=25).output


def test_supervisor_that_a_tool_kills_is_replaced_by_the_client(world: World) -> None:
    source = GATED.replace(
        'note("opened")',
        'count("say") or note("say"); path = f"/proc/{os.getppid()}/stat"; '
        'parent = int(open(path).read().rpartition(")")[2].split()[1]); '
        'count("opened") or (note("opened"), os.kill(parent, 9), time.sleep(20))',
    )
    open_gate(world)
    world.start()
    client = world.client()
    client.start(world.load(source), run_id="r")

    assert "old code" == client.wait("r", timeout=25).output
    assert -signal.SIGKILL == world.wait_exit()
