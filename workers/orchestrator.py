"""An orchestrator: an agent that works by starting other workflows, each as a run of its own."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai import ModelRetry
from pydantic_ai.exceptions import UserError
from pydantic_ai.toolsets import AbstractToolset

from planaria.protocol.codec import Json
from planaria.protocol.errors import ValueRefusedError
from planaria.protocol.limits import ORCHESTRATOR_TURNS_MAX, UNACKNOWLEDGED_APPENDS_MAX
from planaria.protocol.schemas import validate_value
from planaria.protocol.values import check_json

from .agent_hosted import HostedCall, HostedTool
from .agent_step import describe_findings, run_generate
from .definitions import Definition, find_tool
from .failures import StepConfigError
from .generate_step import note_repair, resolve_slot_model
from .journal import Journal
from .planner import describe_lock
from .session import Session, StepValues

CALLS_OPEN_MAX = UNACKNOWLEDGED_APPENDS_MAX - 1  # as many as a session may have in flight
_MODES = {"object": "object", "array": "array", "string": "text"}


def plan_workflow(workflowId: str) -> Any:
    """The signature that the model sees; see SubRuns."""


def run_workflow(workflowVersionId: str, input: Any = None) -> Any:
    """The signature that the model sees; see SubRuns."""


def start_workflow(workflowId: str, input: Any = None) -> Any:
    """The signature that the model sees; see SubRuns."""


class SubRuns:
    """Starts workflows for the model: the supervisor carries them out and records the outcome."""

    def __init__(self, workflows: Mapping[str, Any], journal: Journal) -> None:
        self._workflows = workflows
        self._journal = journal
        # Version -> its workflow, and the first turn of which the model has seen the answer.
        self._planned: dict[str, tuple[str, int]] = {}
        self._gate = asyncio.Semaphore(CALLS_OPEN_MAX)

    def tools(self) -> list[HostedTool]:
        """Returns the tools of an orchestrator's session."""
        return [
            HostedTool(
                plan_workflow,
                self._plan,
                "Makes a workflow ready to run and returns its workflowVersionId. Plan once and "
                "run the version for as many inputs as you like.",
            ),
            HostedTool(
                run_workflow,
                self._run,
                "Runs a planned version with an input, waits for it, and returns its status with "
                "its output or error. Several calls in one turn run side by side.",
            ),
            HostedTool(
                start_workflow,
                self._start,
                "Plans a workflow, runs it with an input, waits for it, and returns its status "
                "with its output or error. Several calls in one turn run side by side.",
            ),
        ]

    async def _plan(self, call: HostedCall) -> Json:
        workflow_id = str(call.args["workflowId"])
        self._find(workflow_id)
        result = await self._request(call, {"workflowId": workflow_id})
        version = result.get("workflowVersionId") if isinstance(result, dict) else None
        if isinstance(version, str):
            _, turn = self._planned.get(version, ("", call.turn))
            self._planned[version] = workflow_id, min(turn, call.turn)
        return result

    async def _run(self, call: HostedCall) -> Json:
        version = str(call.args["workflowVersionId"])
        workflow_id, turn = self._planned.get(version, ("", call.turn))
        # Of this very turn it can't have been read; whether it is known already is a race.
        if turn >= call.turn:
            known = sorted(v for v, (_, seen) in self._planned.items() if seen < call.turn)
            raise ModelRetry(
                f"no version {version!r} was planned; there are: {', '.join(known) or 'none'}. "
                "Call plan_workflow first"
            )
        self._check_input(workflow_id, call.args.get("input"))
        asked = {"workflowVersionId": version, "input": call.args.get("input")}
        return await self._request(call, asked)

    async def _start(self, call: HostedCall) -> Json:
        workflow_id = str(call.args["workflowId"])
        self._check_input(workflow_id, call.args.get("input"))
        return await self._request(
            call, {"workflowId": workflow_id, "input": call.args.get("input")}
        )

    async def _request(self, call: HostedCall, asked: dict[str, Json]) -> Json:
        try:
            check_json(asked)
        except ValueRefusedError as error:
            raise ModelRetry(f"the input is no plain JSON: {error}") from error
        async with self._gate:
            return await self._journal.request_sub_run(
                position=call.position, tool_name=call.tool_name, args=asked, details=call.details
            )

    def _find(self, workflow_id: str) -> Any:
        if workflow_id not in self._workflows:
            listed = ", ".join(sorted(self._workflows)) or "none"
            raise ModelRetry(f"there is no workflow {workflow_id!r}; there are: {listed}")
        return self._workflows[workflow_id]

    def _check_input(self, workflow_id: str, value: Json) -> None:
        schema = self._find(workflow_id).get("input")
        findings = validate_value(schema, value) if schema else []
        if findings:
            shown = describe_findings(findings, "The input does not fit the workflow's schema:")
            raise ModelRetry(shown)


async def run_orchestrator(
    session: Session,
    values: StepValues,
    journal: Journal,
    definition: Definition,
    toolsets: Sequence[AbstractToolset[Any]] = (),
) -> Json:
    """Returns the orchestrator's output, by the definition's schema.

    Raises:
        StepConfigError: its model isn't set up, or a tool of its own has a reserved name.
        StepOutputError: no output fitted after the repairs.
        RecordedError: a tool or the model raised.
    """
    asked, lock = session.step["with"], describe_lock(session)
    workflows = lock["workflows"]
    schema = (lock["definition"].get("output") or {}).get("schema")
    step: dict[str, Any] = {
        "id": "orchestrator",
        "with": {
            "prompt": lock["definition"].get("description") or "Do what the input asks for.",
            "instructions": make_instructions(asked.get("instructions", ""), workflows),
            "maxTurns": asked.get("maxTurns", ORCHESTRATOR_TURNS_MAX),
        },
        "output": make_output(schema),
    }
    try:
        outcome = await run_generate(
            step,
            [find_tool(definition, name) for name in lock["tools"]],
            input=values.input(),
            model=resolve_slot_model(definition, asked["model"]),
            journal=journal,
            session_id=session.id,
            run_id=session.run_id,
            extra_toolsets=toolsets,
            hosted=SubRuns(workflows, journal).tools(),
            on_repair=lambda findings: note_repair(session, journal, findings),
        )
    except UserError as error:
        raise StepConfigError(message=f"the orchestrator can't be set up: {error}") from error
    return outcome.output


def make_output(schema: dict[str, Any] | None) -> dict[str, Json]:
    """Returns the output of a step whose result has this schema; text when there is none."""
    if not schema:
        return {"mode": "text"}
    kind = schema.get("type")
    mode = _MODES.get(kind, "json") if isinstance(kind, str) else "json"
    return {"mode": mode, "schema": schema}


def make_instructions(own: str, workflows: Mapping[str, Any]) -> str:
    """Returns the instructions: what there is to start, then what the author says."""
    lines = ["You reach your goal by running workflows. There are:"]
    for name, entry in sorted(workflows.items()):
        lines.append(f"- {name}: {entry.get('description', '')}")
        if entry.get("input") is not None:
            lines.append(f"  input schema: {json.dumps(entry['input'], sort_keys=True)}")
    if not workflows:
        lines.append("- none")
    lines.append("A run that failed comes back with its error: decide what to do about it.")
    return "\n".join([*lines, own] if own else lines)
