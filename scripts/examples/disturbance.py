"""What the examples share: each runs twice, undisturbed and with SIGKILL in between.

What is killed is planned as a list of blows, each with a moment that is looked for in a ledger
outside of planaria: what is really going on, whatever the event log says. Afterwards the same
ledger is compared with the log. The ledger, the killing by pid and the comparison are the code
review's, whose folder is made importable here: so this module is imported before any of them.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent / "code_review"))

from kills import Kill, kill_process, read_start_time  # noqa: E402
from ledger import PATH_VARIABLE, Entry, LedgerReader  # noqa: E402
from proof import Proof, compare, find_left, make_table  # noqa: E402
from rich.console import Console  # noqa: E402
from watch import Watch  # noqa: E402

from planaria import Client, PlanariaError  # noqa: E402

DELAY_MAX_SECONDS = 0.05  # the seed chooses how deep into its moment a blow comes
POLL_SECONDS = 0.02
MARK_VARIABLE = "PLANARIA_EXAMPLE_MARK"
# Calls that nobody but the supervisor or the sandbox carries out: no line of the ledger is theirs.
UNLEDGERED = frozenset({"plan_workflow", "run_workflow", "start_workflow", "try_source"})
Row = tuple[str, str, bool]  # what, how much, whether that is right
Events = dict[str, list[dict[str, Any]]]  # of each run, by its id


@dataclass(frozen=True, slots=True)
class Blow:
    """A kill that is planned: `find` returns the pid once its moment has come."""

    what: str
    find: Callable[["Scene"], int | None]


@dataclass(slots=True)
class Scene:
    """What can be seen while a run goes on: its living processes, and the ledger."""

    client: Client
    ledger: LedgerReader
    processes: list[dict[str, Any]] = field(default_factory=list)

    def look(self) -> None:
        """Looks again."""
        self.ledger.read()
        self.processes = self.client.processes()

    def count_ended(self, name: str) -> int:
        """Returns how many calls of this name were carried out to their end."""
        return sum(entry.name == name and entry.has_ended for entry in self.ledger.entries())

    def pids_in(self, name: str, turn: int | None = None) -> list[int]:
        """Returns the living processes that are inside of such a call; `turn` is of a model."""
        living = {process["pid"] for process in self.processes}
        return [
            entry.pid
            for entry in self.ledger.entries()
            if entry.name == name and not entry.has_ended and entry.pid in living
            if turn is None or entry.call.endswith(f"/m{turn}")
        ]


def in_turn(model: str, turn: int) -> Blow:
    """Returns the blow that meets a model's request of this turn."""
    where = f"{model}, inside of the request of turn {turn}"
    return Blow(where, lambda scene: next(iter(scene.pids_in(model, turn)), None))


def in_call(name: str, nth: int = 1) -> Blow:
    """Returns the blow that meets a call of a tool, after n - 1 others have ended."""

    def find(scene: Scene) -> int | None:
        if scene.count_ended(name) < nth - 1:
            return None
        return next(iter(scene.pids_in(name)), None)

    return Blow(f"{name}, inside of call {nth} or a later one", find)


def of_supervisor(when: str, is_due: Callable[[Scene], bool]) -> Blow:
    """Returns the blow that meets the supervisor."""

    def find(scene: Scene) -> int | None:
        return int(scene.client.ping()["pid"]) if is_due(scene) else None

    return Blow(f"the supervisor, {when}", find)


@dataclass(slots=True)
class Played:
    """A run that ended: its result, and all that was seen of it."""

    result: Any
    seconds: float
    watch: Watch
    proof: Proof
    events: Events
    entries: list[Entry]
    kills: list[Kill]


@dataclass(slots=True)
class Example:
    """One example: what it performs, what is killed meanwhile, what it says at the end.

    `perform` starts the work and returns its result; it knows nothing of the kills. `find_rows`
    returns what this example shows besides what all show. `adapt` gives calls that the ledger
    names in another way than the log the ledger's names.
    """

    perform: Callable[[Client], Any]
    blows: Sequence[Blow]
    find_rows: Callable[[Played], list[Row]] = lambda played: []
    show: Callable[[Console, Played], None] = lambda console, played: None
    adapt: Callable[[Events, Watch, LedgerReader], None] = lambda events, watch, ledger: None
    seed: int = 1

    def main(self) -> int:
        """Runs it twice, prints the table; returns the exit code."""
        console = Console()
        os.environ[MARK_VARIABLE] = mark = uuid.uuid4().hex
        with tempfile.TemporaryDirectory(prefix="planaria-") as folder:
            place = Path(folder)
            try:
                console.print("1. Undisturbed", style="bold")
                plain = self._play(console, place / "undisturbed", [])
                console.print(f"2. With kills (seed {self.seed})", style="bold")
                disturbed = self._play(console, place / "disturbed", self.blows)
            except PlanariaError as error:
                console.print(f"it failed: {error}", markup=False, style="red")
                return 1
            marks = [mark, str(place)]
            left = find_left([plain.watch, disturbed.watch], disturbed.kills, marks)
        self.show(console, disturbed)
        rows = [*self._list_rows(plain, disturbed), *self.find_rows(disturbed)]
        rows.append(("processes left behind", str(len(left)), not left))
        console.print(make_table(rows))
        for repeat in disturbed.proof.made_again:
            console.print(f"made again although recorded: {repeat}", style="red", markup=False)
        return 0 if all(is_right for _, _, is_right in rows) else 1

    def _list_rows(self, plain: Played, disturbed: Played) -> list[Row]:
        proof = disturbed.proof
        met = {kill.path for kill in disturbed.kills}
        rows = [
            (f"kill -9: {blow.what}", "done" if blow.what in met else "missed", blow.what in met)
            for blow in self.blows
        ]
        lost = len(proof.never_begun) + len(proof.never_recorded)
        again = plain.proof.begun - plain.proof.recorded
        is_equal = plain.result == disturbed.result
        return [
            *rows,
            ("model and tool calls recorded", str(proof.recorded), proof.recorded > 0),
            ("outcomes replayed to later processes", str(disturbed.watch.replayed), True),
            ("recorded calls made again", str(len(proof.made_again)), not proof.made_again),
            ("in flight at a kill, so asked again", str(len(proof.asked_again)), True),
            ("calls in the ledger or the log only", str(lost), lost == 0),
            ("calls made again in the undisturbed run", str(again), again == 0),
            ("result", "equal" if is_equal else "DIFFERENT", is_equal),
        ]

    def _play(self, console: Console, place: Path, blows: Sequence[Blow]) -> Played:
        place.mkdir()
        ledger = LedgerReader(place / "ledger.ndjson")
        os.environ[PATH_VARIABLE] = str(ledger.path)
        is_over = Event()
        begin = time.monotonic()
        with (
            Client(place / "data") as caller,
            Client(place / "data") as watcher,
            ThreadPoolExecutor(1, thread_name_prefix="kills") as threads,
        ):
            caller.ping()  # a supervisor is there
            scene, chance = Scene(watcher, ledger), random.Random(self.seed)
            killing = threads.submit(_deal, scene, list(blows), chance, console, is_over)
            try:
                result = self.perform(caller)
            finally:
                is_over.set()
            kills = killing.result()
            seconds = time.monotonic() - begin
            runs = [row["runId"] for row in caller.runs(limit=1_000)]
            events = {run_id: list(caller.events(run_id)) for run_id in sorted(runs)}
        watch = _watch(events)
        ledger.read()
        self.adapt(events, watch, ledger)
        console.print(
            f"   {len(events)} runs, {len(watch.sessions)} sessions, {len(watch.recorded)} calls, "
            f"{watch.events} events in {seconds:.1f} s"
        )
        proof = compare(watch, ledger)
        # A function of the workflow's author is asked by the supervisor: no event has its calls.
        outside = [entry.call for entry in ledger.entries() if entry.kind == "function"]
        proof.begun -= len(outside)
        proof.never_recorded = sorted(set(proof.never_recorded) - set(outside))
        return Played(result, seconds, watch, proof, events, ledger.entries(), kills)


def read_options(text: str, folder: str | None = None) -> argparse.Namespace:
    """Returns the command line's options: folder, seed, quick; `text` is what --help says."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if folder is not None:
        parser.add_argument("folder", nargs="?", default=folder, help=f"by default {folder}")
    parser.add_argument("--seed", type=int, default=1, help="chooses how deep a kill comes")
    parser.add_argument("--quick", action="store_true", help="on less input")
    options = parser.parse_args()
    if folder is not None and not Path(options.folder).is_dir():
        parser.error(f"there is no folder {options.folder!r}")
    return options


def _deal(
    scene: Scene,
    blows: list[Blow],
    chance: random.Random,
    console: Console,
    is_over: Event,
) -> list[Kill]:
    """Deals the blows one after the other, each once its moment has come; returns the kills."""
    done: list[Kill] = []
    while blows and not is_over.wait(POLL_SECONDS):
        scene.look()
        pid = blows[0].find(scene)
        start_time = None if pid is None else read_start_time(pid)
        if pid is None or start_time is None:
            continue
        time.sleep(chance.uniform(0, DELAY_MAX_SECONDS))
        if not _is_due(scene, blows[0], pid) or not kill_process(pid, start_time):
            continue
        blow = blows.pop(0)
        done.append(Kill("process", pid, start_time, 0, blow.what))
        console.print(f"  kill -9 {pid}: {blow.what}", highlight=False, markup=False)
    return done


def _is_due(scene: Scene, blow: Blow, pid: int) -> bool:
    """Says whether a blow still meets this process: a child is held still while that is looked up.

    Else its moment could pass meanwhile; on a busy machine it did.
    """
    if pid not in {process["pid"] for process in scene.processes}:
        return bool(pid == scene.client.ping()["pid"])
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        scene.look()
        if pid in {process["pid"] for process in scene.processes} and blow.find(scene) == pid:
            return True
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)
    return False


def _watch(events: Events) -> Watch:
    """Returns what happened in all runs together; their sessions and calls have ids of their own.

    Left out are calls without a line in the ledger.
    """
    watch = Watch()
    for run in events.values():
        skipped = find_handed_over(run)
        for event in run:
            payload = event["payload"]
            if payload.get("toolName") in UNLEDGERED:
                skipped.add(payload["callId"])
            if payload.get("callId") not in skipped:
                watch.take(event)
    return watch


def find_handed_over(run: list[dict[str, Any]]) -> set[str]:
    """Returns the calls that nobody carried out: an earlier attempt's success is theirs."""
    keys: dict[str, str] = {}  # of calls that were begun
    succeeded: set[str] = set()
    found: set[str] = set()
    for event in run:
        payload = event["payload"]
        if event["type"] == "harness.tool_call.started" and payload["effect"] != "read":
            keys[payload["callId"]] = payload["idempotencyKey"]
            if payload["idempotencyKey"] in succeeded:
                found.add(payload["callId"])
        elif event["type"] == "harness.tool_call.succeeded" and payload["callId"] in keys:
            succeeded.add(keys[payload["callId"]])
    return found


__all__ = [
    "PATH_VARIABLE",
    "Blow",
    "Events",
    "Example",
    "LedgerReader",
    "Played",
    "Row",
    "Scene",
    "Watch",
    "find_handed_over",
    "in_call",
    "in_turn",
    "of_supervisor",
    "read_options",
]
