import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from planaria.supervisor import process_tree
from planaria.supervisor.process_tree import ProcessStat

pytestmark = pytest.mark.slow

# A process with a child in a session of its own, which has a child as well.
TREE = """
import subprocess, sys
inner = "import subprocess; subprocess.Popen(['sleep', '1000']); print('up', flush=True); input()"
subprocess.Popen([sys.executable, '-c', inner], start_new_session=True).wait()
"""


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, process_tree.MARKER_VARIABLE: uuid.uuid4().hex}
    command = [sys.executable, "-c", TREE]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as root:
        assert root.stdout is not None
        root.stdout.readline()
        everyone = process_tree.descendants(root.pid)
        yield root
        root.kill()
        for stat in everyone:
            process_tree.signal_process(stat.pid, stat.start_time, signal.SIGKILL)


def stat_of(pid: int) -> ProcessStat:
    stat = process_tree.read_stat(pid)
    assert stat is not None
    return stat


def test_descendants_in_other_sessions_are_found_nearest_first(
    tree: subprocess.Popen[bytes],
) -> None:
    child, grandchild = process_tree.descendants(tree.pid)

    assert (tree.pid, child.pid) == (child.parent, grandchild.parent)
    assert child.session == child.pid != tree.pid


def test_frozen_tree_is_stopped_as_a_whole(tree: subprocess.Popen[bytes]) -> None:
    frozen = process_tree.freeze_tree(tree.pid, stat_of(tree.pid).start_time)

    assert 3 == len(frozen)
    deadline = time.monotonic() + 5
    for stat in frozen:
        while stat_of(stat.pid).state != "T":
            assert time.monotonic() < deadline, f"{stat} was not stopped"


def test_killed_tree_is_gone_as_a_whole(tree: subprocess.Popen[bytes]) -> None:
    killed = process_tree.kill_tree(tree.pid, stat_of(tree.pid).start_time, wait_seconds=5)

    assert 3 == len(killed)
    assert [] == process_tree.wait_gone(killed, time.monotonic())


def test_process_with_a_pid_used_again_is_spared(tree: subprocess.Popen[bytes]) -> None:
    earlier = stat_of(tree.pid).start_time - 1

    assert [] == process_tree.kill_tree(tree.pid, earlier, wait_seconds=1)
    assert not process_tree.signal_process(tree.pid, earlier, signal.SIGKILL)
    assert tree.poll() is None


def test_marked_processes_are_killed_and_others_spared(tree: subprocess.Popen[bytes]) -> None:
    everyone = [stat_of(tree.pid), *process_tree.descendants(tree.pid)]
    marker = process_tree.read_environment(tree.pid)[process_tree.MARKER_VARIABLE.encode()]

    assert [] == process_tree.kill_marked("another")
    assert tree.poll() is None
    assert [] == process_tree.kill_marked(marker.decode())
    assert [] == process_tree.wait_gone(everyone, time.monotonic())


def test_facts_name_the_process_and_its_use() -> None:
    facts = process_tree.process_facts(os.getpid())

    assert facts is not None
    assert (os.getpid(), os.getppid()) == (facts.pid, facts.parent)
    assert facts.memory_bytes > 1_000_000 and facts.threads >= 1
    assert facts.start_time == stat_of(os.getpid()).start_time


def test_process_that_is_gone_has_no_facts() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()

    assert process_tree.read_stat(ended.pid) is None
    assert process_tree.process_facts(ended.pid) is None
    assert [] == process_tree.descendants(ended.pid)


def test_boot_id_is_a_uuid() -> None:
    assert uuid.UUID(process_tree.boot_id()).version == 4
