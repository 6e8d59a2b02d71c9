"""The manifest of an outer loop: a file that says where the loop is, derived from its events.

    {"cycles": [{"cycleNumber", "output"|"outputRef", "runId", "status", "summary"?,
                 "workflowVersionId"}, …],
     "goal": {"description", "workflowDefinitionHash"}, "inputHash"?, "maxCycles", "outerLoopId",
     "pendingCycleRunId"?, "result"?: {"output"|"outputRef"}}

Its bytes follow from its content alone, so that it can be rebuilt byte for byte.
"""

import json
from typing import Any

from .blobs import check_blob_ref
from .errors import PlanariaError, RunFailedError
from .ids import check_id, derive_id

_REQUIRED = frozenset({"outerLoopId", "goal", "maxCycles", "cycles"})
_ALLOWED = _REQUIRED | {"inputHash", "pendingCycleRunId", "result"}
_CYCLE_REQUIRED = frozenset({"cycleNumber", "runId", "workflowVersionId", "status"})
_CYCLE_ALLOWED = _CYCLE_REQUIRED | {"output", "outputRef", "summary"}


def cycle_run_id(loop_id: str, cycle_number: int, opening: int = 0) -> str:
    """Returns the id of a cycle's run; a later `opening` follows one that was cancelled."""
    return derive_id("run_", loop_id, cycle_number, opening)


def config_error(loop_id: str, code: str, message: str) -> RunFailedError:
    """Returns the error of a loop that can't be driven as it was asked for."""
    return RunFailedError(
        run_id=loop_id, cause_code="runtime_config_error", code=code, message=message
    )


def dump_manifest(manifest: dict[str, Any]) -> bytes:
    """Returns the bytes of a manifest's file."""
    text = json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def parse_manifest(loop_id: str, data: bytes) -> dict[str, Any]:
    """Returns the manifest that a file holds.

    Raises:
        RunFailedError: code `outer_loop_manifest_corrupt`: torn, foreign, or another loop's.
    """
    manifest: Any = None
    try:
        manifest = json.loads(data)
        reason = _find_fault(loop_id, manifest)
    except (ValueError, RecursionError, PlanariaError) as error:
        reason = f"{type(error).__name__}: {error}"[:300]
    if reason:
        raise config_error(
            loop_id,
            "outer_loop_manifest_corrupt",
            f"the manifest of outer loop {loop_id!r} is damaged ({reason}); nothing was run. "
            "'planaria verify --repair' makes it anew from the events",
        )
    made: dict[str, Any] = manifest
    return made


def _find_fault(loop_id: str, manifest: Any) -> str:
    if not isinstance(manifest, dict) or not _REQUIRED <= manifest.keys() <= _ALLOWED:
        return "it doesn't have the fields of a manifest"
    if manifest["outerLoopId"] != loop_id:
        return "it is another loop's"
    goal, cycles, most = manifest["goal"], manifest["cycles"], manifest["maxCycles"]
    if type(most) is not int or most < 1 or not isinstance(goal, dict):
        return "its maxCycles or goal is malformed"
    if not isinstance(manifest.get("inputHash", ""), str):
        return "its inputHash is malformed"
    if not isinstance(cycles, list) or len(cycles) > most:
        return "its cycles are no list of at most maxCycles"
    for number, cycle in enumerate(cycles, 1):
        if not isinstance(cycle, dict) or not _CYCLE_REQUIRED <= cycle.keys() <= _CYCLE_ALLOWED:
            return f"its cycle {number} doesn't have the fields of one"
        if cycle["cycleNumber"] != number:
            return f"its cycle {number} has the number {cycle['cycleNumber']!r}"[:200]
        check_id(cycle["runId"], "run id")
    if "pendingCycleRunId" in manifest:
        check_id(manifest["pendingCycleRunId"], "run id")
    for holder in (*cycles, manifest.get("result") or {}):
        if "outputRef" in holder:
            check_blob_ref(holder["outputRef"])
    return ""
