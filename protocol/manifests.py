"""Manifests: what a session may do, whole and hashed, made without loading user code.

There are four, one per role. Each is made of fields that follow from the document and the lock
(`describe_…`, once per plan) and of those that differ between sessions (`make_manifest`).
Lists are sorted, so their order is no drift. What memory holds and the body of a skill stand in
none of them.
"""

import json
from typing import Any

from .codec import hash_bytes, hash_value

HARNESS_IDS = {
    role: f"planaria.{role}/1" for role in ("planner", "orchestrator", "worker", "fixer")
}
# Fields that differ between the sessions of a step; the others are `describe_step`'s.
_OWN_FIELDS = {
    "planner": ("workflowDefinitionHash", "outerLoopContextHash"),
    "orchestrator": (),
    "worker": ("workflowDefinitionHash", "workflowVersionId", "stepPath"),
    "fixer": ("workflowDefinitionHash", "workflowVersionId", "stepPath"),
}


def role_of(step: dict[str, Any]) -> str:
    """Returns the role that carries out a step's attempts, its fixes aside."""
    return {"plan": "planner", "orchestrate": "orchestrator"}.get(step["uses"], "worker")


def describe_step(step: dict[str, Any], lock: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that the manifests of all sessions of a step share, by its role."""
    role = role_of(step)
    fields: dict[str, Any] = {
        "harnessId": HARNESS_IDS[role],
        "skillsHash": hash_value(_list_skills(lock)),
        "memoryStoreIds": sorted(lock.get("memory", ())),
    }
    arguments = step.get("with", {})
    prompt_hash = hash_value(arguments.get("instructions", ""))
    if role == "worker":
        fields["stepConfigHash"] = hash_value(step)
        fields["allowedToolsHash"] = _hash_tools(lock, _names_of_tools(arguments))
        if "model" in arguments:  # of steps that use a model only
            fields["modelSlotId"] = arguments["model"]
            fields["systemPromptHash"] = prompt_hash
        return fields
    fields[f"{role}ModelSlotId"] = arguments["model"]
    fields["systemPromptHash"] = prompt_hash
    fields["globalToolsHash"] = _hash_tools(lock, set(lock.get("tools", ())))
    if role == "orchestrator":
        workflows = sorted(lock.get("workflows", {}).items())
        fields["availableWorkflows"] = [
            {"id": name, "definitionHash": entry["definitionHash"]} for name, entry in workflows
        ]
        fields["maxConcurrentSubRuns"] = arguments["maxConcurrentSubRuns"]
    return fields


def describe_fixer(step: dict[str, Any], lock: dict[str, Any]) -> dict[str, Any]:
    """Returns what the manifests of the sessions that fix a step share: the worker's, and more."""
    fixer = step["onFailure"]["fixer"]
    return {
        **describe_step(step, lock),
        "harnessId": HARNESS_IDS["fixer"],
        "fixerModelSlotId": fixer["model"],
        "fixerSystemHash": hash_value(fixer.get("instructions", "")),
        "fixerMaxAttempts": fixer.get("maxAttempts", 1),
    }


def make_manifest(
    role: str,
    described: dict[str, Any],
    *,
    definition_hash: str,
    version_id: str,
    step_path: str,
    cycle: Any = None,
) -> dict[str, Any]:
    """Returns the manifest of the sessions of a step path; `cycle` is what a planner sees of it."""
    own = {
        "workflowDefinitionHash": definition_hash,
        "workflowVersionId": version_id,
        "stepPath": step_path,
        "outerLoopContextHash": None if cycle is None else hash_value(cycle),
    }
    named = {name: own[name] for name in _OWN_FIELDS[role] if own[name] is not None}
    return {**described, **named}


def hash_manifest(manifest: dict[str, Any]) -> str:
    """Returns the manifest's hash over its RFC 8785 form.

    A manifest has ASCII keys and holds only text, small integers and lists of these. For such
    values the standard library's sorted, compact JSON *is* the RFC 8785 form (test_manifests.py
    compares them), and this is computed for every attempt of every step.
    """
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hash_bytes(text.encode())


def compare_manifests(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns each field that differs, with its old and its new value (None: not there)."""
    names = sorted(old.keys() | new.keys())
    return [(n, old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)]


def _names_of_tools(arguments: dict[str, Any]) -> set[str]:
    names = set(arguments.get("tools", ()))
    if "tool" in arguments:
        names.add(arguments["tool"])
    return names


def _hash_tools(lock: dict[str, Any], names: set[str]) -> str:
    tools = lock.get("tools", {})
    return hash_value(sorted([name, tools.get(name)] for name in names))


def _list_skills(lock: dict[str, Any]) -> list[list[str]]:
    return sorted([skill["name"], skill["description"]] for skill in lock.get("skills", ()))
