"""The demo: a code review whose processes are killed while it goes on, and what that changes.

It reviews a package twice, in two data directories: once undisturbed, once while a thread kills
children and, twice, the supervisor. Then it compares both reports, and a ledger outside of
planaria with the event log. Exit code 1 says that something is not as it should be.
"""

import argparse
import importlib.util
import os
import random
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kills import Kill, Killer, make_plan
from ledger import PATH_VARIABLE, LedgerReader
from proof import Proof, compare, find_left, make_repeats_table, make_table
from pydantic_ai.exceptions import UserError
from rich.console import Console
from rich.markdown import Markdown
from view import View, open_view
from watch import Watch

from planaria import Client, PlanariaError, UsageError

PACKAGES = ("json", "asyncio")
CHILD_KILLS = 14
CHILD_KILLS_QUICK = 6
SUPERVISOR_KILLS = 2
EVENTS_PER_FILE = 40  # a low guess, for a real model, whose run isn't repeated
REPORT_LINES_SHOWN = 16
MARK_VARIABLE = "REVIEW_DEMO_MARK"
MODEL_VARIABLE = "REVIEW_MODEL"  # read by review.py
TARGET = f"{Path(__file__).resolve().parent / 'review.py'}:review"


@dataclass(slots=True)
class Outcome:
    """A run that ended: its report, and all that was seen of it."""

    report: str
    seconds: float
    watch: Watch
    proof: Proof
    kills: list[Kill]
    planned: int


def main() -> int:
    """Runs the demo; returns its exit code."""
    options = read_options()
    folders = options.folder or find_packages(PACKAGES[:1] if options.quick else PACKAGES)
    os.environ.update(choose_model(options.model, options.base_url))
    os.environ[MARK_VARIABLE] = mark = uuid.uuid4().hex
    console = Console()
    with ExitStack() as stack:
        if options.keep:
            place = Path(options.keep).absolute()
            place.mkdir(parents=True, exist_ok=True)
        else:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="planaria-")))
        try:
            check_model(options.model)
            runs = review_twice(console, place, folders, options)
        except UsageError as error:
            console.print(str(error), markup=False, style="red")
            return 2
        except PlanariaError as error:
            console.print(f"the review failed: {error}", markup=False, style="red")
            return 1
        kills = [kill for run in runs for kill in run.kills]
        left = find_left([run.watch for run in runs], kills, [mark, str(place)])
        is_right = show_findings(console, runs, left)
        (place / "report.md").write_text(runs[-1].report, encoding="utf-8")
        if options.keep:
            console.print(f"Reports, ledgers and event logs are in {place}", markup=False)
    return 0 if is_right else 1


def read_options() -> argparse.Namespace:
    """Returns the command line's options."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--folder", action="append", help="review the Python files below it (may be repeated)"
    )
    parser.add_argument("--model", help="a model's name, such as openai:gpt-4.1-mini")
    parser.add_argument("--base-url", help="of a server that speaks OpenAI's chat protocol")
    parser.add_argument("--seed", type=int, default=1, help="chooses what is killed, and when")
    parser.add_argument("--keep", metavar="DIR", help="keep everything there (it must be empty)")
    parser.add_argument("--quick", action="store_true", help="review json only")
    options = parser.parse_args()
    for folder in options.folder or ():
        if not Path(folder).is_dir():
            parser.error(f"there is no folder {folder!r}")
    if options.base_url and not options.model:
        parser.error("--base-url needs --model: the name that the server knows its model by")
    if options.keep and Path(options.keep).exists() and any(Path(options.keep).iterdir()):
        parser.error(f"{options.keep!r} is not empty: name a new folder")
    return options


def find_packages(names: tuple[str, ...]) -> list[str]:
    """Returns the folders of packages of the standard library."""
    folders = []
    for name in names:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None, f"{name} is in every Python"
        folders.append(str(Path(spec.origin).parent))
    return folders


def choose_model(name: str | None, base_url: str | None) -> dict[str, str]:
    """Returns the environment in which the workflow's module finds its model."""
    if name is None:
        return {MODEL_VARIABLE: ""}
    if base_url is None:
        return {MODEL_VARIABLE: name}
    if ":" not in name:
        name = f"openai-chat:{name}"
    key = os.environ.get("OPENAI_API_KEY", "none")  # most local servers want none
    return {MODEL_VARIABLE: name, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key}


def check_model(name: str | None) -> None:
    """Refuses a model that can't be made here: a package or a key is missing, or it is unknown.

    Raises:
        UsageError: says what is missing.
    """
    if name is None:
        return
    try:
        import review  # noqa: F401  # it makes its models
    except (ImportError, UserError, ValueError) as error:
        message = f"the model {os.environ[MODEL_VARIABLE]!r} can't be used: {error}"
        raise UsageError(message=f"{message} (Python here: {sys.executable})") from error


def review_twice(
    console: Console, place: Path, folders: list[str], options: argparse.Namespace
) -> list[Outcome]:
    """Returns the undisturbed run and the disturbed one; of a real model only the latter."""
    # Imported now: the module makes its workflow for the model that was chosen.
    from review import find_files

    files = len(find_files(folders))
    console.print(f"Reviewing {files} files of {', '.join(folders)}", markup=False)
    chance = random.Random(options.seed)
    children = CHILD_KILLS_QUICK if options.quick else CHILD_KILLS
    runs = []
    if options.model is None:
        console.print("1. Undisturbed", style="bold")
        runs.append(review_once(console, place / "undisturbed", folders, []))
        events = runs[0].watch.events
    else:
        events = files * EVENTS_PER_FILE
    console.print(f"{len(runs) + 1}. With kills (seed {options.seed})", style="bold")
    plan = make_plan(chance, events, children)
    runs.append(review_once(console, place / "disturbed", folders, plan, chance))
    return runs


def review_once(
    console: Console,
    place: Path,
    folders: list[str],
    plan: list[tuple[int, str]],
    chance: random.Random | None = None,
) -> Outcome:
    """Reviews the folders in a new data directory, while a thread kills what is planned."""
    from review import review

    place.mkdir()
    ledger = LedgerReader(place / "ledger.ndjson")
    os.environ[PATH_VARIABLE] = str(ledger.path)
    watch = Watch()
    begin = time.monotonic()
    with (
        Client(place / "data") as caller,
        Client(place / "data") as follower,
        open_view(console, watch) as view,
        ThreadPoolExecutor(1, thread_name_prefix="kills") as threads,
    ):
        run_id = caller.start(review, {"folders": folders}, run_id="review", target=TARGET)
        chance = chance or random.Random(0)
        killer = Killer(follower, watch, ledger, chance, list(plan), view.tell)
        following = threads.submit(follow, follower, run_id, view, killer)
        # An ordinary call, which knows nothing of the kills: it only takes a little longer.
        result = caller.wait(run_id, workflow=review)
        following.result()
    seconds = time.monotonic() - begin
    (place / "report.md").write_text(result.output, encoding="utf-8")
    console.print(
        f"   {len(watch.done_files)} files, {watch.visits} visits, {len(watch.sessions)} sessions, "
        f"{len(watch.recorded)} calls, {watch.events} events in {seconds:.1f} s"
    )
    return Outcome(
        report=result.output,
        seconds=seconds,
        watch=watch,
        proof=compare(watch, ledger),
        kills=killer.done,
        planned=len(plan),
    )


def follow(client: Client, run_id: str, view: View, killer: Killer) -> None:
    """Follows a run to its end, over any number of supervisors, and kills on the way."""
    for event in client.events(run_id, follow=True):
        killer.watch.take(event)
        view.update(event)
        killer.act()


def show_findings(console: Console, runs: list[Outcome], left: list[str]) -> bool:
    """Prints the report's beginning and the table; says whether everything is as it should be."""
    disturbed = runs[-1]
    shown = disturbed.report.splitlines()[:REPORT_LINES_SHOWN]
    console.print(Markdown("\n".join(shown)) if console.is_terminal else "\n".join(shown))
    console.print()
    if disturbed.proof.asked_again:
        console.print(make_repeats_table(disturbed.proof.asked_again))
    rows = list_findings(runs, left)
    console.print(make_table(rows))
    for repeat in disturbed.proof.made_again:
        console.print(f"made again although recorded: {repeat}", style="red", markup=False)
    return all(is_right for _, _, is_right in rows)


def list_findings(runs: list[Outcome], left: list[str]) -> list[tuple[str, str, bool]]:
    """Returns the rows of the table: what, how much, whether that is right."""
    disturbed = runs[-1]
    proof, kills, watch = disturbed.proof, disturbed.kills, disturbed.watch
    supervisors = [kill for kill in kills if kill.kind == "supervisor"]
    children = len(kills) - len(supervisors)
    planned = disturbed.planned - SUPERVISOR_KILLS
    lost = len(proof.never_begun) + len(proof.never_recorded)
    rows = [
        ("children killed with SIGKILL", f"{children} of {planned}", children == planned),
        (
            "supervisors killed with SIGKILL",
            f"{len(supervisors)} of {SUPERVISOR_KILLS}",
            len(supervisors) == SUPERVISOR_KILLS,
        ),
        ("sessions that went on in another process", str(len(list(watch.repeats()))), True),
        ("model and tool calls recorded", str(proof.recorded), proof.recorded > 0),
        ("outcomes replayed to later processes", str(watch.replayed), True),
        ("recorded calls made again", str(len(proof.made_again)), not proof.made_again),
        ("in flight at a kill, so asked again", str(len(proof.asked_again)), True),
        ("calls in the ledger or the log only", str(lost), lost == 0),
        ("processes left behind", str(len(left)), not left),
    ]
    if len(runs) > 1:
        plain = runs[0]
        is_equal = plain.report.encode() == disturbed.report.encode()
        again = plain.proof.begun - plain.proof.recorded
        rows.append(("calls made again in the undisturbed run", str(again), again == 0))
        size = len(disturbed.report.encode())
        shown = f"{size} bytes equal" if is_equal else "different"
        rows.append(("report against the undisturbed run's", shown, is_equal))
    return rows


if __name__ == "__main__":
    sys.exit(main())
