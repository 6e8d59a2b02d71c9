"""Locks: what a workflow is made of, in the three forms that there are, and what a version is.

    steps         {"lwir": document, "tools": …, "models": …}
    planned       {"planner": …, "definition": …, "tools": …, "models": …}: has no steps yet
    orchestrated  {"orchestrator": …, "definition": …, "tools": …, "models": …, "workflows": …}

Each may have `workflows` (id -> {definitionHash, description, lock}: what it may start), `memory`
and `skills`. A planner's draft turns a planned lock into one with steps.

The sessions of a planner and of an orchestrator are attempts of a step that no document can have:
its id begins with a dot. So retries, timeouts, recovery and views know one mechanism.
"""

from collections.abc import Mapping
from typing import Any

from .codec import Json, hash_jcs
from .findings import Finding
from .json_paths import extend_path
from .lwir import validate_lwir

PLAN_STEP = ".plan"
ORCHESTRATE_STEP = ".orchestrate"
JCS_INTEGER_MAX = 2**53 - 1  # RFC 8785: numbers are those of IEEE 754 doubles
WORKFLOWS_DEPTH_MAX = 32  # definitions in definitions; more can't be started either
_EXTRAS = ("memory", "skills")


def is_planned(lock: Mapping[str, Any]) -> bool:
    """Says whether a planner still has to draft the steps."""
    return "planner" in lock


def document_of(lock: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the document that is run: the lock's own, or one of the single step of its role."""
    if "lwir" in lock:
        own: dict[str, Any] = lock["lwir"]
        return own
    definition = lock["definition"]
    document: dict[str, Any] = {
        "metadata": {"name": definition["id"], "description": definition.get("description", "")}
    }
    if "input" in definition:
        document["input"] = definition["input"]
    if is_planned(lock):
        document["steps"] = [{"id": PLAN_STEP, "uses": "plan", "with": lock["planner"]}]
        return document
    step = {"id": ORCHESTRATE_STEP, "uses": "orchestrate", "with": lock["orchestrator"]}
    if "output" in definition:
        document["output"] = definition["output"]
    document["steps"] = [step]
    return document


def make_version_id(lock: Mapping[str, Any]) -> str:
    """Returns `wv_` and the first 32 hex digits of the lock's hash."""
    return "wv_" + hash_jcs(dict(lock)).removeprefix("sha256:")[:32]


def make_planned_lock(lock: Mapping[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Returns the lock of the version that a planner's draft makes of a planned lock."""
    permitted = document.get("permissions", {})
    made: dict[str, Any] = {
        "lwir": document,
        "tools": {name: lock["tools"][name] for name in sorted(permitted.get("tools", ()))},
        "models": {slot: lock["models"][slot] for slot in sorted(permitted.get("models", ()))},
    }
    workflows = sorted(permitted.get("workflows", ()))
    if workflows:
        made["workflows"] = {name: lock["workflows"][name] for name in workflows}
    made.update({name: lock[name] for name in _EXTRAS if name in lock})
    return made


def summarize(lock: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a planner's or orchestrator's session is told of the definition around it."""
    workflows: dict[str, Any] = {}
    for name, entry in lock.get("workflows", {}).items():
        schema = document_of(entry["lock"]).get("input", {}).get("schema")
        workflows[name] = {"description": entry.get("description", "")}
        workflows[name]["isPlanned"] = is_planned(entry["lock"])
        if schema is not None:
            workflows[name]["input"] = schema
    return {"definition": lock.get("definition"), "workflows": workflows}


def check_draft(lock: Mapping[str, Any], document: Json) -> list[Finding]:
    """Returns what is wrong with a planner's draft: it has to be the definition's, and valid."""
    definition = lock["definition"]
    findings = validate_lwir(
        document,
        tools=list(lock["tools"]),
        models=list(lock["models"]),
        workflows=list(lock.get("workflows", ())),
    )
    if findings or not isinstance(document, dict):
        return findings
    findings = find_large_numbers(document)
    name = document["metadata"]["name"]
    if name != definition["id"]:
        text = f"the workflow's id is {definition['id']!r}, not {name[:60]!r}: write that"
        findings.append(Finding("lwir.invalid_value", "$.metadata.name", text))
    for field in ("input", "output"):
        given = document.get(field, {}).get("schema")
        if given != definition.get(field, {}).get("schema"):
            text = f"the {field} schema isn't the definition's: write that, or leave it out"
            findings.append(Finding("lwir.invalid_value", f"$.{field}.schema", text))
    return findings


def check_lock(lock: Mapping[str, Any], depth: int = 1) -> list[Finding]:
    """Returns what is wrong with a lock that a client brings, and with those inside of it.

    Raises:
        KeyError, TypeError, AttributeError: it has none of the three forms.
    """
    findings: list[Finding] = []
    if "lwir" in lock:
        findings = validate_lwir(
            lock["lwir"],
            tools=list(lock["tools"]),
            models=list(lock["models"]),
            workflows=list(lock.get("workflows", ())),
        )
    else:
        agent = lock["planner"] if is_planned(lock) else lock["orchestrator"]
        findings = list(_check_agent(agent, lock))
    if depth > WORKFLOWS_DEPTH_MAX:
        text = f"workflows are nested deeper than {WORKFLOWS_DEPTH_MAX}"
        return [*findings, Finding("lwir.invalid_value", "$.workflows", text)]
    for name, entry in sorted(lock.get("workflows", {}).items()):
        entry["definitionHash"], entry["lock"]
        for finding in check_lock(entry["lock"], depth + 1):
            path = extend_path("$.workflows", name) + finding.path.removeprefix("$")
            findings.append(Finding(finding.code, path, finding.message))
    return findings


def _check_agent(agent: Mapping[str, Any], lock: Mapping[str, Any]) -> list[Finding]:
    slot = agent["model"]
    role = "planner" if is_planned(lock) else "orchestrator"
    findings: list[Finding] = []
    if slot not in lock["models"]:
        text = f"there is no model slot {str(slot)[:60]!r}; there are {sorted(lock['models'])}"
        findings.append(Finding("lwir.unknown_model", f"$.{role}.model", text))
    counts = (
        ("maxRevisions", "maxTurns") if is_planned(lock) else ("maxConcurrentSubRuns", "maxTurns")
    )
    for name in counts:
        if type(agent[name]) is not int or not 0 <= agent[name] <= 10_000:
            text = f"expected an integer from 0 to 10,000, got {str(agent[name])[:60]!r}"
            findings.append(Finding("lwir.invalid_value", f"$.{role}.{name}", text))
    lock["definition"]["id"], lock["definition"]["permissions"]
    return findings


def find_large_numbers(value: Json, path: str = "$") -> list[Finding]:
    """Returns integers that the canonical form, which versions are hashes of, doesn't have."""
    if isinstance(value, dict):
        return [
            finding
            for key, item in value.items()
            for finding in find_large_numbers(item, extend_path(path, key))
        ]
    if isinstance(value, list):
        return [
            finding
            for index, item in enumerate(value)
            for finding in find_large_numbers(item, extend_path(path, index))
        ]
    if isinstance(value, int) and not -JCS_INTEGER_MAX <= value <= JCS_INTEGER_MAX:
        text = "an integer beyond 2**53 - 1 has no canonical form in a document: write it as text"
        return [Finding("lwir.invalid_value", path, text)]
    return []
