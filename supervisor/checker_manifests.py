"""What the manifest of a session has to say: the fields of its role, about its own step (I6)."""

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

_SHARED = "harnessId workflowDefinitionHash skillsHash memoryStoreIds"
_WORKER = f"{_SHARED} workflowVersionId stepPath stepConfigHash allowedToolsHash"
_AGENT = f"{_SHARED} systemPromptHash globalToolsHash"
_REQUIRED = {
    "planner": frozenset(f"{_AGENT} plannerModelSlotId".split()),
    "orchestrator": frozenset(
        f"{_AGENT} orchestratorModelSlotId availableWorkflows maxConcurrentSubRuns".split()
    )
    - {"workflowDefinitionHash"},
    "worker": frozenset(_WORKER.split()),
    "fixer": frozenset(f"{_WORKER} fixerModelSlotId fixerSystemHash fixerMaxAttempts".split()),
}
_OPTIONAL = {
    "planner": frozenset({"outerLoopContextHash"}),
    "orchestrator": frozenset[str](),
    "worker": frozenset({"modelSlotId", "systemPromptHash"}),
    "fixer": frozenset({"modelSlotId", "systemPromptHash"}),
}


def find_manifest_problems(
    started: dict[str, Any], *, definition_hash: str, version_id: str | None, is_cycle: bool
) -> Iterator[str]:
    """Yields what is wrong with the manifest in the payload of a `harness.session.started`.

    `is_cycle` says that the run is one of an outer loop, which its planner's manifest shows.
    """
    role, manifest = started["role"], started["manifest"]
    required = _REQUIRED.get(role)
    if required is None:
        return  # a role that nothing has is reported with its step
    names = manifest.keys()
    for name in sorted(map(str, required - names)):
        yield f"the manifest of a {role} lacks {name!r}"
    for name in sorted(map(str, names - required - _OPTIONAL[role])):
        yield f"the manifest of a {role} has {name[:80]!r}, which doesn't belong there"
    expected = {
        "harnessId": f"planaria.{role}/1",
        "workflowDefinitionHash": definition_hash,
        "workflowVersionId": version_id,
        "stepPath": started["stepPath"],
    }
    for name, value in expected.items():
        if name in manifest and manifest[name] != value:
            yield f"the manifest's {name} is {str(manifest[name])[:100]!r}, not {value!r}"
    if role == "planner" and is_cycle != ("outerLoopContextHash" in names):
        yield f"outerLoopContextHash {'lacks in' if is_cycle else 'stands in'} the manifest"
    if started["manifestHash"] != _hash_manifest(manifest):
        yield "manifestHash isn't the hash of the manifest"


def _hash_manifest(manifest: dict[str, Any]) -> str:
    """Returns the hash of its RFC 8785 form; of what has no such form, nothing that can match."""
    try:
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return "sha256:" + sha256(text.encode()).hexdigest()
    except (TypeError, ValueError):
        return ""
