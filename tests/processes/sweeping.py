"""The exhaustive sweep behind scripts/sweep: every point x every time it is reached x program."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from harness import Trial, try_faults
from process_programs import CLASSES, MODEL, PARALLEL, RESUMED
from role_programs import FIXED, LOOPED, ORCHESTRATED_FEW, PLANNED, PLANNED_LOOP

PROGRAMS = {
    "classes": CLASSES,
    "parallel": PARALLEL,
    "resumed": RESUMED,
    "model": MODEL,
    "planned": PLANNED,
    "orchestrated": ORCHESTRATED_FEW,
    "fixed": FIXED,
    "looped": LOOPED,
    "planned-loop": PLANNED_LOOP,
}
CHILD_POINTS = [f"C{number}" for number in range(16)]
SUPERVISOR_POINTS = [f"S{number}" for number in range(16)]  # S0 to S3: once, in the start
# Only a resumed session is fast-forwarded; only a child's death brings the supervisor to S14.
ONLY_RESUMED = {"C2", "S14"}
ONLY_LOOPS = {"S11", "S12"}


def main() -> int:
    """Sweeps what the arguments name; returns 0 when the table is as it should be."""
    arguments = _make_parser().parse_args()
    points = arguments.points or [*CHILD_POINTS, *SUPERVISOR_POINTS]
    began = time.monotonic()
    rows: list[tuple[str, str, int, list[str]]] = []
    with tempfile.TemporaryDirectory(prefix="sweep-") as folder:
        for name in arguments.program or PROGRAMS:
            for point in points:
                if point in ONLY_RESUMED and name != "resumed":
                    continue
                if point in ONLY_LOOPS and PROGRAMS[name].cycles_max is None:
                    continue
                trials = list(_sweep(Path(folder), name, point, arguments))
                hits = sum(1 for _, trial in trials if trial.was_hit)
                problems = [f"{n}: {trial.problem}" for n, trial in trials if trial.problem]
                rows.append((name, point, hits, problems))
                _say(f"{name:12} {point:4} {hits:3} kills, {len(problems)} findings")
    _print_table(rows)
    found = sum(len(problems) for _, _, _, problems in rows)
    missed = [f"{name} {point}" for name, point, hits, _ in rows if hits == 0]
    kills = sum(hits for _, _, hits, _ in rows)
    print(f"{kills} kills in {time.monotonic() - began:.0f} s, {found} findings")
    if missed:
        print(f"never reached: {', '.join(missed)}")
    is_good = found > 0 if arguments.plant else found == 0 and not missed
    return 0 if is_good else 1


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/sweep")
    parser.add_argument("points", nargs="*", metavar="POINT")
    parser.add_argument("--program", action="append", choices=list(PROGRAMS))
    parser.add_argument("--plant", action="append", default=[], metavar="BUG")
    parser.add_argument("--most", type=int, default=10_000, metavar="N")
    return parser


def _sweep(
    folder: Path, name: str, point: str, arguments: argparse.Namespace
) -> Iterator[tuple[int, Trial]]:
    """Yields (n, trial) with a kill at the n-th time, until the point isn't reached so often."""
    for n in count(1):
        if n > arguments.most:
            return
        trial = try_faults(
            folder / f"{name}-{point}-{n}", _make_faults(point, n, arguments.plant), PROGRAMS[name]
        )
        yield n, trial
        if not trial.was_hit:
            return


def _make_faults(point: str, n: int, bugs: list[str]) -> dict[str, Any]:
    plan = {"point": point, "nth": n}
    faults: dict[str, Any] = {"bugs": bugs}
    if point.startswith("C"):
        return {**faults, "child": plan}
    return {**faults, **plan, "pause_ms": 30 if bugs else 0}


def _print_table(rows: list[tuple[str, str, int, list[str]]]) -> None:
    print(f"\n{'program':13}{'point':6}{'kills':>6}  findings")
    for name, point, hits, problems in rows:
        print(f"{name:13}{point:6}{hits:6}  {len(problems) or '-'}")
        for problem in problems:
            print("    " + problem.replace("\n", "\n    ")[:2_000])


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
