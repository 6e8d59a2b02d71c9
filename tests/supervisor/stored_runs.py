"""Data directories for the tests of backup, restore and prune: written without a supervisor."""

import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgpack

from planaria.protocol.events import Event
from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.protocol.outer_loops import dump_manifest
from planaria.supervisor.blobs import BlobStore
from planaria.supervisor.clock import read_clock
from planaria.supervisor.data_directory import prepare_data_directory
from planaria.supervisor.event_log import EventLog
from planaria.supervisor.event_reader import EventReader
from planaria.supervisor.faults import VARIABLE

DAY_US = 86_400_000_000
LOCK = msgpack.packb({"lwir": {"steps": []}})
PATIENCE_SECONDS = 30.0


class StoredRuns:
    """Writes runs that are as old as they are said to be; one epoch, closed by `close`."""

    def __init__(self, root: Path) -> None:
        self.directory = prepare_data_directory(root)
        self.blobs = BlobStore(self.directory.blobs)
        self.log = EventLog.open(self.directory.events)
        self.epoch = self.log.epoch + 1
        started = {"supervisorId": "sv", "pid": 1, "epoch": self.epoch, "version": "0"}
        self.add(SYSTEM_RUN_ID, "SupervisorStarted", started)

    def add(self, run_id: str, kind: str, payload: dict[str, Any], at: int = 1) -> Event:
        sequence = self.log.last_sequence(run_id) + 1
        fields = (at, read_clock().mono, self.epoch, None, None)
        event = Event(run_id, sequence, kind, *fields, payload)
        batch = [event]
        if kind == "RunAdmitted":
            digest = f"sha256:{self.log.first_hash(event).hex()}"
            recorded = {"admittedRunId": run_id, "admissionHash": digest}
            follows = self.log.last_sequence(SYSTEM_RUN_ID) + 1
            batch.append(Event(SYSTEM_RUN_ID, follows, "RunRecorded", *fields, recorded))
        self.log.append(batch)
        return event

    def run(
        self,
        run_id: str,
        *,
        days: float = 60,
        is_open: bool = False,
        content: bytes | None = None,
        files: dict[str, bytes] | None = None,
        lock: bytes = LOCK,
        **admission: Any,
    ) -> None:
        """Writes a run that ended so many days ago; `content` is its input, as a blob."""
        at = read_clock().at - int(days * DAY_US)
        given = {"input": 1} if content is None else {"inputRef": self.blob(content)}
        pin = {} if files is None else {"modulesRef": self.pin(files)}
        admitted = {
            "workflowId": "w",
            "workflowDefinitionHash": "sha256:0",
            "trigger": "api",
            **given,
            "inputHash": "sha256:1",
            "source": {"kind": "file", **pin},
            **admission,
        }
        self.add(run_id, "RunAdmitted", admitted, at)
        ref = self.blob(lock)
        version = {"workflowVersionId": "wv_1", "lwirHash": "sha256:2", "lockRef": ref}
        version["lockHash"] = ref["sha256"]
        self.add(run_id, "WorkflowVersionRegistered", version, at)
        started = {"workflowVersionId": "wv_1", "inputHash": "sha256:1"}
        self.add(run_id, "RunStarted", started, at)
        for folder, name in (("harness/hs_1", "draft.txt"), ("logs", "out.log")):
            path = self.directory.runs / run_id / folder
            path.mkdir(parents=True)
            (path / name).write_text(f"{run_id} {folder}")
        if not is_open:
            self.add(run_id, "CancellationRequested", {"requestId": "c"}, at)
            self.add(run_id, "RunCancelled", {"requestId": "c"}, at)

    def loop(self, loop_id: str, run_ids: list[str], cycles_max: int) -> Path:
        """Writes the manifest of an outer loop."""
        cycles = [
            {"cycleNumber": n, "runId": run_id, "workflowVersionId": "wv_1", "status": "completed",
             "output": n}
            for n, run_id in enumerate(run_ids, 1)
        ]  # fmt: skip
        goal = {"description": "g", "workflowDefinitionHash": "sha256:0"}
        manifest = {
            "outerLoopId": loop_id,
            "goal": goal,
            "maxCycles": cycles_max,
            "cycles": cycles,
        }
        path = self.directory.outer_loops / f"{loop_id}.json"
        path.write_bytes(dump_manifest(manifest))
        return path

    def blob(self, data: bytes) -> dict[str, Any]:
        return self.blobs.write(data)

    def pin(self, files: dict[str, bytes]) -> str:
        """Pins modules as sdk/snapshot.py does."""
        rows = [[path, sha256(data).hexdigest()] for path, data in sorted(files.items())]
        name = sha256(msgpack.packb(rows)).hexdigest()
        for path, data in files.items():
            place = self.directory.modules / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return name

    def age(self) -> None:
        """Makes blobs and modules as old as the runs are."""
        at = read_clock().at / 1_000_000 - 60 * 86_400
        for path in self.directory.artifacts.rglob("*"):
            os.utime(path, (at, at))

    def close(self) -> None:
        self.add(SYSTEM_RUN_ID, "SupervisorStopped", {"epoch": self.epoch, "reason": "asked"})
        self.log.close()


def run_ids(root: Path) -> list[str]:
    """Returns the runs that a data directory has events of, besides the system's."""
    reader = EventReader.open(root / "events" / "events.db")
    try:
        return [run_id for run_id in reader.run_ids() if run_id != SYSTEM_RUN_ID]
    finally:
        reader.close()


def read_tree(root: Path) -> dict[str, bytes]:
    """Returns every file below a folder, without what readers leave beside a database."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink() and not path.name.endswith(("-wal", "-shm"))
    }


def launch(*words: str | Path, faults: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `python -m planaria.supervisor …`, with faults planted."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "planaria.supervisor", *map(str, words)],
        env={**os.environ, VARIABLE: faults},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def kill_at(point: str, *words: str | Path, nth: int = 1) -> None:
    """Runs a command that is killed at a point; fails if it doesn't come there."""
    ended = launch(*words, faults=f'{{"point": "{point}", "nth": {nth}}}')
    assert -signal.SIGKILL == ended.returncode, (point, ended.stdout, ended.stderr)
