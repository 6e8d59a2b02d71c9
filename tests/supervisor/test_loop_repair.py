"""Manifests of outer loops against the events: what is a finding, and how it is made anew."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_outer_loops as loops
from simulated_logs import make_rows, read_events
from world import World

from planaria.protocol.errors import EXIT_DATA_DIRECTORY, DataDirLockedError
from planaria.protocol.events import Event
from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.protocol.outer_loops import cycle_run_id, dump_manifest
from planaria.supervisor.__main__ import main
from planaria.supervisor.checker_facts import decode_row
from planaria.supervisor.event_log import EventLog
from planaria.supervisor.locks import DirectoryLock
from planaria.supervisor.loop_repair import Finding, LoopHistories, find_loop_findings
from planaria.supervisor.verify import verify_directory

LOOP = loops.LOOP
Damage = Callable[[Path], object]


class Killed(Exception):
    """The simulated supervisor is gone, and nobody starts another."""


def run_loop() -> World:
    world, lock = loops.open_world()
    loops.start_loop(world, lock)
    world.run()
    return world


def read_histories(world: World) -> LoopHistories:
    histories = LoopHistories()
    for row in make_rows(read_events(world)):
        fact = decode_row(row)
        assert not isinstance(fact, str)
        histories.take(fact)
    return histories


def find(folder: Path, world: World) -> list[Finding]:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for loop_id, data in world.manifests.items():
        (folder / f"{loop_id}.json").write_bytes(data)
    return find_loop_findings(folder, read_histories(world), lambda: None)


def kill_at(point: int, planned: bool, cycles_max: int) -> tuple[World, dict[str, Any]]:
    """Returns the world as the supervisor left it that was killed at a point."""
    world, lock = loops.open_world(planned)
    restart = world._restart_after_crash

    def stay_dead() -> None:
        raise Killed

    world._restart_after_crash = stay_dead  # type: ignore[method-assign]
    world.crash_at = point
    with pytest.raises(Killed):
        loops.start_loop(world, lock, cycles_max=cycles_max)
        world.run()
    world._restart_after_crash = restart  # type: ignore[method-assign]
    return world, lock


@pytest.mark.parametrize(("planned", "cycles_max"), [(False, 2), (True, 3)])
def test_manifest_of_a_killed_kernel_is_no_finding_and_can_be_lost(
    tmp_path: Path, planned: bool, cycles_max: int
) -> None:
    quiet, lock = loops.open_world(planned)
    loops.start_loop(quiet, lock, cycles_max=cycles_max)
    quiet.run()
    expected = loops.look(quiet)["output"]
    repaired = 0
    for point in range(1, quiet.points + 1):
        world, lock = kill_at(point, planned, cycles_max)

        assert [] == find(tmp_path / "loops", world), f"point {point}"

        world.manifests.clear()
        for finding in find(tmp_path / "loops", world):
            assert finding.anew is not None
            world.manifests[finding.loop_id] = finding.anew
            repaired += 1
        assert [] == find(tmp_path / "loops", world), f"point {point}"
        world._restart_after_crash()
        loops.start_loop(world, lock, cycles_max=cycles_max)
        world.run()
        loops.check_end(world, expected, f"point {point}")
        assert [] == find(tmp_path / "loops", world), f"point {point}"
    assert repaired > quiet.points // 2


def test_older_loop_is_compared_as_far_as_its_events_go(tmp_path: Path) -> None:
    """Without OuterLoopStarted only the file knows the goal; without inputHash it is left out."""
    world = run_loop()
    world.notes.clear()
    manifest = json.loads(world.manifests[LOOP])
    del manifest["inputHash"]
    world.manifests[LOOP] = dump_manifest(manifest)
    assert [] == find(tmp_path / "loops", world)

    manifest["cycles"][0]["status"] = "failed"
    world.manifests[LOOP] = dump_manifest(manifest)
    (finding,) = find(tmp_path / "loops", world)
    assert "cycles" in finding.problem and finding.anew is not None

    world.manifests.clear()
    (finding,) = find(tmp_path / "loops", world)
    assert finding.anew is None and "restore a backup" in str(finding)


def test_manifest_from_before_the_first_commit_is_no_finding(tmp_path: Path) -> None:
    world, _ = loops.open_world()
    manifest: dict[str, Any] = {
        "outerLoopId": LOOP, "goal": loops.GOAL, "maxCycles": 3, "cycles": [],
        "inputHash": "sha256:1", "pendingCycleRunId": cycle_run_id(LOOP, 1),
    }  # fmt: skip
    world.manifests[LOOP] = dump_manifest(manifest)
    assert [] == find(tmp_path / "loops", world)

    manifest["pendingCycleRunId"] = "run_x"
    world.manifests[LOOP] = dump_manifest(manifest)
    assert 1 == len(find(tmp_path / "loops", world))


def test_manifest_that_moves_while_it_is_looked_at_is_no_finding(tmp_path: Path) -> None:
    """A living supervisor writes its file and its events between two looks."""
    world = run_loop()
    folder = tmp_path / "loops"
    folder.mkdir()
    path = folder / f"{LOOP}.json"
    manifest = json.loads(world.manifests[LOOP])
    path.write_bytes(dump_manifest({**manifest, "cycles": [], "maxCycles": 3}))

    def write_on() -> None:
        path.write_bytes(world.manifests[LOOP])

    assert [] == find_loop_findings(folder, read_histories(world), write_on)


# -- a whole directory --------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory with the log, blobs and manifest of a loop that is done."""
    world = run_loop()
    (tmp_path / "events").mkdir()
    log = EventLog.open(tmp_path / "events")
    started = {"supervisorId": "s", "pid": 1, "epoch": 1, "version": "0"}
    events = [Event(SYSTEM_RUN_ID, 1, "SupervisorStarted", 0, 0, 1, None, None, started)]
    system = 1
    for event in read_events(world):
        if event.run_id == SYSTEM_RUN_ID:
            system += 1
            event.sequence, event.epoch = system, 1
        events.append(event)
        if event.type == "RunAdmitted":
            system += 1
            digest = f"sha256:{log.first_hash(event).hex()}"
            recorded = {"admittedRunId": event.run_id, "admissionHash": digest}
            clocks = (event.at, event.mono, event.epoch)
            events.append(
                Event(SYSTEM_RUN_ID, system, "RunRecorded", *clocks, None, None, recorded)
            )
    log.append(events)
    log.close()
    for name, data in world.library.blobs.items():
        path = tmp_path / "artifacts" / "blobs" / "sha256" / name[7:9] / name[7:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "outer-loops").mkdir()
    (tmp_path / "outer-loops" / f"{LOOP}.json").write_bytes(world.manifests[LOOP])
    return tmp_path


def change(**fields: Any) -> Damage:
    def damage(path: Path) -> None:
        path.write_bytes(dump_manifest({**json.loads(path.read_bytes()), **fields}))

    return damage


DAMAGES: list[tuple[str, Damage]] = [
    ("is missing", Path.unlink),
    ("is torn", lambda path: path.write_bytes(path.read_bytes()[:-20])),
    ("is torn", lambda path: path.write_bytes(b"")),
    ("is torn", change(outerLoopId="ol_2")),
    ("differs from the events in maxCycles", change(maxCycles=9)),
    ("differs from the events in goal", change(goal={"description": "other"})),
    ("differs from the events in inputHash", change(inputHash="sha256:other")),
    ("differs from the events in result", change(result={"output": 1})),
    ("differs from the events in pendingCycleRunId", change(pendingCycleRunId="run_x")),
    ("differs from the events in cycles", change(cycles=[])),
    ("its bytes", lambda path: path.write_bytes(path.read_bytes() + b"\n")),
]


@pytest.mark.parametrize(("problem", "damage"), DAMAGES)
def test_damaged_manifest_is_found_and_made_anew_byte_for_byte(
    directory: Path, problem: str, damage: Damage
) -> None:
    path = directory / "outer-loops" / f"{LOOP}.json"
    sound = path.read_bytes()
    assert [] == verify_directory(directory).lines()
    damage(path)
    damaged = path.read_bytes() if path.exists() else None

    (line,) = verify_directory(directory).lines()
    assert f"outer loop {LOOP!r}: its manifest" in line and problem in line
    assert damaged == (path.read_bytes() if path.exists() else None)  # looking changes nothing
    report = verify_directory(directory, with_repair=True)

    assert report.is_sound and sound == path.read_bytes()
    (line,) = report.repaired
    assert problem in line and LOOP in line
    assert () == verify_directory(directory, with_repair=True).repaired


def test_nothing_is_repaired_while_a_supervisor_runs(directory: Path) -> None:
    path = directory / "outer-loops" / f"{LOOP}.json"
    path.unlink()
    (directory / "locks").mkdir()
    lock = DirectoryLock.acquire(directory / "locks" / "supervisor")

    with pytest.raises(DataDirLockedError):
        verify_directory(directory, with_repair=True)
    assert 1 == len(verify_directory(directory).findings)
    lock.release()

    assert not path.exists()
    assert 1 == len(verify_directory(directory, with_repair=True).repaired)
    DirectoryLock.acquire(directory / "locks" / "supervisor").release()


def test_nothing_is_repaired_from_a_log_with_violations(directory: Path) -> None:
    path = directory / "outer-loops" / f"{LOOP}.json"
    path.unlink()
    log = EventLog.open(directory / "events")
    sequence = log.last_sequence(SYSTEM_RUN_ID) + 1
    stopped = {"epoch": 7, "reason": "asked"}
    at = 1 << 60
    log.append(
        [Event(SYSTEM_RUN_ID, sequence, "SupervisorStopped", at, at, 1, None, None, stopped)]
    )
    log.close()

    report = verify_directory(directory, with_repair=True)

    assert report.violations and report.findings and not report.repaired
    assert not path.exists()


def test_command_says_what_it_has_repaired(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "outer-loops" / f"{LOOP}.json").unlink()

    def verify(*flags: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["supervisor", "verify", str(directory), *flags])
        return main(), capsys.readouterr().out

    code, text = verify()
    assert EXIT_DATA_DIRECTORY == code and "--repair" in text
    code, text = verify("--repair")
    assert (0, 1) == (code, text.count("repaired: ")) and "1 outer loops" in text
    code, text = verify("--repair", "--json")
    document = json.loads(text)
    assert (0, 1, []) == (code, document["outerLoops"], document["repaired"])
