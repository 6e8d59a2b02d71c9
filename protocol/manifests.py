"""The worker manifest: what a session may do, whole and hashed, without loading user code."""

import json
from typing import Any

from .codec import hash_bytes, hash_value

HARNESS_ID = "planaria.worker/1"


def describe_step(step: dict[str, Any], lock: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a worker manifest that are the same for all sessions of a step.

    Made from the document and the lock alone. Lists are sorted, so their order is no drift.
    `modelSlotId` and `systemPromptHash` are there for steps that use a model only.
    """
    arguments = step.get("with", {})
    names = set(arguments.get("tools", ()))
    if "tool" in arguments:
        names.add(arguments["tool"])
    tools = lock.get("tools", {})
    fields: dict[str, Any] = {
        "harnessId": HARNESS_ID,
        "stepConfigHash": hash_value(step),
        "allowedToolsHash": hash_value(sorted([n, tools.get(n)] for n in names)),
        "skillsHash": hash_value([]),
        "memoryStoreIds": [],
    }
    if "model" in arguments:
        fields["modelSlotId"] = arguments["model"]
        fields["systemPromptHash"] = hash_value(arguments.get("instructions", ""))
    return fields


def make_worker_manifest(
    described: dict[str, Any], *, definition_hash: str, version_id: str, step_path: str
) -> dict[str, Any]:
    """Returns the manifest of the sessions of a step path."""
    return {
        **described,
        "workflowDefinitionHash": definition_hash,
        "workflowVersionId": version_id,
        "stepPath": step_path,
    }


def hash_manifest(manifest: dict[str, Any]) -> str:
    """Returns the manifest's hash over its RFC 8785 form.

    A manifest has ASCII keys and holds only text and lists of text. For such values the standard
    library's sorted, compact JSON *is* the RFC 8785 form (test_manifests.py compares them), and
    this is computed for every attempt of every step.
    """
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hash_bytes(text.encode())
