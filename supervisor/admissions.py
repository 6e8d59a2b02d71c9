"""What clients ask to begin: runs, retries, forks and outer loops, read field by field.

What a request names (locks, large inputs) is on the disk before the kernel sees the message.
"""

import copy
import os
from collections.abc import Callable
from typing import Any

from planaria.protocol.blobs import check_blob_ref
from planaria.protocol.codec import canonical_bytes, hash_bytes
from planaria.protocol.errors import (
    CapabilityDriftError,
    ConflictError,
    RunNotFoundError,
    UsageError,
)
from planaria.protocol.ids import check_id, check_workflow_id
from planaria.protocol.limits import INLINE_BYTES_MAX
from planaria.protocol.locks import is_planned
from planaria.protocol.payloads import write_field
from planaria.protocol.providers import find_missing_keys
from planaria.protocol.values import check_json

from .blobs import BlobStore
from .forking import change_lock, inherit
from .kernel import Kernel
from .kernel_messages import OPTIONS, AdmitRun, ForkRun, RetryRun, StartLoop
from .library import BlobLibrary
from .run_state import RunState
from .versions import Versions

DEADLINE_MS_MAX = 100 * 365 * 86_400_000  # a century: what is later isn't meant
CYCLES_MAX = 1_000_000  # of one outer loop; what is more isn't meant
BY_CHARS_MAX = 200
_BUDGET = {"maxModelCalls": int, "maxTokens": int, "maxCostUsd": float}


class Admissions:
    """Reads requests into messages of the kernel; `load` brings an ended run into memory."""

    def __init__(
        self,
        kernel: Kernel,
        library: BlobLibrary,
        blobs: BlobStore,
        load: Callable[[str], None],
    ) -> None:
        self._kernel = kernel
        self._library = library
        self._blobs = blobs
        self._load = load
        self._versions = Versions(blobs)

    def read_run(self, client: Any, arguments: dict[str, Any]) -> AdmitRun:
        """Returns the run that is asked for.

        Raises:
            PlanariaError: its id, lock or input is none, or a model's key is missing here.
        """
        run_id = check_id(arguments["runId"], "run id")
        self._load(run_id)
        is_new = run_id not in self._kernel.system.runs
        return self._read_admission(client, run_id, arguments, is_new=is_new)

    def read_loop(self, client: Any, loop_id: str, arguments: dict[str, Any]) -> StartLoop:
        """Returns the outer loop that is asked for.

        Raises:
            PlanariaError: as read_run.
        """
        cycles_max, goal = arguments["maxCycles"], arguments["goal"]
        if type(cycles_max) is not int or not 1 <= cycles_max <= CYCLES_MAX:
            raise ValueError(f"maxCycles is {cycles_max!r}, expected 1 to {CYCLES_MAX}")
        if not isinstance(goal, dict) or not all(isinstance(v, str) for v in goal.values()):
            raise TypeError("goal isn't a map of texts")
        is_new = loop_id not in self._kernel.system.loops
        return StartLoop(
            admission=self._read_admission(client, "", arguments, is_new=is_new),
            loop_id=loop_id,
            cycles_max=cycles_max,
            goal=goal,
            supervise=_check_source(arguments["supervise"]),
        )

    def read_retry(self, client: Any, arguments: dict[str, Any]) -> RetryRun:
        """Returns the retry that is asked for; with the source of today if that has its version.

        Raises:
            CapabilityDriftError: today's definition is another one.
            PlanariaError: as read_run.
        """
        run_id = check_id(arguments["runId"], "run id")
        self._load(run_id)
        source = arguments.get("source")
        run = self._kernel.system.runs.get(run_id)
        if source is not None and run is not None:
            self._refuse_drift(run, arguments["lock"], str(arguments["definitionHash"]))
            source = _check_source(source)
        return RetryRun(
            client=client,
            run_id=run_id,
            by=check_text(arguments["by"], "by"),
            reason=check_text(arguments.get("reason") or "", "reason"),
            source=source,
        )

    def read_fork(self, client: Any, arguments: dict[str, Any]) -> ForkRun:
        """Returns the fork that is asked for, with what it inherits on the disk.

        Raises:
            RunNotFoundError: there is no such run.
            ConflictError: it can't be forked there.
            WorkflowInvalidError: the changed document has findings.
            PlanariaError: as read_run.
        """
        from_run_id = check_id(arguments["fromRunId"], "run id")
        at = arguments.get("atSequence")
        if at is not None and (type(at) is not int or at < 1):
            raise ValueError(f"atSequence is {at!r}, expected a sequence of the run's events")
        run = self._library.run(from_run_id, upto=at)
        if run is None:
            raise RunNotFoundError(run_id=from_run_id)
        if at is not None and run.sequence < at:
            raise ConflictError(
                message=f"run {from_run_id!r} has {run.sequence} events and can't be forked at {at}"
            )
        if run.plan is None:
            raise ConflictError(
                message=f"run {from_run_id!r} has no version yet at sequence {run.sequence}: fork "
                "it at a later one"
            )
        changes = arguments.get("changes") or {}
        lock = change_lock(arguments.get("lock") or run.plan.lock, changes)
        source = _check_source(arguments.get("source") or run.admission["source"])
        if changes.get("models"):
            source["overrides"] = {**source.get("overrides", {}), **changes["models"]}
        given = {name: changes[name] for name in ("input", "inputRef") if name in changes}
        request = {
            **(given or write_field("input", run.input)),
            "workflowId": run.admission["workflowId"],
            "definitionHash": arguments.get("definitionHash")
            or run.admission["workflowDefinitionHash"],
            "lock": lock,
            "source": source,
            **{name: run.admission.get(name) for name in OPTIONS},
        }
        run_id = check_id(arguments["runId"], "run id")
        self._load(run_id)
        inherited = inherit(run)
        return ForkRun(
            admission=self._read_admission(client, run_id, request, trigger="fork"),
            from_run_id=from_run_id,
            at_sequence=run.sequence,
            by=check_text(arguments["by"], "by"),
            changes={name: value for name, value in changes.items() if name not in given},
            inherited_ref=self._blobs.write(canonical_bytes(inherited.dump())),
        )

    def _read_admission(
        self,
        client: Any,
        run_id: str,
        arguments: dict[str, Any],
        *,
        is_new: bool = True,
        trigger: str = "client",
    ) -> AdmitRun:
        lock = arguments["lock"]
        data = canonical_bytes(lock)
        version_id = self._versions.check(arguments["workflowId"], lock, data)
        if is_new:
            _check_keys(lock)
        value, input_hash = read_value(self._blobs, arguments, "input")
        return AdmitRun(
            client=client,
            run_id=run_id,
            workflow_id=check_workflow_id(arguments["workflowId"]),
            definition_hash=str(arguments["definitionHash"]),
            version_id=version_id,
            lock=lock,
            lock_ref=self._versions.store(data),
            input=value,
            input_hash=input_hash,
            source=_check_source(arguments["source"]),
            trigger=trigger,
            options=_read_options(arguments),
        )

    def _refuse_drift(self, run: RunState, lock: dict[str, Any], definition_hash: str) -> None:
        """Refuses the code of today for a run whose definition isn't today's any more."""
        data = canonical_bytes(lock)
        version_id = self._versions.check(run.admission["workflowId"], lock, data)
        recorded = run.admission.get("definitionRef")
        changes = []
        if run.admission["workflowDefinitionHash"] != definition_hash:
            changes.append("workflowDefinitionHash")
        if recorded is not None:
            if is_planned(lock) and recorded["sha256"] != hash_bytes(data):
                changes.append("lock")
        elif run.plan is not None and run.plan.version_id != version_id:
            changes.append(f"workflowVersionId: {run.plan.version_id} → {version_id}")
        if changes:
            raise CapabilityDriftError(run_id=run.run_id, changes=", ".join(changes))


def read_value(
    blobs: BlobStore, arguments: dict[str, Any], name: str
) -> tuple[dict[str, Any], str]:
    """Returns a value of a request as a field of an event, inline or as its blob, and its hash.

    Raises:
        ValueRefusedError, IntegrityError: it is no value, or its blob isn't there.
    """
    if f"{name}Ref" in arguments:
        ref = check_blob_ref(arguments[f"{name}Ref"])
        return {f"{name}Ref": ref}, hash_bytes(blobs.read(ref))
    check_json(arguments[name])
    data = canonical_bytes(arguments[name])
    if len(data) > INLINE_BYTES_MAX:
        return {f"{name}Ref": blobs.write(data)}, hash_bytes(data)
    return {name: arguments[name]}, hash_bytes(data)


def _check_keys(lock: dict[str, Any]) -> None:
    """Refuses models whose key isn't in this process's environment, where children get it."""
    names: dict[str, Any] = {}
    level = [lock]
    while level:
        found = level.pop()
        names.update({slot: entry.get("model") for slot, entry in found["models"].items()})
        level.extend(entry["lock"] for entry in found.get("workflows", {}).values())
    missing = find_missing_keys(names, os.environ)
    if missing:
        raise UsageError(
            message="; ".join(missing) + " where the supervisor was started "
            f"(pid {os.getpid()}); nothing was run. Set it there: 'planaria down', then again"
        )


def _check_source(source: Any) -> dict[str, Any]:
    """Returns the source; only what the supervisor itself reads of it is checked."""
    if not isinstance(source, dict):
        raise TypeError(f"source is {type(source).__name__}, expected a map")
    for field in ("env", "within"):
        names = source.get(field, [])
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise TypeError(f"source.{field} isn't a list of names")
    if not isinstance(source.get("importsAgents", False), bool):
        raise TypeError("source.importsAgents isn't a truth value")
    return copy.deepcopy(source)


def _read_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a run that are given: those with a value that isn't empty."""
    checks = (_check_deadline, _check_labels, _check_on_interrupted, _check_budget)
    given = (
        (name, arguments.get(name), check) for name, check in zip(OPTIONS, checks, strict=True)
    )
    options = {name: check(value) for name, value, check in given if value is not None}
    return {name: value for name, value in options.items() if value}


def _check_deadline(deadline_ms: Any) -> int:
    if type(deadline_ms) is not int or not 0 < deadline_ms <= DEADLINE_MS_MAX:
        raise ValueError(f"deadlineMs is {deadline_ms!r}, expected 1 to {DEADLINE_MS_MAX}")
    return deadline_ms


def _check_labels(labels: Any) -> dict[str, str]:
    if not isinstance(labels, dict) or not all(isinstance(v, str) for v in labels.values()):
        raise TypeError("labels isn't a map of texts")
    return labels


def _check_on_interrupted(patience: Any) -> str | int:
    """`fail`: at once; a number: after so many ms; nothing: it is held until somebody decides."""
    is_time = type(patience) is int and 0 < patience <= DEADLINE_MS_MAX
    if patience != "fail" and not is_time:
        raise ValueError(
            f"onInterrupted is {patience!r}, expected 'fail' or 1 to {DEADLINE_MS_MAX}"
        )
    return patience  # type: ignore[no-any-return]


def _check_budget(budget: Any) -> dict[str, Any]:
    if not isinstance(budget, dict) or not budget.keys() <= _BUDGET.keys():
        raise TypeError(f"budget isn't a map of {', '.join(_BUDGET)}")
    for name, limit in budget.items():
        is_number = type(limit) is int or (_BUDGET[name] is float and type(limit) is float)
        if not is_number or limit < 0:
            raise ValueError(f"budget.{name} is {limit!r}, expected a number of at least 0")
    return budget


def check_text(text: Any, what: str) -> str:
    if not isinstance(text, str) or len(text) > 8_192 or (what == "by" and not text):
        raise TypeError(f"{what} is no text")
    return text[:BY_CHARS_MAX] if what == "by" else text
