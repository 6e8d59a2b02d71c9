"""A plan: an LWIR document made ready for the kernel, once per workflow version."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.codec import canonical_bytes, hash_jcs
from planaria.protocol.durations import parse_duration
from planaria.protocol.expressions import Reference
from planaria.protocol.graph import Node, ScopeGraph, build_graph
from planaria.protocol.locks import document_of, is_planned, make_version_id, summarize
from planaria.protocol.manifests import describe_fixer, describe_step, role_of
from planaria.protocol.templates import Template, parse_template

WAITING_KINDS = frozenset({"approval", "wait"})
# No process carries them.
KERNEL_KINDS = frozenset({"decision", "parallel", "workflow.call"}) | WAITING_KINDS
_AGENT_KINDS = frozenset({"ai.generate", "plan", "orchestrate"})
_TEMPLATE_FIELDS = frozenset({"prompt", "instructions", "args", "data", "until", "for"})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `attempts_max` attempts; delays in ms."""

    attempts_max: int = 1
    exponential: bool = False
    delay_ms: int = 0
    delay_max_ms: int | None = None

    def delay_before(self, attempt: int) -> int:
        """Returns the ms between the failure of an attempt and the start of the given next one."""
        if not self.exponential:
            return self.delay_ms
        grown = int(self.delay_ms * 2 ** (attempt - 2))
        return grown if self.delay_max_ms is None else min(grown, self.delay_max_ms)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of a scope. `multi` says that its paths carry a visit."""

    index: int
    id: str
    kind: str
    document: dict[str, Any]
    multi: bool
    visits_max: int
    retry: RetryPolicy
    timeout_ms: int | None
    sensitive: bool
    output_mode: str
    output_schema: dict[str, Any] | None
    output_values: tuple[Any, ...]
    references: tuple[Reference, ...]
    manifest: dict[str, Any]  # the fields that the manifests of all its sessions share
    cases: tuple[tuple[Template, str], ...] = ()
    default: str = "end"
    items: Template | None = None
    item_key: Template | None = None
    branches_max: int = 0
    concurrency_max: int = 0
    fail_fast: bool = True
    order_by_key: bool = False
    branch: "ScopePlan | None" = None
    templates: dict[str, Template] = field(default_factory=dict)  # of `with`, for the kernel
    fixer: dict[str, Any] | None = None  # and its limits
    fixer_manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def role(self) -> str:
        """Returns the role that carries out its attempts, its fixes aside."""
        return role_of(self.document)

    @property
    def uses_agent(self) -> bool:
        """Says whether its attempts need the agent library."""
        return self.kind in _AGENT_KINDS


@dataclass(frozen=True, slots=True)
class ScopePlan:
    """The steps of a scope, their graph, and where its output comes from."""

    steps: tuple[StepPlan, ...]
    graph: ScopeGraph
    output_step: int | None


@dataclass(frozen=True, slots=True)
class SubWorkflow:
    """A workflow that runs of a plan may start; `lock_bytes` are what its lock's blob holds."""

    id: str
    definition_hash: str
    version_id: str
    is_planned: bool
    lock: dict[str, Any]
    lock_bytes: bytes

    @property
    def input_schema(self) -> dict[str, Any] | None:
        """Returns the schema of its input, if it has one."""
        schema: dict[str, Any] | None = document_of(self.lock).get("input", {}).get("schema")
        return schema


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole document, or the one step that drafts one (`is_planned`)."""

    version_id: str
    document: dict[str, Any]
    lock: dict[str, Any]
    root: ScopePlan
    output_schema: dict[str, Any] | None
    lwir_hash: str
    is_planned: bool
    workflows: dict[str, SubWorkflow]
    summary: dict[str, Any]  # what sessions of planners and orchestrators are told

    @property
    def name(self) -> str:
        """Returns the workflow's name as its document has it."""
        return str(self.document["metadata"]["name"])


def make_plan(version_id: str, lock: dict[str, Any]) -> Plan:
    """Returns the plan of a lock whose document has passed validation."""
    document = document_of(lock)
    output = document.get("output", {})
    workflows = lock.get("workflows", {})
    return Plan(
        version_id=version_id,
        document=document,
        lock=lock,
        root=_make_scope(document["steps"], output.get("step"), lock),
        output_schema=output.get("schema"),
        lwir_hash=hash_jcs(document),
        is_planned=is_planned(lock),
        workflows={name: _make_sub_workflow(name, entry) for name, entry in workflows.items()},
        summary={} if "lwir" in lock else summarize(lock),
    )


def _make_sub_workflow(name: str, entry: Mapping[str, Any]) -> SubWorkflow:
    return SubWorkflow(
        id=name,
        definition_hash=entry["definitionHash"],
        version_id=make_version_id(entry["lock"]),
        is_planned=is_planned(entry["lock"]),
        lock=entry["lock"],
        lock_bytes=canonical_bytes(entry["lock"]),
    )


def _make_scope(
    steps: list[dict[str, Any]], output_step: str | None, lock: dict[str, Any]
) -> ScopePlan:
    graph = build_graph([_make_node(step) for step in steps])
    on_loop = frozenset().union(*(loop.members for loop in graph.loops))
    # Of a decision on a loop: in each pass it runs one of the loops' steps, or it would never end.
    decisions_max = 1 + sum(
        steps[index].get("maxVisits", 1) for index in on_loop if steps[index]["uses"] != "decision"
    )
    plans = tuple(
        _make_step(index, step, decisions_max if index in on_loop else 0, lock)
        for index, step in enumerate(steps)
    )
    output_index = graph.ids.index(output_step) if output_step else None
    return ScopePlan(steps=plans, graph=graph, output_step=output_index)


def _make_node(step: dict[str, Any]) -> Node:
    is_decision = step["uses"] == "decision"
    targets: tuple[str, ...] = ()
    if is_decision:
        arguments = step["with"]
        named = [*(case["to"] for case in arguments.get("cases", ())), arguments["default"]]
        targets = tuple(to for to in named if to != "end")
    return Node(step["id"], tuple(step.get("needs", ())), is_decision, targets)


def _make_step(
    index: int, step: dict[str, Any], decisions_max: int, lock: dict[str, Any]
) -> StepPlan:
    kind = step["uses"]
    arguments = step.get("with", {})
    output = step.get("output", {})
    visits_max = step.get("maxVisits", 1)
    extra: dict[str, Any] = {}
    if kind == "decision":
        visits_max = decisions_max or 1
        extra["cases"] = tuple(
            (parse_template(case["when"]), case["to"]) for case in arguments.get("cases", ())
        )
        extra["default"] = arguments["default"]
    elif kind == "parallel":
        fan_in = arguments.get("fanIn", {})
        branches_max = arguments.get("maxBranches", 10_000)
        extra["items"] = parse_template(arguments["items"])
        extra["item_key"] = parse_template(arguments["itemKey"]) if "itemKey" in arguments else None
        extra["branches_max"] = branches_max
        extra["concurrency_max"] = arguments.get("maxConcurrency", branches_max)
        extra["fail_fast"] = arguments.get("failureMode", "fail_fast") == "fail_fast"
        extra["order_by_key"] = fan_in.get("order") == "itemKey"
        extra["branch"] = _make_scope(step["steps"], fan_in.get("outputStep"), lock)
    elif kind in KERNEL_KINDS:
        names = _TEMPLATE_FIELDS | {"input"}
        extra["templates"] = {n: parse_template(v) for n, v in arguments.items() if n in names}
    elif "fixer" in step.get("onFailure", {}):
        extra["fixer"] = step["onFailure"]["fixer"]
        extra["fixer_manifest"] = describe_fixer(step, lock)
    return StepPlan(
        index=index,
        id=step["id"],
        kind=kind,
        document=step,
        multi=step.get("maxVisits", 1) > 1 or (kind == "decision" and decisions_max > 0),
        visits_max=visits_max,
        retry=_make_retry(step.get("retry")),
        timeout_ms=_read_timeout(step),
        sensitive=bool(step.get("sensitive", False)),
        output_mode=output.get("mode", "json"),
        output_schema=output.get("schema"),
        output_values=tuple(output.get("values", ())),
        references=_collect_references(step),
        manifest=describe_step(step, lock),
        **extra,
    )


def _collect_references(step: dict[str, Any]) -> tuple[Reference, ...]:
    """Returns what a step's templates read: it decides what its session is sent."""
    kind = step["uses"]
    parts: list[Any] = [step["input"]] if "input" in step else []
    for name, value in step.get("with", {}).items():
        if name in _TEMPLATE_FIELDS or (name == "input" and kind == "workflow.call"):
            parts.append(value)
        elif name == "cases":
            parts.extend(case["when"] for case in value)
        elif name in ("items", "itemKey"):
            parts.append(value)
    found: dict[Reference, None] = {}
    for part in parts:
        for reference in parse_template(part).references:
            found[reference] = None
    if kind == "parallel":
        found.update(dict.fromkeys(_outer_references(step["steps"])))
    return tuple(found)


def _outer_references(steps: list[dict[str, Any]]) -> list[Reference]:
    """Returns what the inside of a branch reads of the scopes around it."""
    inside = {step["id"] for step in steps}
    return [
        reference
        for step in steps
        for reference in _collect_references(step)
        if reference.root == "steps" and reference.step_id not in inside
    ]


def _make_retry(policy: dict[str, Any] | None) -> RetryPolicy:
    if policy is None:
        return RetryPolicy()
    return RetryPolicy(
        attempts_max=policy.get("maxAttempts", 1),
        exponential=policy.get("backoff", "fixed") == "exponential",
        delay_ms=parse_duration(policy["delay"]) if "delay" in policy else 0,
        delay_max_ms=parse_duration(policy["maxDelay"]) if "maxDelay" in policy else None,
    )


def _read_timeout(step: dict[str, Any]) -> int | None:
    return parse_duration(step["timeout"]) if "timeout" in step else None
