"""The desk: nothing is checked, stored or read twice; a disk that refuses stops it not."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from planaria.protocol.events import Event
from planaria.protocol.messages import Reply, Request
from planaria.supervisor import versions
from planaria.supervisor.blobs import BlobStore
from planaria.supervisor.data_directory import DataDirectory
from planaria.supervisor.desk import Desk
from planaria.supervisor.kernel import Kernel
from planaria.supervisor.kernel_messages import AdmitRun
from planaria.supervisor.library import BlobLibrary
from planaria.supervisor.loop_files import LoopFiles
from planaria.supervisor.run_state import RunState
from planaria.supervisor.system_state import LAUNCHING, ProcessState, SystemState
from planaria.supervisor.views import describe_processes

STEP = {"id": "only", "uses": "tool.call", "with": {"tool": "echo", "args": {}}}
LOCK = {
    "lwir": {
        "apiVersion": "lwir/v1",
        "kind": "Workflow",
        "metadata": {"name": "once"},
        "permissions": {"tools": ["echo"]},
        "steps": [STEP],
    },
    "tools": {"echo": {"effect": "read"}},
    "models": {},
}


class _EmptyLog:
    """A log without a run; it counts how often one is looked for."""

    def __init__(self) -> None:
        self.reads = 0

    def read_run(self, run_id: str) -> list[tuple[int, Event]]:
        self.reads += 1
        return []


def make_desk(directory: Path) -> tuple[Desk, Kernel, _EmptyLog]:
    blobs = BlobStore(directory)
    log: Any = _EmptyLog()
    library = BlobLibrary(blobs, log)
    system = SystemState(epoch=1, boot_id="b")
    kernel = Kernel(system, library)
    loops = LoopFiles(DataDirectory(directory), system, library)
    return Desk(kernel, log, library, blobs, loops, {}), kernel, log


def ask(run_id: str) -> Request:
    arguments = {
        "runId": run_id,
        "workflowId": "bench",
        "definitionHash": "sha256:0",
        "lock": LOCK,
        "input": None,
        "source": {},
    }
    return Request(1, "start_run", arguments)


def start(desk: Desk, run_id: str) -> AdmitRun:
    message = desk.take(b"client", ask(run_id))
    assert isinstance(message, AdmitRun)
    return message


def test_lock_that_is_known_is_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, _, _ = make_desk(tmp_path)
    first = start(desk, "run_1")
    monkeypatch.setattr(versions, "check_lock", None)

    second = start(desk, "run_2")

    assert (first.version_id, first.lock_ref) == (second.version_id, second.lock_ref)


def test_lock_that_was_pruned_is_stored_again(tmp_path: Path) -> None:
    desk, _, _ = make_desk(tmp_path)
    ref = start(desk, "run_1").lock_ref
    (tmp_path / ref["ref"]).unlink()

    start(desk, "run_2")

    assert BlobStore(tmp_path).exists(ref)


def test_run_that_has_just_ended_is_answered_from_memory(tmp_path: Path) -> None:
    desk, kernel, log = make_desk(tmp_path)
    kernel.system.runs["run_1"] = RunState("run_1", status="completed", output={"n": 1})
    kernel.system.ended.append("run_1")
    desk.evict()
    replies: list[Reply] = []

    desk.take(b"client", Request(7, "wait_run", {"runId": "run_1"}))
    desk.flush(lambda identity, reply: replies.append(reply))

    assert [(7, "completed", {"n": 1})] == [
        (reply.id, reply.result["status"], reply.result["output"]) for reply in replies
    ]
    assert 0 == log.reads and "run_1" not in kernel.system.runs


def test_outcomes_in_memory_are_limited(tmp_path: Path) -> None:
    kept: dict[str, int] = {}
    for number in range(5):
        versions.keep(kept, str(number), number, 3)

    assert ["2", "3", "4"] == list(kept)


def test_start_that_the_disk_refuses_is_refused_and_the_desk_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, _, _ = make_desk(tmp_path)

    def refuse(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    replies: list[Reply] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        assert desk.take(b"client", ask("run_1")) is None
        desk.flush(lambda identity, reply: replies.append(reply))

    assert "No space left" in str(replies[0].error)
    assert start(desk, "run_1")


def test_process_that_is_being_launched_has_no_pid_yet() -> None:
    system = SystemState(epoch=1, boot_id="b")
    system.processes["p1"] = ProcessState("p1", "light", LAUNCHING, launched_at=0)

    (shown,) = describe_processes(system)

    assert shown["pid"] is None  # 0 would mean every process of the reader's group to kill(2)
