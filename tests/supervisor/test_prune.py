"""Pruning: whole families, recorded, safe to kill, and nothing more than asked for."""

import os
from pathlib import Path
from typing import Any

import apsw
import pytest
from stored_runs import DAY_US, StoredRuns, kill_at, read_tree, run_ids

from planaria.protocol.errors import DataDirectoryError, DataDirLockedError
from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.protocol.outer_loops import cycle_run_id
from planaria.supervisor.checker_facts import Fact
from planaria.supervisor.checker_rules_prunes import PruneRules
from planaria.supervisor.event_reader import EventReader
from planaria.supervisor.locks import DirectoryLock
from planaria.supervisor.log_pruning import RetentionReader
from planaria.supervisor.prune import PruneReport, Pruning, prune_directory
from planaria.supervisor.verify import verify_directory

MONTH_MS = 30 * DAY_US // 1_000
POINTS = ("S4", "S5", "S6", "prune_committed", "prune_files", "prune_swept")


@pytest.fixture
def stored(tmp_path: Path) -> StoredRuns:
    return StoredRuns(tmp_path / "d")


def prune(stored: StoredRuns, **more: Any) -> PruneReport:
    stored.age()
    stored.close()
    return prune_directory(stored.directory.root, MONTH_MS, **more)


def test_old_runs_go_and_the_log_says_so(stored: StoredRuns, tmp_path: Path) -> None:
    stored.run("a_old", content=b"old" * 100, files={"a.py": b"old"})
    stored.run("b_young", days=29, content=b"young" * 100, files={"a.py": b"young"})
    stored.run("c_open", is_open=True)
    stored.run("d_old", days=31)
    report = prune(stored)

    root = tmp_path / "d"
    assert ["a_old", "d_old"] == [run.run_id for run in report.runs]
    assert ["b_young", "c_open"] == run_ids(root) == sorted(os.listdir(root / "runs"))
    assert (10, 1, 1) == (report.events, report.blobs, report.modules)
    verified = verify_directory(root, integrity_check=True)
    assert [] == verified.lines()
    assert 0 == verified.unreferenced
    reader = EventReader.open(root / "events" / "events.db")
    events = [event for _, event in reader.read_run(SYSTEM_RUN_ID)]
    assert [{"prunedRunId": "a_old", "events": 5, "firstPosition": 2, "lastPosition": 7}] == [
        {k: event.payload[k] for k in ("prunedRunId", "events", "firstPosition", "lastPosition")}
        for event in events
        if event.type == "RunPruned" and event.payload["prunedRunId"] == "a_old"
    ]
    assert ["RunPruned", "RunPruned", "SupervisorStopped"] == [e.type for e in events[-3:]]
    reader.close()


def test_definitions_memory_and_what_values_name_stay(stored: StoredRuns, tmp_path: Path) -> None:
    inner = stored.blob(b"named by a value of a value")
    outer = stored.blob(f'{{"plan": "{inner["sha256"]}"}}'.encode())
    stored.run("old", lock=b"\x81\xa4lwir\x81\xa5steps\x90")
    stored.run("young", days=1, labels={"n": [outer["sha256"], 50]})
    (tmp_path / "d" / "memory" / "note.md").write_text("kept")
    prune(stored)

    assert stored.blobs.exists(inner)
    assert stored.blobs.exists(outer)
    assert (tmp_path / "d" / "memory" / "note.md").exists()
    assert 3 == len([path for path in stored.directory.blobs.rglob("*") if path.is_file()])
    assert verify_directory(tmp_path / "d").is_sound


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ({"p": {}, "c": {"parentRunId": "p"}, "g": {"parentRunId": "c"}}, []),
        ({"p": {}, "c": {"parentRunId": "p", "days": 1}}, ["c", "p"]),
        ({"p": {"days": 1}, "c": {"parentRunId": "p"}}, ["c", "p"]),
        (
            {
                "p": {},
                "c": {"parentRunId": "p"},
                "g": {"parentRunId": "c", "is_open": True},
            },
            "cgp",
        ),
        ({"p": {}, "c": {"parentRunId": "p", "days": 1}, "other": {}}, ["c", "p"]),
    ],
)
def test_families_go_together_or_stay_together(
    stored: StoredRuns,
    tmp_path: Path,
    runs: dict[str, dict[str, Any]],
    expected: list[str],
) -> None:
    for run_id, more in runs.items():
        stored.run(run_id, **more)
    prune(stored)

    assert list(expected) == run_ids(tmp_path / "d")


@pytest.mark.parametrize(
    ("cycles_max", "days", "is_gone"), [(2, 60, True), (3, 60, False), (2, 1, False)]
)
def test_cycles_stay_with_a_loop_that_isnt_finished(
    stored: StoredRuns, tmp_path: Path, cycles_max: int, days: int, is_gone: bool
) -> None:
    first, second = cycle_run_id("ol_1", 1), cycle_run_id("ol_1", 2)
    stored.run(first, outerLoopId="ol_1", cycleNumber=1)
    stored.run(second, days=days, outerLoopId="ol_1", cycleNumber=2)
    stored.run("sub", parentRunId=first)
    manifest = stored.loop("ol_1", [first, second], cycles_max)
    prune(stored)

    assert ([] if is_gone else sorted([first, second, "sub"])) == run_ids(tmp_path / "d")
    assert is_gone != manifest.exists()


def test_dry_run_tells_what_would_go_and_changes_nothing(
    stored: StoredRuns, tmp_path: Path
) -> None:
    stored.run("old", content=b"old" * 100, files={"a.py": b"old"})
    stored.run("young", days=1)
    stored.age()
    stored.close()
    DirectoryLock.acquire(tmp_path / "d" / "locks" / "supervisor").release()
    before = read_tree(tmp_path / "d")
    lock = DirectoryLock.acquire(tmp_path / "d" / "locks" / "supervisor")
    told = prune_directory(tmp_path / "d", MONTH_MS, is_dry_run=True)
    lock.release()
    after = read_tree(tmp_path / "d")
    done = prune_directory(tmp_path / "d", MONTH_MS)

    assert before.keys() == after.keys()
    assert before["events/events.db"] == after["events/events.db"]
    assert ["old"] == [run.run_id for run in told.runs]
    assert told.runs == done.runs
    assert (told.blobs, told.modules, told.file_bytes) == (
        done.blobs,
        done.modules,
        done.file_bytes,
    )


@pytest.mark.parametrize("point", POINTS)
def test_killed_prune_leaves_a_sound_directory_and_the_next_one_ends_it(
    stored: StoredRuns, tmp_path: Path, point: str
) -> None:
    stored.run("a_old", content=b"old" * 100, files={"a.py": b"old"})
    stored.run("b_young", days=1)
    stored.run("c_old")
    artifact = stored.blob(b"artifact")
    manifest = f'{{"runId": "a_old", "sha256": "{artifact["sha256"]}", "size": 8}}'
    (tmp_path / "d" / "artifacts" / "art_1.json").write_text(manifest)
    stored.age()
    stored.close()
    kill_at(point, "prune", "--older-than-ms", str(MONTH_MS), tmp_path / "d")

    assert [] == verify_directory(tmp_path / "d").lines()
    prune_directory(tmp_path / "d", MONTH_MS)
    assert ["b_young"] == run_ids(tmp_path / "d")
    verified = verify_directory(tmp_path / "d")
    assert [] == verified.lines()
    assert 0 == verified.unreferenced
    assert ["b_young"] == os.listdir(tmp_path / "d" / "runs")
    assert [] == os.listdir(tmp_path / "d" / "artifacts" / "modules")
    assert [] == list((tmp_path / "d" / "artifacts").glob("*.json"))


def test_young_blobs_stay_though_nothing_names_them_yet(stored: StoredRuns) -> None:
    stored.age()
    ref = stored.blob(b"a client is about to ask for a run with it")
    stored.close()
    report = prune_directory(stored.directory.root, MONTH_MS)

    assert 0 == report.blobs
    assert stored.blobs.exists(ref)


def test_pruned_id_may_be_used_again(stored: StoredRuns, tmp_path: Path) -> None:
    stored.run("again")
    prune(stored)
    second = StoredRuns(tmp_path / "d")
    second.run("again", days=1)
    second.close()
    report = prune_directory(tmp_path / "d", MONTH_MS)

    assert [] == report.runs
    assert ["again"] == run_ids(tmp_path / "d") == os.listdir(tmp_path / "d" / "runs")
    assert [] == verify_directory(tmp_path / "d").lines()


def test_events_are_still_only_appended_afterwards(stored: StoredRuns, tmp_path: Path) -> None:
    stored.run("old")
    stored.run("young", days=1)
    prune(stored)
    connection = apsw.Connection(str(tmp_path / "d" / "events" / "events.db"))
    try:
        with pytest.raises(apsw.ConstraintError, match="never deleted"):
            connection.execute("DELETE FROM events WHERE run_id = 'young'")
    finally:
        connection.close()


def test_hole_that_no_prune_explains_is_found(stored: StoredRuns, tmp_path: Path) -> None:
    stored.run("old")
    stored.run("victim", days=1)
    stored.run("young", days=1)
    prune(stored)
    connection = apsw.Connection(str(tmp_path / "d" / "events" / "events.db"))
    try:
        connection.execute("DROP TRIGGER events_not_deleted")
        connection.execute("DELETE FROM events WHERE run_id = 'victim'")
        connection.execute("DELETE FROM runs WHERE run_id = 'victim'")
    finally:
        connection.close()
    lines = verify_directory(tmp_path / "d").lines()

    assert any("no pruned run had them" in line for line in lines), lines
    assert any("'victim'" in line and "it has no events" in line for line in lines), lines


def test_damaged_run_is_evidence_and_stays(stored: StoredRuns, tmp_path: Path) -> None:
    stored.run("a_old")
    stored.run("b_old")
    stored.age()
    stored.close()
    connection = apsw.Connection(str(tmp_path / "d" / "events" / "events.db"))
    try:
        connection.execute("DROP TRIGGER events_not_updated")
        connection.execute(
            "UPDATE events SET hash = zeroblob(32) WHERE run_id = 'a_old' AND sequence = 3"
        )
    finally:
        connection.close()
    report = prune_directory(tmp_path / "d", MONTH_MS)

    assert ["b_old"] == [run.run_id for run in report.runs]
    assert ["a_old"] == run_ids(tmp_path / "d")
    assert 1 == len(report.left) and "'a_old'" in report.left[0]


def test_directory_in_use_is_refused(stored: StoredRuns, tmp_path: Path) -> None:
    stored.close()
    lock = DirectoryLock.acquire(tmp_path / "d" / "locks" / "supervisor")
    with pytest.raises(DataDirLockedError, match="planaria down"):
        prune_directory(tmp_path / "d", MONTH_MS)
    lock.release()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataDirectoryError, match="no event log"):
        prune_directory(tmp_path / "empty", MONTH_MS)


def test_nothing_to_prune_leaves_the_log_as_it_is(stored: StoredRuns, tmp_path: Path) -> None:
    stored.run("young", days=1)
    stored.close()
    reader = EventReader.open(tmp_path / "d" / "events" / "events.db")
    before = reader.last_position()
    prune_directory(tmp_path / "d", MONTH_MS)

    assert before == reader.last_position()
    reader.close()


def test_run_that_is_opened_again_between_two_slices_stays(
    stored: StoredRuns, tmp_path: Path
) -> None:
    stored.run("a_old")
    stored.run("b_old")
    stored.age()
    reader = RetentionReader.open(stored.directory.database)
    pruned: list[str] = []
    pruning = Pruning(
        stored.directory,
        reader,
        lambda notes, run_ids: pruned.extend(run_ids),
        cutoff_at=stored.log.read_all(0)[-1][1].at + DAY_US,
    )
    slices = pruning.slices()
    next(slices)  # the families are known
    reopened = {"by": "p", "reason": None, "fromSequence": 5}
    stored.add("b_old", "RunReopened", reopened)
    for _ in slices:
        pass
    reader.close()
    stored.close()

    assert ["a_old"] == pruned


def test_file_is_compacted_when_most_of_it_is_free(stored: StoredRuns, tmp_path: Path) -> None:
    for number in range(20):
        stored.run(f"old{number}", labels={"text": "x" * 50_000})
    stored.run("young", days=1)
    stored.log.checkpoint_if_due(idle=True)
    stored.age()
    stored.close()
    path = tmp_path / "d" / "events" / "events.db"
    before = path.stat().st_size
    report = prune_directory(tmp_path / "d", MONTH_MS)

    assert report.is_compacted
    assert path.stat().st_size < before / 4
    assert [] == verify_directory(tmp_path / "d", integrity_check=True).lines()


def test_more_missing_than_was_pruned_is_found() -> None:
    found: list[tuple[str, str]] = []
    rules = PruneRules()
    rules.note_hole(2, 5)
    pruned = {"prunedRunId": "r", "events": 3, "firstPosition": 2, "lastPosition": 5}
    fact = Fact(SYSTEM_RUN_ID, 9, "RunPruned", 1, 1, 1, None, None, pruned, b"")
    rules.take(fact, False, True, lambda *violation: found.append(violation))
    rules.finish(lambda *violation: found.append(violation))

    assert [("I1", "4 positions are missing; pruned runs had 3 events")] == found


def test_fork_of_a_pruned_run_has_an_origin() -> None:
    found: list[str] = []
    rules = PruneRules()
    rules.note_origin("fork", "origin", 3)
    rules.note_origin("later", "origin", 4)
    pruned = {"prunedRunId": "origin", "events": 3, "firstPosition": 2, "lastPosition": 4}
    fact = Fact(SYSTEM_RUN_ID, 9, "RunPruned", 1, 1, 1, None, None, pruned, b"")
    rules.note_hole(2, 4)
    rules.take(fact, False, True, lambda _, message: found.append(message))
    rules.finish(lambda _, message: found.append(message))

    assert ["'later' was forked from event 4 of 'origin': there is none"] == found
