"""The child as a real process, against a bare ROUTER: what it says, and how it ends."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from planaria.protocol.events import Event, encode_event
from planaria.protocol.messages import (
    Append,
    Committed,
    Deliver,
    Heartbeat,
    Hello,
    HistoryPage,
    Message,
    ReadHistory,
    Refused,
    Stop,
    decode_frame,
    encode_frame,
)
from planaria.snapshot import make_source, store_snapshot, take_snapshot

from .memory_supervisor import call_step, make_delivery

WAIT_MS = 10_000
TOKEN = bytes(range(32))
PROJECT = """
import sys
from types import SimpleNamespace
from planaria.protocol.values import ValueType

print("imported")

def add(a, b):
    print("a line that is no message", flush=True)
    return a + b

def _tool(name, function, effect):
    return SimpleNamespace(
        name=name, description="", function=function, effect=effect, is_async=False, reattach=None,
        returns=ValueType(), load_arguments=dict,
    )

flow = SimpleNamespace(tools={"add": _tool("add", add, "once")}, models={})
"""


class Child:
    """One process, and the supervisor's end of its link."""

    def __init__(self, directory: Path, router: "zmq.Socket[bytes]", **spec: Any) -> None:
        self.directory = directory
        self.router = router
        self.identity = b""
        self.reported: list[list[Any]] = []
        self._inbox: list[Message] = []
        self._output = directory / "output"
        spec = {"endpoint": router.getsockopt_string(zmq.LAST_ENDPOINT), **spec}
        spec["directory"] = str(directory)
        code = f"from planaria.workers.main import main; main({spec!r}, {TOKEN!r})"
        with open(self._output, "wb") as output:
            fds = [spec["alive_fd"]] if "alive_fd" in spec else []
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], stdout=output, stderr=output, pass_fds=fds
            )

        self._pidfd = os.pidfd_open(self.process.pid)
        self._poller = zmq.Poller()
        self._poller.register(router, zmq.POLLIN)
        self._poller.register(self._pidfd, zmq.POLLIN)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._pidfd)

    def receive(self, *, beats: bool = False) -> Message:
        """Returns the next message; fails when the process has ended, or after the wait."""
        identity = self.identity
        while True:
            while not self._inbox:
                ready = dict(self._poller.poll(WAIT_MS))
                assert self.router in ready, self.output()
                identity, frame = self.router.recv_multipart()
                self._inbox.extend(decode_frame(frame))
            message = self._inbox.pop(0)
            if not isinstance(message, Heartbeat):  # those have a link of their own
                self.identity = identity
            elif not beats:
                continue
            return message

    def send(self, *messages: Message) -> None:
        self.router.send_multipart([self.identity, encode_frame(messages)])

    def start(self) -> None:
        assert Hello(TOKEN.hex(), self.process.pid) == self.receive()

    def deliver(self, source: dict[str, Any], *, incarnation: int = 1) -> None:
        delivery = make_delivery(call_step("add", {"a": 1, "b": 2}))
        delivery.update(
            incarnation=incarnation,
            reported=0,
            hasHistory=incarnation > 1,
            firstSequence=1,
            lastSequence=2,
            source=source,
        )
        self.send(Deliver(delivery))

    def take_append(self) -> Append:
        message = self.receive()
        assert isinstance(message, Append), message
        self.reported.extend(message.events)
        return message

    def commit(self, message: Append, *more: Message) -> None:
        upto = message.after + len(message.events)
        self.send(Committed(message.sessionId, message.incarnation, upto), *more)

    def carry(self, source: dict[str, Any], *, incarnation: int = 1) -> None:
        """Answers until the session has ended, and lets the child end then."""
        self.deliver(source, incarnation=incarnation)
        while not self.reported or "execute_step" not in self.reported[-1][0]:
            message = self.receive()
            if isinstance(message, ReadHistory):
                event = Event("run_1", 1, "harness.warning", 1, 1, 1, "hs_1", None, {"text": ""})
                self.send(HistoryPage("hs_1", [encode_event(event)], 1, False))
                continue
            assert isinstance(message, Append)
            self.reported.extend(message.events)
            self.commit(message)
        self.send(Stop("done"))

    def wait(self) -> int:
        return self.process.wait(WAIT_MS / 1_000)

    def output(self) -> str:
        return self._output.read_text()


@pytest.fixture
def router(tmp_path: Path) -> "Iterator[zmq.Socket[bytes]]":
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"ipc://{tmp_path}/s")
        yield socket


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    project = tmp_path / "project"
    project.mkdir()
    (project / "flow.py").write_text(PROJECT)
    snapshot = take_snapshot(project / "flow.py")
    store_snapshot(snapshot, tmp_path / "artifacts" / "modules")
    return make_source(
        snapshot, kind="file", entry="flow.py:flow", file=project / "flow.py", paths=[]
    )


@contextlib.contextmanager
def started(directory: Path, router: "zmq.Socket[bytes]", **spec: Any) -> Iterator[Child]:
    child = Child(directory, router, **spec)
    try:
        yield child
    finally:
        child.close()


@pytest.mark.slow
def test_child_carries_a_session_and_ends_when_told(
    tmp_path: Path, router: "zmq.Socket[bytes]", source: dict[str, Any]
) -> None:
    with started(tmp_path, router) as child:
        child.start()
        child.carry(source)

        assert 0 == child.wait()
        assert ["harness.execute_step.succeeded", {"output": 3}] == child.reported[-1]
        # What it prints goes where its output goes, and damages no message.
        assert "imported\na line that is no message\n" == child.output()


@pytest.mark.slow
def test_child_imports_nothing_of_the_user_before_a_delivery(
    tmp_path: Path, router: "zmq.Socket[bytes]"
) -> None:
    with started(tmp_path, router) as child:
        child.start()
        beat = child.receive(beats=True)
        child.send(Stop("done"))

        assert Heartbeat(TOKEN.hex()) == beat
        assert 0 == child.wait()
        assert "" == child.output()


@pytest.mark.slow
def test_refused_child_exits_at_once(
    tmp_path: Path, router: "zmq.Socket[bytes]", source: dict[str, Any]
) -> None:
    with started(tmp_path, router) as child:
        child.start()
        child.deliver(source)
        child.take_append()
        child.send(Refused("hs_1", "stale_incarnation", "another process carries it"))

        assert 3 == child.wait()
        assert "another process carries it" in child.output()
        assert "a line" not in child.output()


@pytest.mark.slow
def test_child_ends_with_its_supervisor(tmp_path: Path, router: "zmq.Socket[bytes]") -> None:
    reader, writer = os.pipe()
    with started(tmp_path, router, alive_fd=reader) as child:
        os.close(reader)
        child.start()
        os.close(writer)

        assert 1 == child.wait()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(16))
def test_child_dies_at_every_named_point_once(
    number: int, tmp_path: Path, router: "zmq.Socket[bytes]", source: dict[str, Any]
) -> None:
    ledger = tmp_path / "ledger"
    plan = {"point": f"C{number}", "ledger": str(ledger)}
    incarnation = 2 if number == 2 else 1
    with started(tmp_path, router, trace=plan) as child:
        with contextlib.suppress(AssertionError, zmq.ZMQError):
            if number > 0:
                child.start()
                child.carry(source, incarnation=incarnation)
        assert -9 == child.wait()

    assert [f"C{number} 1 kill {child.process.pid}\n"] == ledger.read_text().splitlines(True)
    with started(tmp_path, router, trace=plan) as successor:
        successor.start()
        successor.carry(source, incarnation=incarnation)
        assert 0 == successor.wait()
