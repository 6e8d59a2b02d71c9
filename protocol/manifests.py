"""The worker manifest: what a session may do, whole and hashed, without loading user code."""

from typing import Any

from .codec import hash_jcs, hash_value

HARNESS_ID = "planaria.worker/1"


def make_worker_manifest(
    *,
    definition_hash: str,
    version_id: str,
    step_path: str,
    step: dict[str, Any],
    lock: dict[str, Any],
) -> dict[str, Any]:
    """Returns the manifest of a step's sessions, made from the document and the lock alone.

    Lists are sorted, so their order is no drift. `modelSlotId` and `systemPromptHash` are there
    for steps that use a model only.
    """
    arguments = step.get("with", {})
    names = set(arguments.get("tools", ()))
    if "tool" in arguments:
        names.add(arguments["tool"])
    tools = lock.get("tools", {})
    manifest: dict[str, Any] = {
        "harnessId": HARNESS_ID,
        "workflowDefinitionHash": definition_hash,
        "workflowVersionId": version_id,
        "stepPath": step_path,
        "stepConfigHash": hash_value(step),
        "allowedToolsHash": hash_value(sorted([n, tools.get(n)] for n in names)),
        "skillsHash": hash_value([]),
        "memoryStoreIds": [],
    }
    if "model" in arguments:
        manifest["modelSlotId"] = arguments["model"]
        manifest["systemPromptHash"] = hash_value(arguments.get("instructions", ""))
    return manifest


def hash_manifest(manifest: dict[str, Any]) -> str:
    """Returns the manifest's hash over its RFC 8785 form."""
    return hash_jcs(manifest)
