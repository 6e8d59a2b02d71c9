import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria.supervisor import process_tree
from planaria.supervisor.children import Children, ChildReport, Exited, Launched, LaunchFailed
from planaria.supervisor.fork_server import Preload, encode_start

pytestmark = pytest.mark.slow

TOKEN = bytes(range(32))
DEADLINE_SECONDS = 15.0  # for two cores that other tests use too
SMALL = Preload(("planaria.supervisor.fork_server", "child_targets"))


class Supervision:
    """Children, with a loop that waits for reports and a trace of what was done."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.trace: list[tuple[str, dict[str, Any]]] = []
        self.marker = f"test-{uuid.uuid4().hex}"
        self.tmp_path = tmp_path
        self._fifos: dict[str, int] = {}
        settings.setdefault("preloads", {"light": SMALL})
        self.children = Children(
            target="child_targets:main",
            marker=self.marker,
            environment={"PATH": os.environ["PATH"]},
            on_trace=lambda point, facts: self.trace.append((point, dict(facts))),
            **settings,
        )
        self._reports: list[ChildReport] = []
        self.children.start()

    def launch(self, process_id: str, do: str, **spec: Any) -> None:
        path = self.tmp_path / f"{process_id}.fifo"
        os.mkfifo(path)
        self._fifos[process_id] = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        kind = spec.pop("kind", "light")
        environment = {"PATH": os.environ["PATH"], "GIVEN": "yes"}
        full = {"do": do, "say": os.fspath(path), "environment": environment, **spec}
        self.children.launch(process_id, kind=kind, token=TOKEN, spec=full)

    def run_until(self, done: Callable[[], bool], extra: int | None = None) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        poller = select.poll()
        for descriptor in (*self.children.fds(), *(() if extra is None else (extra,))):
            poller.register(descriptor, select.POLLIN)
        while not done():
            left = deadline - time.monotonic()
            assert left > 0, f"not within {DEADLINE_SECONDS} s: {self._reports} {self.trace}"
            poller.poll(left * 1_000)
            self._reports.extend(self.children.poll())

    def next(self, kind: type[Any]) -> Any:
        """The next report of this class; those before it are dropped."""

        def found() -> bool:
            while self._reports and not isinstance(self._reports[0], kind):
                self._reports.pop(0)
            return bool(self._reports)

        self.run_until(found)
        return self._reports.pop(0)

    def hear(self, process_id: str) -> Any:
        """The line that the child said."""
        text = b""
        descriptor = self._fifos[process_id]

        def found() -> bool:
            nonlocal text
            try:
                text += os.read(descriptor, 65_536)
            except BlockingIOError:
                pass
            return text.endswith(b"\n")

        self.run_until(found, descriptor)
        return json.loads(text)

    def wait_server(self) -> int:
        self.run_until(lambda: self.server_pids() != [])
        return self.server_pids()[-1]

    def server_pids(self) -> list[int]:
        return [facts["pid"] for point, facts in self.trace if point == "server_ready"]

    def close(self) -> None:
        self.children.close(5.0)
        for descriptor in self._fifos.values():
            os.close(descriptor)
        assert list(process_tree.find_marked(self.marker)) == []


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Supervision]]:
    monkeypatch.syspath_prepend(os.fspath(Path(__file__).parent))
    started: list[Supervision] = []
    descriptors = len(os.listdir("/proc/self/fd"))

    def make(**settings: Any) -> Supervision:
        started.append(Supervision(tmp_path, **settings))
        return started[-1]

    yield make
    for supervision in started:
        supervision.close()
    assert descriptors == len(os.listdir("/proc/self/fd"))


def is_gone(pid: int, seconds: float = 5.0) -> bool:
    stat = process_tree.read_stat(pid)
    if stat is None:
        return True
    return process_tree.wait_gone([stat], time.monotonic() + seconds) == []


def test_child_gets_its_spec_and_token_and_nothing_else(
    start: Callable[..., Supervision], tmp_path: Path
) -> None:
    supervision = start()

    log = tmp_path / "log"
    supervision.launch("c1", "tell", cwd=os.fspath(tmp_path), log_path=os.fspath(log))
    told = supervision.hear("c1")
    supervision.next(Exited)

    assert TOKEN.hex() == told["token"]
    assert {"PATH", "GIVEN", "PLANARIA_MARKER", "PLANARIA_PROCESS"} == set(told["environment"])
    assert os.fspath(tmp_path) == told["cwd"]
    assert told["session"] and told["sigterm"]
    assert (256, 1, "c1") == (told["nofile"], told["threads"], told["name"])
    assert TOKEN.hex() not in told["argv"] and "GIVEN" not in told["argv"]
    assert ["zmq"] == told["modules"] or [] == told["modules"]
    assert 10 > len(told["descriptors"])
    assert "printed\n" == log.read_text()


@pytest.mark.parametrize(
    ("do", "code", "exit_code", "signum"),
    [("return", 0, 0, None), ("exit", 7, 7, None), ("segfault", 0, None, signal.SIGSEGV)],
)
def test_end_of_a_child_is_reported_as_it_was(
    start: Callable[..., Supervision],
    tmp_path: Path,
    do: str,
    code: int,
    exit_code: int | None,
    signum: int | None,
) -> None:
    supervision = start()

    supervision.launch("c1", do, code=code, log_path=os.fspath(tmp_path / "log"))
    launched = supervision.next(Launched)
    exited = supervision.next(Exited)

    assert Exited("c1", launched.pid, exit_code, signum) == exited


def test_killed_child_is_reported_with_its_signal(start: Callable[..., Supervision]) -> None:
    supervision = start()

    supervision.launch("c1", "hang")
    supervision.hear("c1")
    supervision.children.kill("c1")

    assert signal.SIGKILL == supervision.next(Exited).signal


def test_terminated_child_is_reported_with_its_signal(start: Callable[..., Supervision]) -> None:
    supervision = start()

    supervision.launch("c1", "hang")
    supervision.hear("c1")
    supervision.children.terminate("c1")

    assert signal.SIGTERM == supervision.next(Exited).signal


def test_stopped_child_dies_of_kill(start: Callable[..., Supervision]) -> None:
    supervision = start()

    supervision.launch("c1", "hang")
    os.kill(supervision.hear("c1"), signal.SIGSTOP)
    supervision.children.kill("c1")

    assert signal.SIGKILL == supervision.next(Exited).signal


def test_grandchild_in_a_session_of_its_own_dies_with_the_killed_child(
    start: Callable[..., Supervision],
) -> None:
    supervision = start()

    supervision.launch("c1", "grandchild")
    _, grandchild = supervision.hear("c1")
    supervision.children.kill("c1")
    supervision.next(Exited)

    assert is_gone(grandchild)


def test_grandchild_left_by_a_child_that_exited_is_ended_and_reaped(
    start: Callable[..., Supervision],
) -> None:
    supervision = start()

    supervision.launch("c2", "hang")
    supervision.launch("c1", "leave")
    _, grandchild = supervision.hear("c1")
    assert 0 == supervision.next(Exited).exit_code
    assert is_gone(grandchild)
    supervision.children.poll()

    assert process_tree.read_stat(grandchild) is None
    assert isinstance(supervision.hear("c2"), int), "the other child goes on"


def test_status_of_a_process_that_somebody_else_started_is_not_taken(
    start: Callable[..., Supervision],
) -> None:
    supervision = start()

    other = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    supervision.children.poll()

    assert 3 == other.wait()


def test_copy_made_by_fork_does_not_go_on_as_the_session(
    start: Callable[..., Supervision], tmp_path: Path
) -> None:
    supervision = start()
    log = tmp_path / "log"

    supervision.launch("c1", "fork", log_path=os.fspath(log))

    assert 70 == supervision.hear("c1")
    assert "os.fork()" in log.read_text()


def test_launch_succeeds_though_the_fork_server_was_killed(
    start: Callable[..., Supervision],
) -> None:
    supervision = start()

    os.kill(supervision.wait_server(), signal.SIGKILL)
    supervision.launch("c1", "hang")

    assert isinstance(supervision.hear("c1"), int)


def test_launch_succeeds_though_the_fork_server_was_stopped(
    start: Callable[..., Supervision],
) -> None:
    supervision = start(launch_seconds=0.2)

    os.kill(supervision.wait_server(), signal.SIGSTOP)
    supervision.launch("c1", "hang")

    assert isinstance(supervision.hear("c1"), int)
    assert 2 == len(supervision.server_pids())


def test_child_of_a_killed_fork_server_is_reported_with_its_true_signal(
    start: Callable[..., Supervision],
) -> None:
    supervision = start()

    supervision.launch("c1", "grandchild")
    _, grandchild = supervision.hear("c1")
    os.kill(supervision.server_pids()[-1], signal.SIGKILL)

    assert signal.SIGKILL == supervision.next(Exited).signal
    assert is_gone(grandchild)


def test_exit_of_a_child_whose_fork_server_is_stopped_is_reported_as_unknown(
    start: Callable[..., Supervision],
) -> None:
    supervision = start()

    supervision.launch("c1", "hang")
    supervision.hear("c1")
    os.kill(supervision.server_pids()[-1], signal.SIGSTOP)
    supervision.children.kill("c1")
    exited = supervision.next(Exited)

    assert (None, None) == (exited.exit_code, exited.signal)


def test_launch_killed_before_it_was_started_is_reported_as_failed(
    start: Callable[..., Supervision],
) -> None:
    supervision = start()

    supervision.launch("c1", "hang")
    supervision.children.kill("c1")

    assert LaunchFailed("c1", "killed before it was started") == supervision.next(LaunchFailed)


def test_launch_killed_on_its_way_gives_a_process_that_ends_at_once(
    start: Callable[..., Supervision],
) -> None:
    supervision = start()

    supervision.wait_server()
    supervision.launch("c1", "hang")
    supervision.children.kill("c1")

    assert isinstance(supervision.next(Launched), Launched)
    assert signal.SIGKILL == supervision.next(Exited).signal


def test_many_launches_at_once_give_as_many_processes(start: Callable[..., Supervision]) -> None:
    supervision = start()

    for number in range(20):
        supervision.launch(f"c{number}", "return")
    pids = [supervision.next(Exited).pid for _ in range(20)]

    assert 20 == len(set(pids))


def test_launch_fails_when_no_fork_server_ever_answers(start: Callable[..., Supervision]) -> None:
    supervision = start(loading_seconds=0.001)

    supervision.launch("c1", "hang")

    assert "did not answer" in supervision.next(LaunchFailed).reason


def test_module_that_starts_a_thread_is_not_forked(
    start: Callable[..., Supervision], caplog: pytest.LogCaptureFixture
) -> None:
    contents = Preload((*SMALL.modules, "child_threaded"))
    supervision = start(preloads={"light": contents})

    with caplog.at_level(logging.WARNING):
        supervision.launch("c1", "tell")

        assert 1 == supervision.hear("c1")["threads"]
    assert 1 == caplog.text.count("started a thread")


def test_module_that_cannot_be_loaded_is_named_and_does_not_stop_launches(
    start: Callable[..., Supervision], caplog: pytest.LogCaptureFixture
) -> None:
    contents = Preload((*SMALL.modules, "no_such_module"))
    supervision = start(preloads={"light": contents})

    with caplog.at_level(logging.WARNING):
        supervision.launch("c1", "hang")
        supervision.hear("c1")

    assert "no_such_module: ModuleNotFoundError" in caplog.text


def test_large_spec_reaches_the_child(start: Callable[..., Supervision]) -> None:
    supervision = start()

    supervision.launch("c1", "hang", padding="x" * 400_000)

    assert isinstance(supervision.hear("c1"), int)


def test_too_large_spec_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        encode_start("c1", "child_targets:main", {"padding": "x" * 600_000}, TOKEN)


def test_process_of_an_earlier_supervisor_is_ended_at_start(
    start: Callable[..., Supervision],
) -> None:
    supervision = start()
    environment = {**os.environ, process_tree.MARKER_VARIABLE: supervision.marker}
    left = subprocess.Popen(["sleep", "1000"], env=environment, start_new_session=True)

    again = Children(target="child_targets:main", marker=supervision.marker, environment={})
    again.start()
    again.close()

    assert -signal.SIGKILL == left.wait(5)


def test_nothing_outlives_a_killed_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    here = Path(__file__).parent
    marker = f"test-{uuid.uuid4().hex}"
    command = [sys.executable, here / "children_supervisor.py", fifo, marker]
    environment = {**os.environ, "TMPDIR": os.fspath(tmp_path)}
    with subprocess.Popen(command, env=environment) as supervisor:
        with open(fifo) as said:
            child, grandchild = json.loads(said.readline())
        family = process_tree.descendants(supervisor.pid)
        supervisor.kill()

    assert {child, grandchild} < {stat.pid for stat in family}
    assert [] == process_tree.wait_gone(family, time.monotonic() + 5)
