"""The event log when the disk fails at the n-th operation, or its process is killed."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from planaria.protocol.errors import CommitUnknownError, DataDirectoryError
from planaria.protocol.events import Event
from planaria.supervisor.event_log import EventLog

BATCHES = 3
BATCH_EVENTS = 3
FAULTS = {
    "EIO": apsw.IOError,
    "ENOSPC": apsw.FullError,
}


class FaultyVFS(apsw.VFS):
    """Fails the n-th write, sync or truncation, once or from then on."""

    def __init__(self, name: str, error: type[apsw.Error], lasting: bool) -> None:
        self.vfs_name = name
        self.error = error
        self.lasting = lasting
        self.fail_at: int | None = None
        self.operations = 0
        super().__init__(name, "")

    def xOpen(self, name, flags):  # noqa: N802
        return FaultyFile(name, flags, self)

    def count(self) -> None:
        self.operations += 1
        if self.fail_at is None or self.operations < self.fail_at:
            return
        if self.operations == self.fail_at or self.lasting:
            raise self.error("injected")


class FaultyFile(apsw.VFSFile):
    def __init__(self, name, flags, vfs: FaultyVFS) -> None:
        self.vfs = vfs
        super().__init__("", name, flags)

    def xWrite(self, data, offset):  # noqa: N802
        self.vfs.count()
        super().xWrite(data, offset)

    def xSync(self, flags):  # noqa: N802
        self.vfs.count()
        super().xSync(flags)

    def xTruncate(self, size):  # noqa: N802
        self.vfs.count()
        super().xTruncate(size)


def make_batch(number: int) -> list[Event]:
    start = (number - 1) * BATCH_EVENTS
    return [
        Event("run_a", start + n, "harness.warning", 1, 0, 0, "hs_1", 1, {"text": "x" * 3_000})
        for n in range(1, BATCH_EVENTS + 1)
    ]


def work_until_error(directory: Path, vfs: FaultyVFS) -> int:
    """Appends and checkpoints until the end or an error; returns how many batches were acked."""
    acknowledged = 0
    try:
        log = EventLog.open(directory, vfs=vfs.vfs_name)
    except DataDirectoryError:
        return 0
    try:
        for number in range(1, BATCHES + 1):
            log.append(make_batch(number))
            acknowledged = number
            log._tried_pages = -1_000  # due at once
            log.checkpoint_if_due(idle=True)
        log.close()
    except CommitUnknownError:
        with pytest.raises(CommitUnknownError):
            log.append(make_batch(acknowledged + 1))
        with pytest.raises(CommitUnknownError):
            log.checkpoint_if_due(idle=True)
        log.close()
    return acknowledged


def count_after_restart(directory: Path) -> int:
    """Returns how many whole batches the reopened log has, after it took one more event."""
    log = EventLog.open(directory)
    stored = [event.sequence for _, event in log.read_run("run_a")]
    assert stored == list(range(1, len(stored) + 1))
    batches, rest = divmod(len(stored), BATCH_EVENTS)
    assert rest == 0
    log.append([make_batch(batches + 1)[0]])
    log.close()
    return batches


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_failing_disk_never_loses_an_acknowledged_event(
    tmp_path: Path, fault: str, lasting: bool
) -> None:
    vfs = FaultyVFS(f"faulty-{fault}-{lasting}", FAULTS[fault], lasting)
    template = tmp_path / "template"
    template.mkdir()
    EventLog.open(template).close()
    ghosts = 0
    for fail_at in range(1, 500):
        directory = tmp_path / str(fail_at)
        shutil.copytree(template, directory)
        vfs.operations, vfs.fail_at = 0, fail_at
        acknowledged = work_until_error(directory, vfs)
        if vfs.operations < fail_at:
            break  # no operation was left to fail
        batches = count_after_restart(directory)
        assert batches in (acknowledged, acknowledged + 1), f"operation {fail_at}"
        ghosts += batches > acknowledged
        shutil.rmtree(directory)
    else:
        pytest.fail("the work never ended by itself")
    vfs.unregister()

    assert fail_at > 20
    # The reason for "unknown": commits that were reported as failed are there.
    assert ghosts > 0


def test_row_of_a_failed_commit_may_be_there_after_a_restart(tmp_path: Path) -> None:
    class FailingSync(FaultyVFS):
        armed = False

        def count(self) -> None:
            if self.armed and sys._getframe(1).f_code.co_name == "xSync":
                raise apsw.IOError("injected")

    vfs = FailingSync("failing-sync", apsw.IOError, True)
    EventLog.open(tmp_path).close()
    log = EventLog.open(tmp_path, vfs="failing-sync")
    log.append(make_batch(1))
    vfs.armed = True
    with pytest.raises(CommitUnknownError, match="unknown"):
        log.append(make_batch(2))
    log.close()
    vfs.unregister()
    log = EventLog.open(tmp_path)

    assert 2 * BATCH_EVENTS == log.last_position()
    log.close()


CHILD = """
import os, signal, sys
from pathlib import Path
from planaria.protocol.events import Event
from planaria.supervisor.event_log import EventLog

directory, point, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
seen = 0

def trace(name):
    global seen
    if name == point and armed:
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)

armed = False
log = EventLog.open(directory, trace=trace)
armed = True
for n in range(1, 5):
    log.append([Event("run_a", n, "harness.warning", 1, 0, 0, None, None, {"text": "x" * 9000})])
    print(n, flush=True)
    log._tried_pages = -1000
    log.checkpoint_if_due(idle=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before_begin", "frames_written", "committed", "checkpoint"])
def test_killed_writer_leaves_every_acknowledged_event(tmp_path: Path, point: str) -> None:
    at = 3
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), point, str(at)],
        stdout=subprocess.PIPE,
        timeout=30,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    acknowledged = len(child.stdout.splitlines())
    log = EventLog.open(tmp_path)
    stored = [event.sequence for _, event in log.read_run("run_a")]
    log.close()

    assert -signal.SIGKILL == child.returncode
    assert 1 <= acknowledged < 4
    assert stored == list(range(1, len(stored) + 1))
    # After a kill, unlike after a power cut, the frames that were written are there.
    written = {"before_begin": 0, "frames_written": 1, "committed": 1, "checkpoint": 0}[point]
    assert acknowledged + written == len(stored)
