"""One session as it was delivered, and what its step's expressions see."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planaria.blobstore import BlobStore
from planaria.protocol.codec import Json, pack
from planaria.protocol.expression_operations import WORK_MAX, Budget, write_text
from planaria.protocol.payloads import Ref, load_value
from planaria.protocol.templates import Template, parse_template

# A child delays nobody but its own step, so it may do more than the supervisor's loop.
CHILD_WORK_MAX = 10 * WORK_MAX
TEMPLATES_KEPT_MAX = 1_000
TEMPLATE_BYTES_KEPT = 4_096


@dataclass(frozen=True, slots=True)
class Session:
    """The content of a Deliver message; `inherited` are results of earlier attempts, by key."""

    id: str
    incarnation: int
    run_id: str
    workflow_id: str
    version_id: str
    step_path: str
    attempt: int
    started_at: int
    step: dict[str, Any]
    context: dict[str, Any]
    source: dict[str, Any]
    manifest_hash: str
    first_sequence: int
    reported: int
    has_history: bool
    inherited: dict[str, Any]
    sensitive: bool
    environment: dict[str, str]
    last_sequence: int | None = None
    role: str = "worker"
    task: str = "execute_step"
    definition: dict[str, Any] = field(default_factory=dict)
    definition_hash: str | None = None
    tools: dict[str, Any] = field(default_factory=dict)  # descriptors, by name
    models: dict[str, Any] = field(default_factory=dict)  # descriptors, by slot
    fix: dict[str, Any] | None = None  # of a fixer: what failed, and what was tried
    memory: tuple[str, ...] = ()
    skills: tuple[dict[str, str], ...] = ()
    cycle: dict[str, Any] | None = None
    budget: dict[str, Any] | None = None
    # (run id, version id), oldest first, of the runs that this one was forked from.
    origins: tuple[tuple[str, str], ...] = ()


def read_session(delivered: Mapping[str, Any], blobs: BlobStore) -> Session:
    """Returns the session of a Deliver message; a large context stands in the blob store."""
    context = delivered["context"]
    if context is None:
        context = load_value(Ref(delivered["contextRef"]), blobs.read)
    return Session(
        id=delivered["sessionId"],
        incarnation=delivered["incarnation"],
        run_id=delivered["runId"],
        workflow_id=delivered["workflowId"],
        version_id=delivered["versionId"],
        step_path=delivered["stepPath"],
        attempt=delivered["attempt"],
        started_at=delivered["startedAt"],
        step=delivered["step"],
        context=context,
        source=delivered["source"],
        manifest_hash=delivered["manifestHash"],
        first_sequence=delivered["firstSequence"],
        reported=delivered["reported"],
        has_history=delivered["hasHistory"],
        inherited=delivered["inherited"],
        sensitive=delivered["sensitive"],
        environment=delivered.get("environment") or {},
        last_sequence=delivered.get("lastSequence"),
        role=delivered.get("role", "worker"),
        task=delivered.get("task", "execute_step"),
        definition=delivered.get("definition") or {},
        definition_hash=delivered.get("definitionHash"),
        tools=delivered.get("tools") or {},
        models=delivered.get("models") or {},
        fix=delivered.get("fix"),
        memory=tuple(delivered.get("memory") or ()),
        skills=tuple(delivered.get("skills") or ()),
        cycle=delivered.get("cycle") or _load_wrapped(context.get("cycle"), blobs),
        budget=delivered.get("budget"),
        origins=tuple((run, version) for run, version in delivered.get("origins") or ()),
    )


def _load_wrapped(wrapped: Mapping[str, Any] | None, blobs: BlobStore) -> Any:
    """Returns the value of {"v": value} or {"r": reference}; None where there is none."""
    if wrapped is None:
        return None
    return load_value(wrapped["v"] if "v" in wrapped else Ref(wrapped["r"]), blobs.read)


def find_scratch(directory: str, session: Session) -> str:
    """Returns the session's working directory; it is made when somebody asks for it."""
    return f"{directory}/runs/{session.run_id}/harness/{session.id}"


class StepValues:
    """The values of a step's fields, for one session."""

    def __init__(self, session: Session, blobs: BlobStore) -> None:
        self._session = session
        self._blobs = blobs
        self._budget = Budget(CHILD_WORK_MAX)
        self._roots: dict[str, Any] | None = None

    def evaluate(self, value: Json) -> Json:
        """Returns a field's value with its expressions evaluated.

        Raises:
            ExpressionError: an operand of a wrong type, or too much work.
            IntegrityError: a value that it reads is missing in the blob store.
        """
        template = _find_template(value)
        if not template.expressions:
            return template.evaluate({}, self._budget)
        if self._roots is None:
            self._roots = self._make_roots()
        return template.evaluate(self._roots, self._budget)

    def evaluate_text(self, value: Json) -> str:
        """Returns a field's value as text: JSON if its one expression gives no text."""
        found = self.evaluate(value)
        return found if isinstance(found, str) else write_text(found, self._budget)

    def input(self) -> Json:
        """Returns the step's input: its own, else the branch's item, else the run's input."""
        step, context = self._session.step, self._session.context
        if "input" in step:
            return self.evaluate(step["input"])
        return self.unwrap(context["item"] if context["inBranch"] else context["input"])

    def unwrap(self, wrapped: Mapping[str, Any]) -> Json:
        """Returns the value of {"v": value} or {"r": reference}."""
        return _load_wrapped(wrapped, self._blobs)

    def _make_roots(self) -> dict[str, Any]:
        context = self._session.context
        steps: dict[str, Any] = {}
        for step_id, entry in context["steps"].items():
            last = self.unwrap(entry["lastOutput"]) if "lastOutput" in entry else None
            visits = [self.unwrap(visit) for visit in entry.get("allVisits", ())]
            steps[step_id] = {"output": last, "lastOutput": last, "allVisits": visits}
        return {
            "input": self.unwrap(context["input"]),
            "item": self.unwrap(context["item"]),
            "itemKey": context["itemKey"],
            "steps": steps,
            "workflow": context["workflow"],
            "cycle": _load_wrapped(context["cycle"], self._blobs),
        }


_templates: dict[bytes, Template] = {}


def _find_template(value: Json) -> Template:
    """Returns the parsed template; small ones are kept, for the steps of a process repeat."""
    key = pack(value)
    template = _templates.get(key)
    if template is None:
        template = parse_template(value)
        if len(key) <= TEMPLATE_BYTES_KEPT:
            if len(_templates) >= TEMPLATES_KEPT_MAX:
                _templates.clear()
            _templates[key] = template
    return template
