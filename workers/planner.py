"""A planner: an agent that drafts the steps of a workflow from what the definition says.

It sees descriptions and schemas only: no code of a tool, no environment, no input of a run. Its
draft is checked as every document is; what is found goes back to it, a few times.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai import Agent, ModelRetry, RunContext, StructuredDict, ToolOutput
from pydantic_ai.exceptions import UnexpectedModelBehavior, UserError
from pydantic_ai.toolsets import AbstractToolset

from planaria.protocol.codec import Json
from planaria.protocol.errors import PlanariaError, shorten
from planaria.protocol.findings import Finding
from planaria.protocol.limits import PLAN_REVISIONS_MAX, PLANNER_TURNS_MAX
from planaria.protocol.locks import check_draft

from .agent_loop import run_agent
from .agent_step import FINDINGS_SHOWN
from .definitions import Definition
from .failures import StepConfigError
from .generate_step import note_repair, resolve_slot_model
from .journal import Journal
from .planner_guide import GUIDE
from .session import Session

TOOL_RETRIES = 3  # arguments that don't fit, in a row and for one tool
CYCLE_VALUE_CHARS_MAX = 20_000  # of one earlier cycle's output, as the planner sees it
OUTPUT_TOOL = "submit_workflow"

_OBJECT: dict[str, Json] = {"type": "object"}
_NAMES: dict[str, Json] = {"type": "array", "items": {"type": "string"}}
# Only the outline: of what is wrong inside, the validator says more than a schema could.
_DRAFT = StructuredDict(
    {
        "type": "object",
        "properties": {
            "apiVersion": {"const": "lwir/v1"},
            "kind": {"const": "Workflow"},
            "metadata": _OBJECT,
            "permissions": {
                "type": "object",
                "properties": {"models": _NAMES, "tools": _NAMES, "workflows": _NAMES},
            },
            "output": _OBJECT,
            "steps": {"type": "array", "items": _OBJECT},
        },
        "required": ["steps"],
    },
    name=OUTPUT_TOOL,
)


class PlannerValidationError(PlanariaError):
    """No draft was valid; `findings` are those of the last one."""

    template = "no draft was valid after {revisions} revision(s): {message}"


@dataclasses.dataclass(slots=True)
class _DraftCheck:
    """Completes and checks drafts, and remembers what was found last."""

    session: Session
    journal: Journal
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def check(self, ctx: RunContext[Any], draft: dict[str, Json]) -> dict[str, Json]:
        document = complete_draft(self.session, draft)
        self.findings = check_draft(describe_lock(self.session), document)
        if not self.findings:
            return document
        if not ctx.last_attempt:
            note_repair(self.session, self.journal, self.findings)
        raise ModelRetry(describe_findings(self.findings))


async def run_planner(
    session: Session,
    journal: Journal,
    definition: Definition,
    toolsets: Sequence[AbstractToolset[Any]] = (),
) -> Json:
    """Returns the document that the planner drafted, complete and valid.

    Raises:
        PlannerValidationError: no draft was valid (cause `planner_validation_exhausted`).
        StepConfigError: the planner's model isn't set up.
        RecordedError: a tool or the model raised.
    """
    planner = session.step["with"]
    revisions = planner.get("maxRevisions", PLAN_REVISIONS_MAX)
    check = _DraftCheck(session, journal)
    try:
        agent: Agent[Any, Any] = Agent(
            resolve_slot_model(definition, planner["model"]),
            name="planner",
            instructions=make_instructions(planner.get("instructions", "")),
            output_type=ToolOutput(
                _DRAFT, name=OUTPUT_TOOL, description="Hands in the whole workflow document."
            ),
            retries={"tools": TOOL_RETRIES, "output": revisions},
        )
        agent.output_validator(check.check)
        outcome = await run_agent(
            agent,
            make_prompt(session),
            journal=journal,
            session_id=session.id,
            run_id=session.run_id,
            extra_toolsets=toolsets,
            max_turns=planner.get("maxTurns", PLANNER_TURNS_MAX),
        )
    except UserError as error:
        raise StepConfigError(message=f"the planner can't be set up: {error}") from error
    except UnexpectedModelBehavior as error:
        if "output retries" not in str(error):
            raise
        message = describe_findings(check.findings) if check.findings else str(error)
        raise PlannerValidationError(
            cause_code="planner_validation_exhausted", revisions=revisions, message=message
        ) from error
    return outcome.output


def make_instructions(own: str) -> str:
    """Returns the planner's instructions: the language, then what its author says."""
    text = f"{GUIDE}\n\nHand the document in with {OUTPUT_TOOL}; findings come back to you."
    return f"{text}\n\n{own}" if own else text


def make_prompt(session: Session) -> str:
    """Returns the goal, and what the definition has to reach it with."""
    given = session.definition["definition"]
    lock = describe_lock(session)
    facts = {
        "id": given["id"],
        "goal": given.get("description", ""),
        "inputSchema": _schema_of(given, "input"),
        "outputSchema": _schema_of(given, "output"),
        "modelSlots": [
            {"slot": slot, "model": session.models[slot].get("model")} for slot in lock["models"]
        ],
        "tools": [_describe_tool(name, session.tools[name]) for name in lock["tools"]],
        "callableWorkflows": [
            {"id": name, "description": entry.get("description"), "inputSchema": entry.get("input")}
            for name, entry in sorted(lock["workflows"].items())
        ],
    }
    parts = ["Draft the workflow for this definition:", _write(facts)]
    if session.cycle is not None:
        parts += ["This goal was worked on before. The earlier cycles:", _write(_prior(session))]
        if session.cycle.get("note"):
            parts.append(f"A note for this cycle:\n{session.cycle['note']}")
    return "\n\n".join(parts)


def describe_lock(session: Session) -> dict[str, Any]:
    """Returns what a draft is checked against: the definition, and what it may name."""
    given = session.definition["definition"]
    permitted = given.get("permissions") or {}
    known = session.definition.get("workflows") or {}
    return {
        "definition": given,
        "tools": {n: session.tools[n] for n in _permitted(permitted, "tools", session.tools)},
        "models": {n: session.models[n] for n in _permitted(permitted, "models", session.models)},
        "workflows": {n: known[n] for n in _permitted(permitted, "workflows", known)},
    }


def complete_draft(session: Session, draft: Mapping[str, Json]) -> dict[str, Json]:
    """Returns the draft with what needs no planner: head, schemas, and permissions left out."""
    given, lock = session.definition["definition"], describe_lock(session)
    document: dict[str, Any] = {"apiVersion": "lwir/v1", "kind": "Workflow", **draft}
    metadata = document.get("metadata", {})
    if isinstance(metadata, dict):
        own = {"name": given["id"], "description": given.get("description", "")}
        document["metadata"] = {**own, **metadata}
    for field in ("input", "output"):
        _set_schema(document, field, given)
    permissions = document.get("permissions", {})
    if isinstance(permissions, dict):
        names = {kind: sorted(lock[kind]) for kind in ("models", "tools", "workflows")}
        if not names["workflows"]:
            del names["workflows"]
        document["permissions"] = {**names, **permissions}
    return document


def describe_findings(findings: Sequence[Finding]) -> str:
    """Returns the findings of a draft as lines that a model can act on."""
    lines = [f"- {f.code} at {f.path}: {f.message}" for f in findings[:FINDINGS_SHOWN]]
    if len(findings) > FINDINGS_SHOWN:
        lines.append(f"- and {len(findings) - FINDINGS_SHOWN} more")
    return shorten("The document has findings:\n" + "\n".join(lines))


def _set_schema(document: dict[str, Any], field: str, given: Mapping[str, Any]) -> None:
    """Replaces a schema by the definition's; what else stands beside it stays."""
    drafted = document.get(field, {})
    if not isinstance(drafted, dict):
        return  # a finding
    kept = {name: value for name, value in drafted.items() if name != "schema"}
    schema = _schema_of(given, field)
    if schema is not None:
        kept["schema"] = schema
    if kept:
        document[field] = kept
    else:
        document.pop(field, None)


def _schema_of(given: Mapping[str, Any], field: str) -> Any:
    return (given.get(field) or {}).get("schema")


def _permitted(permissions: Mapping[str, Any], kind: str, known: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in permissions.get(kind, known) if name in known)


def _describe_tool(name: str, descriptor: Mapping[str, Any]) -> dict[str, Json]:
    fields = ("description", "parameters", "effect")
    return {"name": name, **{field: descriptor.get(field) for field in fields}}


def _prior(session: Session) -> list[Json]:
    assert session.cycle is not None
    shown = []
    for cycle in session.cycle.get("prior", ()):
        output = cycle.get("output")
        text = json.dumps(output, ensure_ascii=False, sort_keys=True)
        if len(text) > CYCLE_VALUE_CHARS_MAX:
            output = text[:CYCLE_VALUE_CHARS_MAX] + " […cut off]"
        shown.append({**cycle, "output": output})
    return shown


def _write(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True)
