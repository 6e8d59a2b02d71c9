"""`scripts/bench core`: planaria beside DBOS and LangGraph; prints ratios of medians, writes JSON.

Each measurement is a process of its own with an empty directory, and the rounds are interleaved, so
that what else the machine does meets all alike. How it is set up: docs/benchmarks.md.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
BUILD = FOLDER.parent.parent / "build"
PEERS = ["dbos", "langgraph", "langgraph-checkpoint-sqlite"]
PEERS_PYTHON = BUILD / "bench-venv" / "bin" / "python"
SECONDS_MAX = 300
PEER_KILLS_MAX = 5  # a peer's restart takes seconds
SYSTEMS = ("planaria", "dbos", "langgraph")
PROGRAMS = {
    "planaria": (sys.executable, "planaria_steps.py"),
    "dbos": (str(PEERS_PYTHON), "peer_dbos.py"),
    "langgraph": (str(PEERS_PYTHON), "peer_langgraph.py"),
}
ROWS = {
    "1 run x 200 steps": ["--runs", "1", "--steps", "200"],
    "50 runs x 20 steps at once": ["--runs", "50", "--steps", "20"],
    "the same, +2 ms per fsync": ["--runs", "50", "--steps", "20"],
}
SLOW_ROW = "the same, +2 ms per fsync"
KILL_ROW = "SIGKILL to the successor's work"
# Of section 8 of the architecture: steps/s as multiples of the peers', ms for the kills.
TARGETS: dict[str, dict[str, float]] = {
    "1 run x 200 steps": {"dbos": 3, "langgraph": 1.5},
    "50 runs x 20 steps at once": {"dbos": 15, "langgraph": 6},
    SLOW_ROW: {"dbos": 30},
}
KILL_TARGETS = {"p50": 25, "p90": 40}


def prepare_peers() -> dict[str, str]:
    """Makes the peers' virtual environment if it isn't there; returns their versions."""
    if not PEERS_PYTHON.exists():
        print(f"bench: installing {', '.join(PEERS)} in {PEERS_PYTHON.parent.parent}")
        venv.create(PEERS_PYTHON.parent.parent, with_pip=True, clear=True)
        pip = [str(PEERS_PYTHON), "-m", "pip", "install", "--quiet", *PEERS]
        subprocess.run(pip, check=True)
    code = "import importlib.metadata as m, sys; print(*(m.version(n) for n in sys.argv[1:]))"
    answer = subprocess.run(
        [str(PEERS_PYTHON), "-c", code, *PEERS], check=True, capture_output=True, text=True
    )
    return dict(zip(PEERS, answer.stdout.split(), strict=True))


def build_shim() -> Path | None:
    """Returns the library that makes fsync slow, or None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = BUILD / "slow_fsync.so"
    source = FOLDER / "slow_fsync.c"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


def call(system: str, directory: Path, arguments: list[str], shim: Path | None = None) -> Any:
    """Returns what a system's program prints; `shim` is loaded into it and what it starts."""
    python, program = PROGRAMS[system]
    environment = {**os.environ, **({"LD_PRELOAD": str(shim)} if shim else {})}
    done = subprocess.run(
        [python, str(FOLDER / program), *arguments, "--directory", str(directory)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment,
        cwd=directory,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program} {arguments} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_rate(system: str, row: str, shim: Path | None, parent: Path) -> float:
    """Returns the steps/s of one round."""
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        shim = shim if row == SLOW_ROW else None
        result = call(system, Path(directory), ["steps", *ROWS[row]], shim)
    return float(result["steps"] / result["seconds"])


def measure_kills(system: str, kills: int, parent: Path) -> list[float]:
    """Returns the ms of each kill; a peer is started again by hand at once."""
    if system == "planaria":
        with tempfile.TemporaryDirectory(dir=parent) as directory:
            arguments = ["kills", "--kills", str(kills)]
            found: list[float] = call(system, Path(directory), arguments)["milliseconds"]
        return found
    return [_kill_peer(system, parent) for _ in range(min(kills, PEER_KILLS_MAX))]


def _kill_peer(system: str, parent: Path) -> float:
    python, program = PROGRAMS[system]
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        command = [python, str(FOLDER / program), "kills", "--directory", directory]
        note = Path(directory) / "work"
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=directory)
        _wait(lambda: note.exists() and note.read_text().endswith("\n"))
        begin = time.monotonic_ns()
        process.kill()
        successor = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=directory)
        process.wait()
        if successor.wait(SECONDS_MAX) != 0:
            raise RuntimeError(f"{program} kills: the successor failed")
        return (int(note.read_text().splitlines()[1].split()[1]) - begin) / 1e6


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("nobody works")
        time.sleep(0.005)


def percentile(values: list[float], share: float) -> float:
    """Returns the value below which that share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(rounds: int, kills: int, systems: list[str], parent: Path) -> dict[str, Any]:
    """Returns the steps/s of every row, system and round, and the ms of every kill."""
    shim = build_shim()
    rates: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        for row in ROWS:
            if row == SLOW_ROW and shim is None:
                continue
            for system in systems:
                rate = measure_rate(system, row, shim, parent)
                rates.setdefault(row, {}).setdefault(system, []).append(rate)
                print(f"round {number + 1}: {row}: {system}: {rate:,.0f} steps/s", flush=True)
    latencies = {system: measure_kills(system, kills, parent) for system in systems if kills}
    return {"steps_per_second": rates, "kill_milliseconds": latencies}


def make_report(measured: dict[str, Any]) -> list[str]:
    """Returns the table: medians, and planaria's as multiples of the peers' with the targets."""
    lines = []
    for row, rates in measured["steps_per_second"].items():
        medians = {system: statistics.median(values) for system, values in rates.items()}
        shown = ", ".join(f"{system} {value:,.0f}" for system, value in medians.items())
        lines.append(f"{row}: {shown} steps/s")
        for peer in medians.keys() & TARGETS[row].keys() if "planaria" in medians else ():
            ratio, target = medians["planaria"] / medians[peer], TARGETS[row][peer]
            lines.append(f"    {ratio:.2f} x {peer} (target {target:g})")
    for system, values in measured["kill_milliseconds"].items():
        p50, p90 = percentile(values, 0.5), percentile(values, 0.9)
        target = f" (target {KILL_TARGETS['p50']} and {KILL_TARGETS['p90']})"
        lines.append(
            f"{KILL_ROW}: {system} p50 {p50:,.0f} ms, p90 {p90:,.0f} ms, {len(values)} kills"
            + (target if system == "planaria" else "")
        )
    return lines


def main() -> None:
    """Measures, prints and writes build/bench-core.json."""
    parser = argparse.ArgumentParser(prog="bench core")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20, help="0: none")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    arguments = parser.parse_args()
    BUILD.mkdir(exist_ok=True)
    versions = {} if arguments.without_peers else prepare_peers()
    systems = ["planaria"] if arguments.without_peers else list(SYSTEMS)
    measured = measure(arguments.rounds, arguments.kills, systems, arguments.directory or BUILD)
    report = make_report(measured)
    print("\n".join(["", *report]))
    facts = {"peers": versions, "cores": os.cpu_count(), "python": sys.version.split()[0]}
    facts["at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    document = {**facts, **measured, "report": report}
    (BUILD / "bench-core.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
