"""Workflow versions as clients bring them: checked once, stored once, however many runs follow."""

from typing import Any

from planaria.protocol.errors import WorkflowInvalidError
from planaria.protocol.locks import check_lock, make_version_id

from .blobs import BlobStore

VERSIONS_KEPT_MAX = 20  # a lock has some KiB, and at most the bytes of a frame


class Versions:
    """What is known of the locks that came last, by their canonical bytes."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._ids: dict[bytes, str] = {}
        self._refs: dict[bytes, dict[str, Any]] = {}

    def check(self, workflow_id: str, lock: dict[str, Any], data: bytes) -> str:
        """Returns the id of a lock; `data` are its canonical bytes. One with steps is a version.

        Raises:
            WorkflowInvalidError: with every finding of it and of the locks inside of it.
        """
        version_id = self._ids.get(data)
        if version_id is None:
            version_id = make_version_id(lock)
            _refuse_invalid(workflow_id, lock)
            keep(self._ids, data, version_id, VERSIONS_KEPT_MAX)
        return version_id

    def store(self, data: bytes) -> dict[str, Any]:
        """Returns the reference of a lock that is on disk now; a stored one costs one look."""
        ref = self._refs.get(data)
        if ref is None or not self._blobs.exists(ref):
            ref = self._blobs.write(data)
            keep(self._refs, data, ref, VERSIONS_KEPT_MAX)
        return ref


def _refuse_invalid(workflow_id: str, lock: dict[str, Any]) -> None:
    findings = check_lock(lock)
    if findings:
        listed = [{"code": f.code, "path": f.path, "message": f.message} for f in findings]
        raise WorkflowInvalidError(name=workflow_id, findings=listed)


def keep(kept: dict[Any, Any], key: Any, value: Any, count_max: int) -> None:
    """Puts an entry in; the oldest one gives way."""
    kept.pop(key, None)
    if len(kept) >= count_max:
        del kept[next(iter(kept))]
    kept[key] = value
