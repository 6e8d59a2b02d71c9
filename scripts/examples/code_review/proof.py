"""What a run proves: the ledger of what was carried out against the log of what was recorded.

Nothing here reads a clock. Which of two processes came first is told by the incarnation that the
log gave them: a session's processes are numbered, and each gets all that was recorded before it.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import psutil
from kills import Kill, read_start_time
from ledger import Entry, LedgerReader
from rich.table import Table
from rich.text import Text
from watch import Watch

LEFT_SECONDS = 15.0  # a supervisor that puts everything away takes about one
ASKED_AGAIN_SHOWN = 30


@dataclass(frozen=True, slots=True)
class Repeat:
    """A call that was in flight at a kill, and asked again by a later process."""

    path: str
    name: str
    incarnations: tuple[int, ...]


@dataclass(slots=True)
class Proof:
    """How ledger and log compare, each list with what it should not have, but `asked_again`."""

    recorded: int = 0
    begun: int = 0
    asked_again: list[Repeat] = field(default_factory=list)
    made_again: list[Repeat] = field(default_factory=list)  # although its outcome was on record
    never_begun: list[str] = field(default_factory=list)  # recorded, but nobody carried it out
    never_recorded: list[str] = field(default_factory=list)


def compare(watch: Watch, ledger: LedgerReader) -> Proof:
    """Returns what the ledger says about the calls that a run's log has."""
    ledger.read()
    by_call: dict[str, list[Entry]] = defaultdict(list)
    for entry in ledger.entries():
        by_call[entry.call].append(entry)
    proof = Proof(recorded=len(watch.recorded), begun=sum(map(len, by_call.values())))
    for outcome in watch.recorded:
        begun = by_call.pop(outcome.call, [])
        if not begun:
            proof.never_begun.append(outcome.call)
            continue
        numbers = sorted(watch.incarnations[entry.session, entry.pid] for entry in begun)
        repeat = Repeat(watch.sessions[outcome.session].path, begun[0].name, tuple(numbers))
        if numbers[-1] > outcome.incarnation or len(set(numbers)) < len(numbers):
            proof.made_again.append(repeat)
        elif len(numbers) > 1:
            proof.asked_again.append(repeat)
    proof.never_recorded = sorted(by_call)
    return proof


def find_left(watches: Iterable[Watch], kills: Iterable[Kill], marks: Iterable[str]) -> list[str]:
    """Returns the processes of the runs that still live after a while; there should be none.

    `marks` are texts that stand in the environment or the arguments of every process of ours.
    """
    known = {process for watch in watches for process in watch.processes}
    known |= {(kill.pid, kill.start_time) for kill in kills}
    texts = list(marks)
    deadline = time.monotonic() + LEFT_SECONDS
    while True:
        left = [f"pid {pid}" for pid, start in known if read_start_time(pid) == start]
        left += list(_find_marked(texts))
        if not left or time.monotonic() > deadline:
            return sorted(set(left))
        time.sleep(0.05)


def _find_marked(texts: list[str]) -> Iterable[str]:
    own = psutil.Process()
    ours = {own.pid, *(parent.pid for parent in own.parents())}
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            seen = [*process.cmdline(), *process.environ().values()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(text in item for text in texts for item in seen):
            yield f"pid {process.pid}"


def make_table(rows: list[tuple[str, str, bool]]) -> Table:
    """Returns the table of what was found: what, how much, and whether that is right."""
    table = Table(title="What the ledger and the log say")
    table.add_column("")
    table.add_column("found", justify="right")
    table.add_column("right")
    for what, found, is_right in rows:
        table.add_row(what, found, "[green]yes[/]" if is_right else "[bold red]NO[/]")
    return table


def make_repeats_table(repeats: list[Repeat]) -> Table:
    """Returns the calls that were in flight at a kill and asked again."""
    table = Table(title="In flight at a kill, so asked again")
    table.add_column("step")
    table.add_column("call")
    table.add_column("by incarnations")
    for repeat in repeats[:ASKED_AGAIN_SHOWN]:
        table.add_row(Text(repeat.path), repeat.name, " ".join(map(str, repeat.incarnations)))
    if len(repeats) > ASKED_AGAIN_SHOWN:
        table.add_row(f"and {len(repeats) - ASKED_AGAIN_SHOWN} more", "", "")
    return table
