"""What a prune may have left of the order of the log (I1), of admissions and origins (I2, I20).

A hole in the positions is explained by the runs that were pruned: it lies where one of them lay,
and all holes together are as long as these runs had events.
"""

from .checker_facts import Fact, Report


class PruneRules:
    """Takes the holes that are seen and the prunes that are recorded, and compares them."""

    def __init__(self) -> None:
        self._holes: list[tuple[int, int]] = []  # first and last missing position
        self._ranges: list[tuple[int, int]] = []  # of pruned runs, which may overlap
        self._events = 0  # of all pruned runs
        self._lengths: dict[str, int] = {}  # pruned run -> how many events it had
        self._origins: list[tuple[str, str, int]] = []  # fork, origin, sequence

    @property
    def runs(self) -> frozenset[str]:
        """Returns the runs that were pruned; an id may have been used again since."""
        return frozenset(self._lengths)

    def note_hole(self, first: int, last: int) -> None:
        """Takes positions that no event has."""
        self._holes.append((first, last))

    def note_origin(self, fork: str, origin: str, sequence: int) -> None:
        """Takes what a fork says it was made from, and the log doesn't have."""
        self._origins.append((fork, origin, sequence))

    def take(self, fact: Fact, has_events: bool, was_recorded: bool, report: Report) -> None:
        """Takes a RunPruned; the log has events of its run still, or its admission recorded."""
        payload = fact.payload
        run_id, events = payload["prunedRunId"], payload["events"]
        first, last = payload["firstPosition"], payload["lastPosition"]
        if has_events:
            report("I1", f"run {run_id!r} was pruned, but has events before that")
        elif not was_recorded:
            report("I2", f"run {run_id!r} was pruned, but its admission isn't recorded")
        if not 1 <= first <= last < (2**63) or not 1 <= events <= last - first + 1:
            report(
                "I1",
                f"run {run_id!r} can't have had {events} events from {first} to {last}",
            )
        self._lengths[run_id] = max(events, self._lengths.get(run_id, 0))
        self._ranges.append((first, last))
        self._events += events

    def finish(self, report: Report) -> None:
        """Compares holes and prunes where the log ends."""
        for fork, origin, sequence in self._origins:
            if self._lengths.get(origin, 0) < sequence:
                text = f"{fork!r} was forked from event {sequence} of {origin!r}: there is none"
                report("I20", text)
        covered = _join(self._ranges)
        at, is_explained = 0, True
        for first, last in self._holes:
            while at < len(covered) and covered[at][1] < first:
                at += 1
            if at == len(covered) or first < covered[at][0] or last > covered[at][1]:
                is_explained = False
                report("I1", f"positions {first} to {last} are missing, and no pruned run had them")
        missing = sum(last - first + 1 for first, last in self._holes)
        if is_explained and missing != self._events:
            report("I1", f"{missing} positions are missing; pruned runs had {self._events} events")


def _join(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the same positions as ranges that neither overlap nor touch, in order."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined
