"""A real supervisor on a data directory of its own, a ledger outside it, and what must hold."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judging import LOOP_ID, begin, judge_roles
from process_programs import CLASSES, Program

from planaria.client import Client, RunResult
from planaria.definition import load_target
from planaria.discovery import supervisor_command
from planaria.protocol.errors import InterruptedEffectError, PlanariaError
from planaria.protocol.ids import derive_id
from planaria.supervisor.faults import VARIABLE as FAULTS_VARIABLE
from planaria.supervisor.offline import open_log
from planaria.supervisor.verify import verify_directory

LEDGER_VARIABLE = "PLANARIA_TEST_LEDGER"
DEADLINE_SECONDS = 25.0  # for two cores that other tests use too
END_SECONDS = 8.0


class World:
    """A data directory, the supervisors that were started on it, and the ledger of its tools."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / "data"
        self.ledger_path = folder / "ledger"
        self.kills_path = folder / "kills"
        self.supervisors: list[subprocess.Popen[bytes]] = []
        self.log_path = folder / "supervisor.log"
        self.refusal: dict[str, Any] = {}  # what the last one that didn't start has said
        self._clients: list[Client] = []
        os.environ[LEDGER_VARIABLE] = str(self.ledger_path)

    # -- supervisors -------------------------------------------------------------------------

    def start(self, *arguments: str, faults: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Starts a supervisor; returns its facts when it is ready, None if it has ended."""
        environment = dict(os.environ)
        if faults is not None:
            environment[FAULTS_VARIABLE] = json.dumps(faults)
        with self.log_path.open("ab") as log:
            process = subprocess.Popen(
                [*supervisor_command("serve", str(self.directory), "--announce"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.supervisors.append(process)
        assert process.stdout is not None
        line = b""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, left))
            assert ready, f"no supervisor within {DEADLINE_SECONDS} s: {self.log()}"
            data = os.read(process.stdout.fileno(), 65_536)
            if not data:
                process.wait(END_SECONDS)
                return None
            line += data
        facts: dict[str, Any] = json.loads(line)
        if "error" in facts:
            self.refusal = facts["error"]
            process.wait(END_SECONDS)
            return None
        return facts

    def kill_point(self, point: str, nth: int = 1, **more: Any) -> dict[str, Any]:
        """Returns the faults that kill the supervisor at a point."""
        return {"point": point, "nth": nth, "ledger": str(self.kills_path), **more}

    def child_point(self, point: str, nth: int = 1, **more: Any) -> dict[str, Any]:
        """Returns the faults that kill a child at a point."""
        return {"child": {"point": point, "nth": nth, "ledger": str(self.kills_path), **more}}

    def client(self, *, start_if_missing: bool = True) -> Client:
        """Returns a client; it is closed at the end."""
        client = Client(self.directory, start_if_missing=start_if_missing)
        self._clients.append(client)
        return client

    def end(self, signum: int = signal.SIGTERM) -> int:
        """Ends the newest supervisor by a signal and returns its exit code."""
        process = self.supervisors[-1]
        if process.poll() is None:
            process.send_signal(signum)
        return self.wait_exit()

    def wait_exit(self) -> int:
        """Returns the exit code of the newest supervisor, once it has ended."""
        return self.supervisors[-1].wait(DEADLINE_SECONDS)

    def log(self) -> str:
        """Returns what the supervisors that were started here have logged."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def kill(self) -> None:
        """Kills the newest supervisor, and with it its processes."""
        self.supervisors[-1].kill()
        assert -signal.SIGKILL == self.wait_exit()

    # -- workflows ---------------------------------------------------------------------------

    def load(self, source: str | Program, name: str = "flow") -> Any:
        """Writes a module and returns its workflow `flow`."""
        project = self.folder / "project"
        project.mkdir(exist_ok=True)
        path = project / f"{name}.py"
        path.write_text(source if isinstance(source, str) else source.source)
        sys.modules.pop(f"{name}__planaria", None)
        return load_target(f"{path}:flow")

    # -- what happened -----------------------------------------------------------------------

    def executions(self) -> list[dict[str, Any]]:
        """Returns what tools have noted, oldest first."""
        return read_notes(self.ledger_path)

    def asks(self) -> list[dict[str, Any]]:
        """Returns what models and `supervise` were asked, oldest first."""
        return read_notes(self.folder / "ledger.asks")

    def mark(self, name: str, text: str = "") -> None:
        """Writes a file that programs look for: `mortal`, or what they wait for."""
        (self.folder / f"ledger.{name}").write_text(text)

    def kills(self) -> list[str]:
        """Returns the planned kills that have happened."""
        return self.kills_path.read_text().splitlines() if self.kills_path.exists() else []

    def events(self, run_id: str = "r") -> list[dict[str, Any]]:
        """Returns a run's events as they stand in the log, also without a supervisor."""
        with open_log(self.directory) as log:
            return list(log.read_events(run_id, 0))

    def all_events(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the events of every run, by its id."""
        with open_log(self.directory) as log:
            run_ids = [row["runId"] for row in log.list_runs(1_000, None)]
            return {run_id: list(log.read_events(run_id, 0)) for run_id in run_ids}

    def wait_asked(self, name: str, count: int = 1) -> dict[str, Any]:
        """Returns the count-th request of a function that notes them, once it is there."""
        return wait_noted(self.asks, "ask", name, count)

    def wait_ledger(self, tool: str, count: int = 1) -> dict[str, Any]:
        """Returns the count-th note of a tool, once it is there."""
        return wait_noted(self.executions, "tool", tool, count)

    # -- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Ends what still runs, then checks that nothing is left and the log is sound."""
        for client in self._clients:
            client.close()
        for process in self.supervisors:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        if self.supervisors and self.wait_exit() < 0:
            # Who is killed can't remove the socket files: its successor does, in every case.
            self.start()
            self.end()
        for process in self.supervisors:
            process.wait(DEADLINE_SECONDS)
            assert process.stdout is not None
            process.stdout.close()
        self.check_end()

    def check_end(self) -> None:
        """Checks that no process and no socket is left, and that the log is sound."""
        left: list[str] = []
        for pid, command in self.find_processes():
            if not wait_gone(pid):
                left.append(f"process {pid}: {command}")
        left += [f"socket {path}" for path in self.folder.rglob("*") if path.is_socket()]
        # A process's last thread lets go of them a moment after its first one has ended.
        wait_until(lambda: not bound_sockets(str(self.folder)), "no socket is bound", END_SECONDS)
        assert not left, "left behind:\n" + "\n".join(left) + "\n" + self.log()
        if (self.directory / "events" / "events.db").exists():
            report = verify_directory(self.directory)
            assert report.is_sound, "\n".join([*report.lines(), self.log()])

    def find_processes(self) -> list[tuple[int, str]]:
        """Returns (pid, command) of the living processes that work for the directory."""
        marker = derive_id("pd_", str(self.directory.resolve())).encode()
        marks = (marker, str(self.directory).encode())
        found: list[tuple[int, str]] = []
        for name in os.listdir("/proc"):
            if not name.isdecimal() or int(name) == os.getpid():
                continue
            command = read_proc(name, "cmdline")
            texts = command + read_proc(name, "environ")
            if any(mark in texts for mark in marks) and b") Z " not in read_proc(name, "stat"):
                found.append((int(name), command.replace(b"\0", b" ").decode(errors="replace")))
        return found


def read_notes(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_noted(
    read: Callable[[], list[dict[str, Any]]], field: str, name: str, count: int
) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        noted = [one for one in read() if one[field] == name]
        return noted[count - 1] if len(noted) >= count else None

    found: dict[str, Any] = wait_until(find, f"{name} was called {count} times")
    return found


def read_proc(pid: str, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def wait_gone(pid: int, seconds: float = END_SECONDS) -> bool:
    """Says whether a process has ended within so many seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def bound_sockets(folder: str) -> list[str]:
    lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    paths = {line.split()[-1] for line in lines[1:] if len(line.split()) == 8}
    return sorted(path for path in paths if path.startswith(folder))


def wait_until(find: Callable[[], Any], what: str, seconds: float = DEADLINE_SECONDS) -> Any:
    """Returns what `find` returns, once that is true; what happens in another process may take."""
    deadline = time.monotonic() + seconds
    while True:
        found = find()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        select.select([], [], [], 0.005)


def probe(path: str) -> bool:
    """Says whether somebody listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
    return True


# -- what must hold of a run and the ledger --------------------------------------------------


def finish(client: Client, run_id: str = "r") -> RunResult | InterruptedEffectError:
    """Returns the result of a run, or that an effect of unknown outcome holds it."""
    try:
        return client.wait(run_id, timeout=DEADLINE_SECONDS)
    except InterruptedEffectError as error:
        return error


def finish_program(client: Client, program: Program) -> RunResult | InterruptedEffectError:
    """Returns the result of what `begin` has started."""
    if program.cycles_max is not None:
        return client.wait_loop(LOOP_ID, timeout=DEADLINE_SECONDS)
    return finish(client)


def judge(
    world: World,
    outcome: RunResult | InterruptedEffectError,
    program: Program = CLASSES,
    run_id: str = "r",
) -> None:
    """Compares a run with the ledger: what was done how often, and what came of it."""
    if program.asks:
        assert isinstance(outcome, RunResult), outcome
        judge_roles(world, outcome.output, program)
        return
    executions, events = world.executions(), world.events(run_id)
    ends = sum(1 for event in events if event["type"] == "ProcessExited")
    done: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in executions:
        done[one["key"]].append(one)
    seen = Counter(dict.fromkeys(program.keys, 0))
    for key, ones in done.items():
        seen[ones[0]["tool"]] += 1
        most = 1 if ones[0]["tool"] == "send" else 1 + ends
        assert len(ones) <= most, f"{ones[0]['tool']} {key} was executed {len(ones)} times"
        assert len({one["call"] for one in ones}) == 1, f"one key, several calls: {ones}"
    if isinstance(outcome, RunResult):
        assert program.output == outcome.output
        assert program.keys == dict(seen)
    else:
        assert "send" == outcome.fields["tool_name"], outcome
        assert program.keys["send"] >= seen["send"]
    recorded = {e["payload"]["callId"] for e in events if e["type"].endswith("call.succeeded")}
    executed = {one["call"] for one in executions}
    assert recorded <= executed, f"recorded and never executed: {recorded - executed}"


@dataclass(frozen=True, slots=True)
class Trial:
    """What one run under faults showed."""

    was_hit: bool  # the planned kill happened
    problem: str | None


def try_faults(folder: Path, faults: dict[str, Any], program: Program = CLASSES) -> Trial:
    """Runs a program with faults planted in its first supervisor, and judges what came of it.

    When that one dies the client starts others, without faults.
    """
    folder.mkdir()
    was_hit, problem = False, None
    opened = worlds(folder)
    world = next(opened)
    if "point" in faults:
        faults = {**faults, "ledger": str(world.kills_path)}
    if "child" in faults:
        faults = {**faults, "child": {**faults["child"], "ledger": str(world.kills_path)}}
    try:
        world.start(faults=faults)
        client = world.client()
        begin(world, client, program)
        outcome = finish_program(client, program)
        if isinstance(outcome, RunResult):
            wait_retired(client)
        client.close()
        code, was_killed = world.end(), "point" in faults and world.kills() != []
        judge(world, outcome, program)
        assert was_killed or code == 0, f"the supervisor ended by itself: {code}\n{world.log()}"
    except (AssertionError, PlanariaError) as error:
        problem = f"{type(error).__name__}: {error}"
    was_hit = world.kills() != []
    try:
        opened.close()
    except AssertionError as error:
        problem = problem or str(error)
    return Trial(was_hit, problem)


def wait_retired(client: Client) -> None:
    """Waits until the processes of ended runs have ended by themselves."""
    wait_until(
        lambda: all(one["status"] in ("blank", "launching") for one in client.processes()),
        "the processes of the run have ended",
    )


def worlds(folder: Path) -> Iterator[World]:
    """Yields a world, and checks its end; for a fixture."""
    path = list(sys.path)
    world = World(folder)
    try:
        yield world
    finally:
        sys.path[:] = path
        sys.modules.pop("flow__planaria", None)
        os.environ.pop(LEDGER_VARIABLE, None)
        world.close()
