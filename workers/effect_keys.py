"""The idempotency keys of a session's effects, and the successes that are known under them."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from planaria.protocol.codec import Json, hash_value
from planaria.protocol.effects import make_idempotency_key
from planaria.protocol.payloads import Ref, read_field

from .records import History, Record
from .session import Session


@dataclass(frozen=True, slots=True)
class _Try:
    equal_calls: Counter[str]
    taken: set[str]


class EffectKeys:
    """Hands out keys: the n-th equal call of a try has the same key in every try.

    A session is one try, except a fixer's: it may run several sources, each from its beginning.
    What one of its tries has done is known to the next, as is what earlier attempts have done.
    """

    def __init__(self, session: Session, history: History) -> None:
        self._session = session
        self._history = history
        self._known: dict[str, dict[str, Any]] = dict(session.inherited)
        self._keeps_successes = session.role == "fixer"
        self._tries: dict[str, _Try] = {}  # by prefix, the newest last
        self.begin_try("")
        if self._keeps_successes:
            self._keep_recorded()

    def begin_try(self, prefix: str) -> None:
        """Counts by itself from now on what stands at positions that begin like this."""
        # Keys of calls on record are taken, whichever of several equal calls they were.
        taken = {
            record.started["idempotencyKey"]
            for record in self._tool_calls()
            if record.started["position"].startswith(prefix)
        }
        self._tries[prefix] = _Try(Counter(), taken)

    def take(self, position: str, tool_name: str, args: Json, *, is_local: bool = False) -> str:
        """Returns the key of a call that isn't on record; a local one's is this session's only."""
        if is_local:
            args = [self._session.id, args]
        counted = self._tries[max((p for p in self._tries if position.startswith(p)), key=len)]
        equal = hash_value([tool_name, args])
        while True:
            nth = counted.equal_calls[equal]
            counted.equal_calls[equal] += 1
            session = self._session
            key = self._make(session.run_id, session.version_id, tool_name, args, nth)
            if key not in counted.taken:
                counted.taken.add(key)
                self._adopt(key, tool_name, args, nth)
                return key

    def _make(self, run_id: str, version_id: str, tool_name: str, args: Json, nth: int) -> str:
        return make_idempotency_key(
            run_id=run_id,
            version_id=version_id,
            step_path=self._session.step_path,
            tool_name=tool_name,
            args=args,
            nth=nth,
        )

    def _adopt(self, key: str, tool_name: str, args: Json, nth: int) -> None:
        """Takes over what the runs that this one was forked from did: under keys of their own."""
        for run_id, version_id in reversed(self._session.origins):
            theirs = self._known.get(self._make(run_id, version_id, tool_name, args, nth))
            if theirs is not None:
                self._known.setdefault(key, theirs)

    def find_success(self, key: str) -> dict[str, Any] | None:
        """Returns the success that is known under a key, as {"v": value} or {"r": reference}."""
        return self._known.get(key)

    def keep_success(self, key: str, value: Json) -> None:
        """Notes a success, for later tries of this session."""
        if self._keeps_successes:
            self._known[key] = {"v": value}

    def _tool_calls(self) -> list[Record]:
        return [record for record in self._history.calls.values() if record.kind == "tool_call"]

    def _keep_recorded(self) -> None:
        for record in self._tool_calls():
            if record.outcome is None or record.field is None:
                continue
            if record.started["effect"] != "read":
                value = read_field(record.outcome, record.field)
                wrapped = {"r": value.fields} if isinstance(value, Ref) else {"v": value}
                self._known[record.started["idempotencyKey"]] = wrapped
