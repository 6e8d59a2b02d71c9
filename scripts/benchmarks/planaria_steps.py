"""planaria's part of `scripts/bench core`: one supervisor, real children, a client as users have.

Prints JSON. Everything from the first `start` to the last result counts: admission, validation,
every commit. Not in it: starting the supervisor, and one small run before that loads the modules.

`--profile FILE` profiles the supervisor's CPU time; `--cpu` adds how much CPU the supervisor and
its children took.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cpu_times import CpuWatch
from steps_module import make_chain

from planaria import Workflow
from planaria.client import Client
from planaria.snapshot import make_source, store_snapshot, take_snapshot

START_SECONDS = 30.0
WAIT_SECONDS = 300.0
SPARE_SECONDS = 10.0
MODULE = Path(__file__).resolve().parent / "steps_module.py"


class Bench:
    """A supervisor of its own, and a client of it."""

    def __init__(self, process: subprocess.Popen[bytes], client: Client) -> None:
        self.process = process
        self.client = client
        client.ping()
        snapshot = take_snapshot(MODULE)
        store_snapshot(snapshot, client.directory / "artifacts" / "modules")
        entry = f"{MODULE.stem}:flow"
        self._source = make_source(
            snapshot, kind="module", entry=entry, file=None, paths=[str(MODULE.parent)]
        )
        self._started = 0

    def start(self, workflow: Workflow) -> str:
        """Starts a run and returns its id; the modules were stored once, before."""
        self._started += 1
        return self.client.start_document(
            workflow_id=workflow.id,
            definition_hash=workflow.definition_hash,
            lock=workflow.lock,
            source=self._source,
            input=None,
            run_id=f"run_{self._started}",
        )

    def wait(self, run_id: str) -> Any:
        """Returns a run's output."""
        return self.client.wait(run_id, timeout=WAIT_SECONDS).output

    def wait_spare(self) -> None:
        """Waits until a blank process is there for the next session."""
        deadline = time.monotonic() + SPARE_SECONDS
        while not any(p["status"] == "blank" for p in self.client.processes()):
            assert time.monotonic() < deadline, "no blank process"
            time.sleep(0.02)


@contextmanager
def open_bench(directory: Path, profile: str | None) -> Iterator[Bench]:
    """Yields a bench in an empty directory; the fsync shim, if wanted, is in LD_PRELOAD."""
    data = directory / "data"
    program = ["-m", "planaria.supervisor", "serve", str(data)]
    if profile:
        program = [str(MODULE.parent / "profiled.py"), profile, *program[2:]]
    with open(directory / "supervisor.log", "wb") as log:
        process = subprocess.Popen([sys.executable, *program], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (data / "supervisor.json").exists():
            assert process.poll() is None and time.monotonic() < deadline, "no supervisor"
            time.sleep(0.01)
        with Client(data, start_if_missing=False) as client:
            yield Bench(process, client)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_SECONDS)


def measure_steps(bench: Bench, runs: int, steps: int, *, with_cpu: bool) -> dict[str, Any]:
    """Returns how long so many runs of so many steps took, all started at once."""
    workflow = make_chain("echo", [{"n": i} for i in range(steps)])
    bench.wait(bench.start(workflow))
    watch = CpuWatch(bench.process.pid) if with_cpu else None
    begin = time.perf_counter()
    started = [bench.start(workflow) for _ in range(runs)]
    outputs = [bench.wait(run_id) for run_id in started]
    seconds = time.perf_counter() - begin
    assert outputs == [{"n": steps - 1}] * runs, outputs[:3]
    result: dict[str, Any] = {"seconds": seconds, "steps": runs * steps}
    if watch is not None:
        result["cpu_seconds"] = watch.stop()
    return result


def measure_kills(bench: Bench, directory: Path, kills: int) -> dict[str, Any]:
    """Returns the ms from each SIGKILL of a working child to its successor's work."""
    arguments = [{"n": n, "folder": str(directory)} for n in range(kills)]
    run_id = bench.start(make_chain("work", arguments))
    latencies: list[float] = []
    for n in range(kills):
        path = directory / f"work-{n}"
        pid, _ = wait_lines(path, 1)[0]
        bench.wait_spare()
        killed = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        successor, worked = wait_lines(path, 2)[1]
        assert successor != pid
        latencies.append((worked - killed) / 1e6)
    bench.wait(run_id)
    return {"milliseconds": latencies, "p50": statistics.median(latencies)}


def wait_lines(path: Path, count: int) -> list[tuple[int, int]]:
    """Returns (pid, monotonic ns) of each start of a step's body, when there are so many."""
    deadline = time.monotonic() + SPARE_SECONDS
    while True:
        text = path.read_text() if path.exists() else ""
        if text.count("\n") >= count:
            pairs = [line.split() for line in text.splitlines()]
            return [(int(pid), int(at)) for pid, at in pairs]
        assert time.monotonic() < deadline, f"nobody works in {path.name}"
        time.sleep(0.002)


def main() -> None:
    """Runs what the arguments say and prints the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["steps", "kills"])
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--profile")
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    with open_bench(arguments.directory, arguments.profile) as bench:
        if arguments.what == "steps":
            result = measure_steps(bench, arguments.runs, arguments.steps, with_cpu=arguments.cpu)
        else:
            result = measure_kills(bench, arguments.directory, arguments.kills)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
