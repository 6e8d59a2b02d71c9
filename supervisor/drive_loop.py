"""Outer loops: cycles of a workflow, with a decision of the user's between them.

    manifest with the cycle's run id ─▶ plan and run ─▶ supervise ─▶ OuterLoopCycleCompleted
    ─▶ manifest without it ─▶ the next cycle, or the end

Each step is taken by `drive`, which looks where the loop is: a resumed loop and a living one are
driven alike. The phase of a LoopState is changed here, as the fleet changes its processes: what
must survive stands in events.
"""

from typing import Any

from planaria.protocol.errors import CapabilityDriftError, PlanariaError
from planaria.protocol.events import Draft
from planaria.protocol.limits import NOTE_CHARS_MAX
from planaria.protocol.outer_loops import config_error, cycle_run_id, dump_manifest
from planaria.protocol.payloads import read_field, write_field

from .context import wrap_value
from .decision import Decision
from .drafts import admit_run, make_error
from .drift import describe_changes, find_drift
from .kernel_messages import (
    OPTIONS,
    Answer,
    DriveLoop,
    ErrandEnded,
    Feed,
    StartLoop,
    StopLoop,
    TellLoop,
    WriteManifest,
)
from .outer_loop import DONE, EXHAUSTED, IDLE, PASSED_ON, RUNNING, STOPPED, LoopState, load_cycles
from .outputs import check_run_output
from .run_state import Error, Library, RunState, choose_kind
from .system_state import Errand, SystemState


def decide_start_loop(system: SystemState, message: StartLoop, library: Library) -> Decision:
    """Begins a loop, joins one that is driven, or resumes one that has stopped."""
    loop = system.loops.get(message.loop_id)
    answer = {"outerLoopId": message.loop_id, "attached": loop is not None}
    if loop is not None:
        try:
            _check_same(system, loop, message, library)
        except PlanariaError as error:
            return Decision(actions=[Answer(message.admission.client, error=error)])
    if loop is None or (loop.template is None and not loop.cycles):
        # A loop that was cut between its first manifest and its first commit has the file only.
        decision = _begin(message, library)
    else:
        decision = _resume(system, loop, message, library)
    decision.actions.insert(0, Answer(message.admission.client, result=answer))
    return decision


def _check_same(system: SystemState, loop: LoopState, message: StartLoop, library: Library) -> None:
    """Refuses a loop that was begun otherwise: cycles, then goal, then input, then definition."""
    if loop.cycles_max != message.cycles_max:
        text = f"it was begun with max_outer_cycles={loop.cycles_max}, not {message.cycles_max}"
        raise config_error(loop.id, "outer_loop_max_cycles_mismatch", text)
    if loop.goal != message.goal:
        changed = sorted(n for n in message.goal if message.goal[n] != loop.goal.get(n))
        text = f"it was begun with another goal ({', '.join(changed)}): restore the definition"
        raise config_error(loop.id, "outer_loop_goal_mismatch", f"{text}, or use a new loop id")
    if loop.input_hash is not None and loop.input_hash != message.admission.input_hash:
        text = "it was begun with another input: give that, or use a new loop id"
        raise config_error(loop.id, "outer_loop_input_mismatch", text)
    if loop.phase in (DONE, EXHAUSTED):
        return
    run_ids = [*(cycle["runId"] for cycle in loop.cycles), loop.pending_run_id]
    for run_id in reversed([run_id for run_id in run_ids if run_id is not None]):
        run = system.runs.get(run_id) or library.run(run_id)
        if run is None or run.plan is None:
            continue
        changes = find_drift(run, message.admission, library)
        if changes:
            text = describe_changes(changes)
            raise CapabilityDriftError(run_id=run_id, changes=text, fields_changed=changes)
        return


def _begin(message: StartLoop, library: Library) -> Decision:
    admission = message.admission
    loop = LoopState(message.loop_id, message.goal, message.cycles_max, admission.input_hash)
    loop.template = _template_of(message)
    started = {
        "outerLoopId": loop.id,
        "goal": loop.goal,
        "maxCycles": loop.cycles_max,
        "inputHash": loop.input_hash,
        "supervise": message.supervise,
    }
    decision = _start_cycle(loop, library)
    decision.notes.append(("OuterLoopStarted", started))
    decision.loops.append(loop)
    return decision


def _template_of(message: StartLoop) -> dict[str, Any]:
    admission = message.admission
    template: dict[str, Any] = {
        "workflowId": admission.workflow_id,
        "workflowDefinitionHash": admission.definition_hash,
        "inputHash": admission.input_hash,
        "source": admission.source,
        "supervise": message.supervise,
        "input": admission.input,
        "lockRef": admission.lock_ref,
        "versionId": None if "planner" in admission.lock else admission.version_id,
    }
    return {**template, **admission.options}


def _resume(system: SystemState, loop: LoopState, message: StartLoop, library: Library) -> Decision:
    if loop.template is None:
        loop.template = _template_of(message)
    is_legacy = loop.input_hash is None
    if is_legacy:  # a manifest of before there were hashes, and no run recorded one
        loop.input_hash = message.admission.input_hash
    is_still = loop.phase in (STOPPED, IDLE)
    decision = drive(system, loop, library, is_asked=True) if is_still else Decision()
    if is_legacy and not decision.files:
        decision.files.append((loop.id, dump_manifest(loop.manifest())))
    return decision


# -- driving ------------------------------------------------------------------------------------


def drive(
    system: SystemState, loop: LoopState, library: Library, *, is_asked: bool = False
) -> Decision:
    """Returns the next step of a loop, from wherever it is; with `is_asked` a caller resumes it."""
    if loop.phase in (DONE, EXHAUSTED):
        return Decision(actions=[TellLoop(loop.id)])
    run_id = loop.pending_run_id
    if run_id is None:
        return _start_cycle(loop, library) if loop.template is not None else Decision()
    run = system.runs.get(run_id) or library.run(run_id)
    if run is None:
        # The manifest was written, the admission not committed. A first cycle's input came with
        # the call that is lost: only a caller brings it again.
        return _start_cycle(loop, library) if loop.template is not None else Decision()
    if not run.is_ended:
        loop.phase, loop.error = RUNNING, None
        return Decision()
    if run.cycle_completed is not None:
        return Decision()  # folded already
    if run.error is not None and run.error["causeCode"] in PASSED_ON:
        if is_asked:
            return _start_cycle(loop, library)
        return Decision(actions=[StopLoop(loop.id, run.error)])
    return _ask_supervise(system, loop, run)


def _start_cycle(loop: LoopState, library: Library) -> Decision:
    assert loop.template is not None
    opening = 0
    while library.run(run_id := cycle_run_id(loop.id, loop.cycle_number, opening)) is not None:
        opening += 1
    template = loop.template
    names = (*OPTIONS, "supervise")
    details = {name: template[name] for name in names if name in template}
    details.update(outerLoopId=loop.id, cycleNumber=loop.cycle_number)
    details["cycle"] = _describe_cycle(loop, library)
    drafts = admit_run(
        run_id,
        workflow_id=template["workflowId"],
        definition_hash=template["workflowDefinitionHash"],
        version_id=template["versionId"],
        lock_ref=template["lockRef"],
        trigger="outer_loop",
        input=template["input"],
        input_hash=template["inputHash"],
        source=template["source"],
        library=library,
        details=details,
    )
    pending = dump_manifest({**loop.manifest(), "pendingCycleRunId": run_id})
    return Decision(drafts, files=[(loop.id, pending)])


def _describe_cycle(loop: LoopState, library: Library) -> dict[str, Any]:
    """Returns what a cycle's planner and expressions see of it."""
    note = loop.cycles[-1].get("summary") if loop.cycles else None
    return {"number": loop.cycle_number, "prior": load_cycles(loop, library), "note": note}


def _ask_supervise(system: SystemState, loop: LoopState, run: RunState) -> Decision:
    """Sends a child to ask the user's function; the same question after every crash."""
    assert run.plan is not None
    current = {
        "cycleNumber": loop.cycle_number,
        "runId": run.run_id,
        "workflowVersionId": run.plan.version_id,
        "status": run.status,
        **write_field("output", run.output if run.status == "completed" else None),
    }
    cycles = [
        {
            **{n: v for n, v in cycle.items() if n not in ("output", "outputRef")},
            "output": wrap_value(read_field(cycle, "output")),
        }
        for cycle in [*loop.cycles, current]
    ]
    errand = Errand(
        id=f"supervise_{loop.id}_{loop.cycle_number}",
        loop_id=loop.id,
        body={
            "task": "supervise",
            "runId": run.run_id,
            "workflowId": run.admission["workflowId"],
            "source": run.admission.get("supervise") or {},
            "models": run.plan.lock.get("models", {}),
            "context": {"goal": loop.goal, "cycles": cycles},
        },
        kind=choose_kind(run.admission.get("supervise") or {}),
    )
    return Decision(errands=[errand])


def decide_errand(system: SystemState, message: ErrandEnded, library: Library) -> Decision:
    """Takes what `supervise` has said: the first answer that is recorded counts."""
    errand = system.errands.get(message.errand_id)
    if errand is None or errand.process_id != message.process_id:
        return Decision()
    loop = system.loops[errand.loop_id]
    if message.error is not None:
        return Decision(actions=[StopLoop(loop.id, _failed_supervise(loop, message.error))])
    assert loop.pending_run_id is not None
    run = system.runs.get(loop.pending_run_id) or library.run(loop.pending_run_id)
    assert run is not None and run.plan is not None
    said = message.result or {}
    if not _is_answer(said):
        error = {"name": "ProtocolError", "message": "its process gave no answer of supervise"}
        return Decision(actions=[StopLoop(loop.id, _failed_supervise(loop, error))])
    supervise: dict[str, Any] = {"kind": said["kind"]}
    payload: dict[str, Any] = {
        "outerLoopId": loop.id,
        "cycleNumber": loop.cycle_number,
        "supervise": supervise,
    }
    if said["kind"] == "done":
        output = read_field(said, "output")
        problem = check_run_output(run.plan, library.value(output))
        if problem is not None:
            text = f"supervise's final output: {problem}"
            error = make_error("OutputSchemaError", text, "step_schema_error")
            return Decision(actions=[StopLoop(loop.id, error)])
        payload.update(write_field("output", output))
    elif said.get("promptNote") is not None:
        supervise["promptNote"] = said["promptNote"]
    system.runs.setdefault(run.run_id, run)
    draft = Draft(run.run_id, "OuterLoopCycleCompleted", payload)
    return Decision([draft], [WriteManifest(loop.id), Feed(DriveLoop(loop.id))])


def _is_answer(said: dict[str, Any]) -> bool:
    """Says whether a child's answer has the form of one; its sender may be hostile."""
    if said.get("kind") == "done":
        return said.keys() in ({"kind", "output"}, {"kind", "outputRef"})
    note = said.get("promptNote")
    is_note = note is None or (isinstance(note, str) and len(note) <= NOTE_CHARS_MAX)
    return said.get("kind") == "continue" and is_note


def give_up_errand(system: SystemState, errand: Errand) -> Decision:
    """Stops the loop of an errand whose processes die again and again."""
    text = f"its process has ended {errand.deaths + 1} times without an answer"
    error = {"name": "ProcessCrashed", "message": text}
    loop = system.loops[errand.loop_id]
    return Decision(actions=[StopLoop(loop.id, _failed_supervise(loop, error))])


def _failed_supervise(loop: LoopState, error: dict[str, Any]) -> Error:
    text = f"supervise failed after cycle {loop.cycle_number}: {error['name']}: {error['message']}"
    made = make_error(error["name"], text, "runtime_config_error")
    return {**made, "code": "supervise_failed"}
