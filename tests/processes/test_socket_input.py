"""Broken and forged frames at the supervisor's socket: an error or silence, and the loop goes on.

One supervisor gets all of it, and serves a run after each.
"""

import os
import socket
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
import zmq
from harness import World, worlds
from process_programs import CLASSES, FORGING

from planaria.client import Client
from planaria.protocol.errors import ProtocolError
from planaria.protocol.ids import session_id
from planaria.protocol.limits import FRAME_BYTES_MAX

pytestmark = pytest.mark.slow

REPLY_MS = 5_000
SILENCE_MS = 50


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    for world in worlds(tmp_path_factory.mktemp("world")):
        facts = world.start()
        assert facts is not None
        world.endpoint = facts["socket"]  # type: ignore[attr-defined]
        yield world


class Peer:
    """A bare DEALER."""

    def __init__(self, endpoint: str, identity: bytes | None = None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 1_000)
        if identity is not None:
            self._socket.setsockopt(zmq.IDENTITY, identity)
        self._socket.connect(f"ipc://{endpoint}")

    def send(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def read(self, wait_ms: int = REPLY_MS) -> list[Any] | None:
        if not self._socket.poll(wait_ms):
            return None
        return msgpack.unpackb(self._socket.recv())  # type: ignore[no-any-return]

    def close(self) -> None:
        self._socket.close()
        self._context.term()


@pytest.fixture
def peer(world: World) -> Iterator[Peer]:
    peer = Peer(world.endpoint)  # type: ignore[attr-defined]
    yield peer
    peer.close()
    assert world.supervisors[0].poll() is None, world.log()
    with Client(world.directory, start_if_missing=False) as client:
        assert world.supervisors[0].pid == client.ping()["pid"]


def pack(*messages: Any) -> bytes:
    return msgpack.packb(list(messages))  # type: ignore[no-any-return]


def request(number: Any, operation: Any, arguments: Any) -> list[Any]:
    return ["request", {"id": number, "operation": operation, "arguments": arguments}]


def append(session: Any = "hs_x", incarnation: Any = 1, after: Any = 0, events: Any = ()) -> Any:
    body = {"sessionId": session, "incarnation": incarnation, "after": after}
    return ["append", {**body, "events": list(events) if isinstance(events, tuple) else events}]


NESTED = b"\x91" * 10_000 + b"\xc0"
REFUSED = {
    "an empty frame": (b"",),
    "no part but the identity's": (b"", b""),
    "bytes that are no msgpack": (b"\xc1\xc1\xc1",),
    "a truncated frame": (pack(request(1, "ping", {}))[:-3],),
    "something behind the frame": (pack(request(1, "ping", {})) + b"\x00",),
    "nested 10,000 deep": (NESTED,),
    "nested deep in a message": (b"\x91\x92\xa7request\x83\xa2id\x01\xa9arguments" + NESTED,),
    "five parts": (pack(), pack(), pack(), pack(), pack()),
    "10,000 parts": (b"x",) * 10_000,
    "a map that says it is huge": (b"\xdf\xff\xff\xff\xff",),
    "a list that says it is huge": (b"\xdd\xff\xff\xff\xff",),
    "a text that says it is huge": (b"\xdb\xff\xff\xff\xff",),
    "too many messages": (pack(*[request(n, "ping", {}) for n in range(4_097)]),),
    "too many entries": (pack(request(1, "ping", {"a": [0] * 65_537})),),
    "no list": (msgpack.packb({"request": 1}),),
    "a number": (msgpack.packb(7),),
    "a message that is no list": (pack("request"),),
    "a message without a body": (pack(["request"]),),
    "a body that is no map": (pack(["request", []]),),
    "an unknown kind": (pack(["nonsense", {}]),),
    "a kind that is no text": (pack([{}, {}]),),
    "infinity": (pack(request(1, "attach", {"pid": float("inf")})),),
    "NaN in an input": (pack(request(1, "start_run", {"input": {"a": [float("nan")]}})),),
    "a missing field": (pack(["request", {"id": 1, "operation": "ping"}]),),
    "a field too many": (pack(["hello", {"token": "x", "pid": 1, "more": 1}]),),
    "an id that is a text": (pack(request("1", "ping", {})),),
    "an id that is negative": (pack(request(-1, "ping", {})),),
    "an id that is true": (pack(request(True, "ping", {})),),
    "an id that is too large": (pack(request(1 << 60, "ping", {})),),
    "an operation that is a number": (pack(request(1, 1, {})),),
    "arguments that are a list": (pack(request(1, "ping", [])),),
    "an append whose events are a map": (pack(append(events={})),),
    "an append whose incarnation is a text": (pack(append(incarnation="1")),),
    "a hello whose token is bytes": (pack(["hello", {"token": b"x", "pid": 1}]),),
    "a key that is a number": (pack(request(1, "ping", {1: 2})),),
    "an extension type": (pack(request(1, "ping", {"a": msgpack.ExtType(5, b"x")})),),
    "a text that isn't UTF-8": (b"\x91\x92\xa7request\x81\xa2\xff\xfe\x01",),
}
# What only the supervisor sends, and what only a process with a token may send.
SILENT = {
    "a wrong token": ["hello", {"token": "0" * 64, "pid": 1}],
    "an empty token": ["hello", {"token": "", "pid": 0}],
    "a heartbeat of nobody": ["heartbeat", {"token": "0" * 64}],
    "an append without a hello": append(events=[["harness.execute_step.succeeded", {}]]),
    "a history without a hello": [
        "read_history", {"sessionId": "hs_x", "incarnation": 1, "after": 0},
    ],
    "a delivery": ["deliver", {"session": {}}],
    "a commit": ["committed", {"sessionId": "hs_x", "incarnation": 1, "upto": 9}],
    "a refusal": ["refused", {"sessionId": "hs_x", "code": "x", "message": "x"}],
    "a page": ["history_page", {"sessionId": "x", "bodies": [], "lastSequence": 1, "more": False}],
    "a stop": ["stop", {"reason": "shutdown"}],
    "a reply": ["reply", {"id": 1, "result": None, "error": None, "done": True}],
}  # fmt: skip
MALFORMED = {
    "an unknown operation": ("nonsense", {}),
    "no run id": ("get_run", {}),
    "a run id that is a list": ("get_run", {"runId": []}),
    "a run id that is a path": ("get_run", {"runId": "../../etc/passwd"}),
    "a run id that is too long": ("wait_run", {"runId": "r" * 10_000}),
    "a run that isn't there": ("wait_run", {"runId": "nobody"}),
    "a cancellation of nothing": ("cancel_run", {"runId": "nobody"}),
    "a limit that is a text": ("list_runs", {"limit": "many"}),
    "a limit that is a map": ("list_runs", {"limit": {"a": 1}}),
    "a limit that is negative": ("list_runs", {"limit": -5}),
    "a status that is a list": ("list_runs", {"status": [1]}),
    "events after a text": ("read_events", {"runId": "good", "after": "x"}),
    "events after a negative number": ("read_events", {"runId": "good", "after": -1}),
    "events after a huge number": ("read_events", {"runId": "good", "after": 1 << 70 >> 8}),
    "a negative page of events": ("read_events", {"runId": "good", "limit": -1}),
    "an attachment of nobody": ("attach", {"pid": 1 << 30}),
    "an attachment of pid -1": ("attach", {"pid": -1}),
    "an attachment of a text": ("attach", {"pid": "x"}),
    "a detachment of nobody": ("detach", {"pid": 5}),
    "a run without a lock": ("start_run", {"runId": "x"}),
    "a run whose lock is a text": (
        "start_run", {"runId": "x", "workflowId": "w", "lock": "x", "input": 1},
    ),
    "a run whose lock is empty": (
        "start_run",
        {"runId": "x", "workflowId": "w", "lock": {}, "input": 1, "definitionHash": "h"},
    ),
    "a run of an empty document": (
        "start_run",
        {"runId": "x", "workflowId": "w", "lock": {"lwir": {}, "tools": {}, "models": {}},
         "input": 1, "definitionHash": "h", "source": {}},
    ),
    "a run whose document is a list": (
        "start_run",
        {"runId": "x", "workflowId": "w", "lock": {"lwir": [], "tools": [], "models": 3},
         "input": 1, "definitionHash": "h", "source": {}},
    ),
    "a run whose steps are wrong": (
        "start_run",
        {"runId": "x", "workflowId": "w", "input": 1, "definitionHash": "h", "source": {},
         "lock": {"lwir": {"steps": [{"id": []}, 3, {"uses": {}}]}, "tools": {}, "models": {}}},
    ),
    "an attachment of a huge pid": ("attach", {"pid": 1 << 50}),
    "an input that isn't there": (
        "start_run",
        {"runId": "x", "workflowId": "w", "lock": {}, "definitionHash": "h", "source": {},
         "inputRef": {"ref": "../../x", "sha256": "x", "size": -1}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_frame_that_is_no_frame_gets_an_error(peer: Peer, case: str) -> None:
    peer.send(*REFUSED[case])

    answer = peer.read()

    assert answer is not None, "no answer"
    kind, body = answer[0]
    assert ("reply", 0, "ProtocolError") == (kind, body["id"], body["error"]["class"])


@pytest.mark.parametrize("case", SILENT)
def test_message_of_nobody_is_ignored(peer: Peer, case: str) -> None:
    peer.send(pack(SILENT[case], request(7, "ping", {})))

    answer = peer.read()

    assert answer is not None and 7 == answer[0][1]["id"]
    assert 1 == len(answer)


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_request_gets_an_answer(peer: Peer, case: str) -> None:
    operation, arguments = MALFORMED[case]
    peer.send(pack(request(3, operation, arguments)))

    answer = peer.read()

    assert answer is not None, "no answer"
    assert 3 == answer[0][1]["id"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deadlineMs", "soon"),
        ("deadlineMs", -1),
        ("deadlineMs", 1 << 52),
        ("labels", [1]),
        ("labels", {"a": 1}),
        ("source", {"env": 5}),
        ("source", {"env": [[]]}),
        ("source", 3),
        ("inputRef", 3),
        ("inputRef", {"ref": "../../x", "sha256": "x", "size": -1}),
        ("inputRef", {"ref": f"sha256/00/{'0' * 64}", "sha256": f"sha256:{'0' * 64}", "size": 3}),
        ("workflowId", "a/b"),
        ("runId", ""),
        ("runId", "run_system"),
    ],
)
def test_run_with_a_wrong_field_is_refused(
    world: World, peer: Peer, name: str, value: object
) -> None:
    workflow = world.load(CLASSES)
    good = {"runId": "wrong", "workflowId": "classes", "lock": workflow.lock, "input": None}
    given = {**good, "definitionHash": "h", "source": {}, name: value}
    peer.send(pack(request(3, "start_run", given)))

    answer = peer.read()

    assert answer is not None, "no answer"
    assert (3, None) == (answer[0][1]["id"], answer[0][1]["result"])
    assert "wrong" not in [run["runId"] for run in list_runs(world)]


def list_runs(world: World) -> list[dict[str, Any]]:
    with Client(world.directory, start_if_missing=False) as client:
        return client.runs()


def test_frame_that_is_too_large_is_dropped_and_the_next_link_works(
    world: World, peer: Peer
) -> None:
    peer.send(b"x" * (FRAME_BYTES_MAX + 1))

    assert peer.read(SILENCE_MS) is None


def test_frame_as_large_as_it_may_be_is_read(peer: Peer) -> None:
    frame = pack(request(1, "ping", {"a": ""}))
    text = "x" * (FRAME_BYTES_MAX - len(frame) - 4)
    peer.send(pack(request(1, "ping", {"a": text})))

    answer = peer.read()

    assert answer is not None and 1 == answer[0][1]["id"]


def test_peer_that_chooses_its_identity_is_ignored(world: World, peer: Peer) -> None:
    chosen = Peer(world.endpoint, b"supervisor")  # type: ignore[attr-defined]
    chosen.send(pack(request(1, "ping", {})))
    answer = chosen.read()
    chosen.close()

    assert answer is not None and "ProtocolError" == answer[0][1]["error"]["class"]


def test_peer_that_speaks_no_zeromq_is_ignored(world: World, peer: Peer) -> None:
    for text in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4_096), b"\xff" * 64):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(world.endpoint)  # type: ignore[attr-defined]
            try:
                raw.sendall(text)
            except BrokenPipeError:
                pass


def test_peer_that_doesnt_read_blocks_nobody(world: World, peer: Peer) -> None:
    for number in range(2_000):
        peer.send(pack(*[request(number, "ping", {})] * 20))
    with Client(world.directory, start_if_missing=False) as client:
        assert client.ping()["pid"]


def test_connections_that_come_and_go_leave_nothing(world: World, peer: Peer) -> None:
    folder = f"/proc/{world.supervisors[0].pid}/fd"
    before = len(os.listdir(folder))
    for _ in range(50):
        other = Peer(world.endpoint)  # type: ignore[attr-defined]
        other.send(b"broken")
        assert other.read() is not None
        other.close()
    peer.send(pack(request(1, "ping", {})))
    assert peer.read() is not None

    assert len(os.listdir(folder)) <= before + 5


@pytest.mark.parametrize(
    "forged",
    ["session", "incarnation", "later incarnation", "kind", "call", "payload", "event", "blob"],
)
def test_process_that_forges_a_report_is_ended_and_replaced(
    world: World, peer: Peer, forged: str
) -> None:
    run_id = "forge_" + forged.replace(" ", "_")
    world.ledger_path.unlink(missing_ok=True)
    with Client(world.directory, start_if_missing=False) as client:
        client.start(world.load(FORGING, "forging"), {"do": forged}, run_id=run_id)
        output = client.wait(run_id, timeout=15).output

    assert "honest" == output
    exits = [e["payload"] for e in world.events(run_id) if e["type"] == "ProcessExited"]
    assert 1 == len(exits)
    assert session_id(run_id, "a", 1) == exits[0]["sessionId"]


def test_supervisor_still_serves_runs_and_logged_no_traceback(world: World, peer: Peer) -> None:
    with Client(world.directory, start_if_missing=False) as client:
        client.start(world.load(CLASSES), run_id="good")
        result = client.wait("good", timeout=25)
        with pytest.raises(ProtocolError):
            client.ask("nonsense")

    assert CLASSES.output == result.output
    assert "Traceback" not in world.log()
