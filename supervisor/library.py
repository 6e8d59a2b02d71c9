"""What the kernel looks up by hash, from the blob store: plans and large values."""

from collections import OrderedDict
from typing import Any

from planaria.protocol.blobs import blob_ref
from planaria.protocol.codec import Json, unpack
from planaria.protocol.limits import BLOB_BYTES_MAX
from planaria.protocol.payloads import load_value

from .blobs import BlobStore
from .plan import Plan, make_plan
from .run_state import Value

PLANS_MAX = 200
VALUES_BYTES_MAX = 32 << 20  # large values kept in memory, the last used ones


class BlobLibrary:
    """A `Library` over the blob store; equal hashes give equal answers, so it may cache."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._values: OrderedDict[str, bytes] = OrderedDict()
        self._values_bytes = 0
        self._unwritten: dict[str, tuple[dict[str, Any], bytes]] = {}

    def plan(self, version_id: str, lock_ref: dict[str, Any]) -> Plan:
        """Returns the plan of a workflow version whose lock stands in the blob store."""
        plan = self._plans.get(version_id)
        if plan is None:
            lock = unpack(self._blobs.read(lock_ref), bytes_max=BLOB_BYTES_MAX)
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
