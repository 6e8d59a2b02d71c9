"""DBOS's part of `scripts/bench core`, run by the peers' own python. Prints JSON.

SQLite as shipped: nothing is configured but the file. Each step of the workflow is a DBOS step, so
its outcome is recorded before the next one begins.
"""

import argparse
import json
import os
import time
from pathlib import Path

from dbos import DBOS, DBOSConfig, SetWorkflowID

WORKFLOW_ID = "killed"


@DBOS.step()
def echo(n: int) -> dict[str, int]:
    """The trivial step body, the same for all peers."""
    return {"n": n}


@DBOS.step()
def work(folder: str) -> None:
    """Notes that it works; the first time it then waits to be killed."""
    path = Path(folder) / "work"
    is_first = not path.exists()
    with open(path, "a") as file:
        file.write(f"{os.getpid()} {time.monotonic_ns()}\n")
    if is_first:
        time.sleep(60)


@DBOS.workflow()
def chain(steps: int) -> dict[str, int]:
    """Calls a step so many times, one after another."""
    result = {"n": -1}
    for n in range(steps):
        result = echo(n)
    return result


@DBOS.workflow()
def single(folder: str) -> None:
    """One step that is killed."""
    work(folder)


def measure_steps(runs: int, steps: int) -> dict[str, float]:
    """Returns how long so many runs of so many steps took, all started at once."""
    DBOS.start_workflow(chain, steps).get_result()
    begin = time.perf_counter()
    handles = [DBOS.start_workflow(chain, steps) for _ in range(runs)]
    outputs = [handle.get_result() for handle in handles]
    seconds = time.perf_counter() - begin
    assert outputs == [{"n": steps - 1}] * runs, outputs[:3]
    return {"seconds": seconds, "steps": runs * steps}


def main() -> None:
    """Runs what the arguments say and prints the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["steps", "kills"])
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    database = arguments.directory / "dbos.sqlite"
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": f"sqlite:///{database}",
        "log_level": "ERROR",
        "run_admin_server": False,
        "application_version": "bench",
    }
    DBOS(config=config)
    DBOS.launch()  # recovers what a killed process left
    if arguments.what == "steps":
        print(json.dumps(measure_steps(arguments.runs, arguments.steps)))
    else:
        with SetWorkflowID(WORKFLOW_ID):
            DBOS.start_workflow(single, str(arguments.directory)).get_result()
        print(json.dumps({"done": True}))
    DBOS.destroy()


if __name__ == "__main__":
    main()
