"""What the kernel looks up: plans and large values by hash, runs that have ended by id."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Protocol

from planaria.protocol.blobs import blob_ref
from planaria.protocol.codec import Json, unpack
from planaria.protocol.events import Event
from planaria.protocol.limits import BLOB_BYTES_MAX
from planaria.protocol.payloads import load_value
from planaria.protocol.usage import Usage

from .blobs import BlobStore
from .fold import fold
from .plan import Plan, make_plan
from .prices import find_price, price_usage
from .run_state import RunState, Value

PLANS_MAX = 200
VALUES_BYTES_MAX = 32 << 20  # large values kept in memory, the last used ones


class Events(Protocol):
    """The log, as far as the library reads it."""

    def read_run(self, run_id: str) -> Iterable[tuple[int, Event]]: ...


class BlobLibrary:
    """A `Library` over the blob store; equal hashes give equal answers, so it may cache."""

    def __init__(self, blobs: BlobStore, log: Events | None = None) -> None:
        self._blobs = blobs
        self._log = log
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._values: OrderedDict[str, bytes] = OrderedDict()
        self._values_bytes = 0
        self._unwritten: dict[str, tuple[dict[str, Any], bytes]] = {}

    def plan(self, version_id: str, lock_ref: dict[str, Any]) -> Plan:
        """Returns the plan of a workflow version whose lock stands in the blob store."""
        plan = self._plans.get(version_id)
        if plan is None:
            lock = unpack(self._read(lock_ref), bytes_max=BLOB_BYTES_MAX)
            plan = self._plans[version_id] = make_plan(version_id, lock)
            if len(self._plans) > PLANS_MAX:
                self._plans.popitem(last=False)
        self._plans.move_to_end(version_id)
        return plan

    def value(self, value: Value) -> Json:
        """Returns a value, read from the blob store if it stands there."""
        return load_value(value, self._read)

    def keep(self, data: bytes) -> None:
        """Keeps a blob that the kernel has just made until the store has it."""
        held = self._unwritten.values()
        self._unwritten = {r["sha256"]: (r, d) for r, d in held if not self._blobs.exists(r)}
        ref = blob_ref(data)
        self._unwritten[ref["sha256"]] = (ref, data)

    def price(
        self, model: str, provider: str | None, input_tokens: int, output_tokens: int
    ) -> float | None:
        """Returns what a call costs in USD, or None if that isn't known."""
        return find_price(model, provider, input_tokens, output_tokens)

    def cost(self, usage: Usage) -> float | None:
        """Returns what recorded calls have cost in USD, or None if that isn't known."""
        return price_usage(usage)

    def run(self, run_id: str, *, upto: int | None = None) -> RunState | None:
        """Returns a run as its log has it, up to a sequence, or None if there is no such run."""
        run = RunState(run_id)
        for _, event in self._log.read_run(run_id) if self._log is not None else ():
            if upto is not None and event.sequence > upto:
                break
            fold(run, event, self)
        return run if run.sequence else None

    def _read(self, ref: dict[str, Any]) -> bytes:
        digest = ref["sha256"]
        if digest in self._unwritten:
            return self._unwritten[digest][1]
        if digest not in self._values:
            data = self._blobs.read(ref)
            self._values[digest] = data
            self._values_bytes += len(data)
            while self._values_bytes > VALUES_BYTES_MAX and len(self._values) > 1:
                self._values_bytes -= len(self._values.popitem(last=False)[1])
        self._values.move_to_end(digest)
        return self._values[digest]
