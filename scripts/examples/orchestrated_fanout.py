"""An orchestrator plans a workflow once and runs that version for 50 files, ten at a time.

The orchestrator is an agent whose tools are workflows. In its first turn it lists the files and has
the workflow planned, in its second one it asks for all sub-runs at once, in its third one it sums
them up. Each sub-run measures a real file in a process of its own. Killed with SIGKILL: the
planner, a measuring tool, the orchestrator when 30 of 50 sub-runs are done, and the supervisor.
In the end there are 50 sub-runs, and each file was measured once.

    .venv/bin/python scripts/examples/orchestrated_fanout.py [FOLDER] [--seed N] [--quick]

FOLDER has the Python files, of which the first 50 count; by default the standard library's.
--quick takes 12 files.
"""

import json
import sys
from pathlib import Path
from typing import Any

from disturbance import (
    Blow,
    Example,
    Played,
    Row,
    Scene,
    in_turn,
    of_supervisor,
    read_options,
)
from fanout_agents import AT_ONCE, fanout
from rich.console import Console

from planaria import Client

FILES = 50
FILES_QUICK = 12


def main() -> int:
    """Runs the example; returns its exit code."""
    options = read_options(__doc__ or "", str(Path(json.__file__).parents[1]))
    wanted = FILES_QUICK if options.quick else FILES
    files = len(list(Path(options.folder).glob("*.py"))[:wanted])

    def perform(client: Client) -> Any:
        place = {"folder": options.folder, "files": files}
        run_id = client.start(fanout, place, run_id="fanout")
        return client.wait(run_id).output

    def find_orchestrator(scene: Scene) -> int | None:
        if scene.count_ended("measure_source") < files * 3 // 5:
            return None
        own = [p["pid"] for p in scene.processes if p["stepPath"] == ".orchestrate"]
        return own[0] if own else None

    def find_measuring(scene: Scene) -> int | None:
        return next(iter(scene.pids_in("measure_source")), None)

    blows = [
        in_turn("planner", 1),
        Blow("a sub-run, inside of its tool", find_measuring),
        of_supervisor(
            f"when {files // 5} of {files} are done",
            lambda scene: scene.count_ended("measure_source") >= files // 5,
        ),
        Blow(f"the orchestrator, when {files * 3 // 5} of {files} are done", find_orchestrator),
        in_turn("orchestrator", 3),
    ]

    def find_rows(played: Played) -> list[Row]:
        return list_sub_runs(played, files)

    return Example(perform, blows, find_rows, show, seed=options.seed).main()


def list_sub_runs(played: Played, files: int) -> list[Row]:
    """Returns how many sub-runs there were, and how many versions."""
    runs = [run for run_id, run in played.events.items() if run_id != "fanout"]
    started = [run for run in runs if any(event["type"] == "RunStarted" for event in run)]
    done = [run for run in started if any(event["type"] == "RunCompleted" for event in run)]
    planned = [run for run in runs if any(e["payload"].get("role") == "planner" for e in run)]
    most = count_at_once(played)
    recorded = [event for run in started for event in run if is_measured(event)]
    return [
        ("sub-runs, each completed once", f"{len(done)} of {files}", len(done) == files),
        ("files measured and recorded", str(len(recorded)), len(recorded) == files),
        ("times the workflow was planned", str(len(planned)), len(planned) == 1),
        ("sub-runs at once, at most", str(most), most <= AT_ONCE),
    ]


def is_measured(event: dict[str, Any]) -> bool:
    """Says whether an event is the recorded outcome of a measuring tool."""
    return bool(event["type"] == "harness.tool_call.succeeded")


def count_at_once(played: Played) -> int:
    """Returns how many sub-runs ran at once, by the order of the events in the log."""
    ends = ("RunCompleted", "RunFailed", "RunCancelled")
    changes = [
        (event["position"], 1 if event["type"] == "RunStarted" else -1)
        for run_id, run in played.events.items()
        if run_id != "fanout" and any(event["type"] == "RunStarted" for event in run)
        for event in run
        if event["type"] in ("RunStarted", *ends)
    ]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def show(console: Console, played: Played) -> None:
    """Prints the orchestrator's summary."""
    console.print(json.dumps(played.result), markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
