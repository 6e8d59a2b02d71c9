"""Where an outer loop is: folded from the events of its cycles' runs, and said in its manifest."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.events import Event
from planaria.protocol.payloads import read_field, write_field
from planaria.protocol.usage import Usage, add_usage, copy_usage, sum_models

from .kernel_messages import OPTIONS
from .run_state import Error, Library, RunState, Value

IDLE = "idle"  # loaded, and not driven
RUNNING = "running"
SUPERVISING = "supervising"
DONE = "done"
EXHAUSTED = "exhausted"
STOPPED = "stopped"
ENDED = frozenset({DONE, EXHAUSTED, STOPPED})
PASSED_ON = frozenset({"cancelled", "timeout", "capability_drift"})  # causes that stop the loop


@dataclass(slots=True)
class LoopState:
    """One outer loop; `template` is the admission that its cycles' runs share."""

    id: str
    goal: dict[str, Any]
    cycles_max: int
    input_hash: str | None
    cycles: list[dict[str, Any]] = field(default_factory=list)
    pending_run_id: str | None = None
    result: Value = None
    has_result: bool = False
    phase: str = IDLE
    error: Error | None = None
    template: dict[str, Any] | None = None
    usage: Usage = field(default_factory=dict)  # of its completed cycles

    @property
    def cycle_number(self) -> int:
        """Returns the number of the cycle that is open, or would be next."""
        return len(self.cycles) + 1

    def manifest(self) -> dict[str, Any]:
        """Returns the content of its file."""
        made: dict[str, Any] = {
            "outerLoopId": self.id,
            "goal": self.goal,
            "maxCycles": self.cycles_max,
            "cycles": self.cycles,
        }
        if self.input_hash is not None:
            made["inputHash"] = self.input_hash
        if self.pending_run_id is not None:
            made["pendingCycleRunId"] = self.pending_run_id
        if self.has_result:
            made["result"] = write_field("output", self.result)
        return made


def load_loop(manifest: dict[str, Any], library: Library) -> LoopState:
    """Returns a loop as its manifest and its runs' events have it; the events count."""
    loop = LoopState(
        manifest["outerLoopId"],
        manifest["goal"],
        manifest["maxCycles"],
        manifest.get("inputHash"),
        cycles=list(manifest["cycles"]),
        pending_run_id=manifest.get("pendingCycleRunId"),
    )
    if "result" in manifest:
        loop.result, loop.has_result = read_field(manifest["result"], "output"), True
    for run_id in [*(cycle["runId"] for cycle in loop.cycles), loop.pending_run_id]:
        run = library.run(run_id) if run_id is not None else None
        if run is None:
            continue
        loop.template = make_template(run)
        if run_id != loop.pending_run_id:
            add_usage(loop.usage, run.usage)
        if loop.input_hash is None:
            loop.input_hash = run.admission.get("inputHash")
        if run_id == loop.pending_run_id and run.cycle_completed is not None:
            complete_cycle(loop, run)
    if loop.has_result:
        loop.phase = DONE
    elif loop.pending_run_id is None and len(loop.cycles) >= loop.cycles_max:
        loop.phase = EXHAUSTED
    return loop


def make_template(run: RunState) -> dict[str, Any]:
    """Returns what the runs of a loop's cycles are admitted with, from the run of one."""
    admission = run.admission
    names = (*OPTIONS, *"workflowId workflowDefinitionHash inputHash source supervise".split())
    template = {name: admission[name] for name in names if name in admission}
    template["input"] = write_field("input", run.input)
    if "definitionRef" in admission:
        template["lockRef"], template["versionId"] = admission["definitionRef"], None
    else:
        assert run.plan is not None
        template["lockRef"], template["versionId"] = run.lock_ref, run.plan.version_id
    return template


def fold_loop_event(loops: dict[str, LoopState], run: RunState, event: Event) -> None:
    """Moves a loop on with an event of one of its cycles' runs."""
    loop = loops.get(run.admission.get("outerLoopId", ""))
    if loop is None:
        return
    match event.type:
        case "RunAdmitted":
            loop.pending_run_id = run.run_id
            loop.phase, loop.error = RUNNING, None
        case "WorkflowVersionRegistered" if "definitionRef" not in run.admission:
            loop.template = make_template(run)
        case "OuterLoopCycleCompleted":
            complete_cycle(loop, run)
        case _:
            pass


def complete_cycle(loop: LoopState, run: RunState) -> None:
    """Notes the cycle whose run has its `OuterLoopCycleCompleted`."""
    completed = run.cycle_completed
    assert completed is not None and run.plan is not None
    entry: dict[str, Any] = {
        "cycleNumber": loop.cycle_number,
        "runId": run.run_id,
        "workflowVersionId": run.plan.version_id,
        "status": run.status,
        **write_field("output", run.output if run.status == "completed" else None),
    }
    note = completed["supervise"].get("promptNote")
    if note is not None:
        entry["summary"] = note
    loop.cycles.append(entry)
    add_usage(loop.usage, run.usage)
    loop.pending_run_id = None
    if completed["supervise"]["kind"] == "done":
        loop.result, loop.has_result = read_field(completed, "output"), True
        loop.phase = DONE
    else:
        loop.phase = EXHAUSTED if len(loop.cycles) >= loop.cycles_max else IDLE


def load_cycles(loop: LoopState, library: Library) -> list[dict[str, Any]]:
    """Returns the loop's cycles with their outputs loaded."""
    cycles = []
    for cycle in loop.cycles:
        entry = {name: value for name, value in cycle.items() if name != "outputRef"}
        entry["output"] = library.value(read_field(cycle, "output"))
        cycles.append(entry)
    return cycles


def describe_loop(
    loop: LoopState, cost: Callable[[Usage], float | None] | None = None
) -> dict[str, Any]:
    """Returns how a loop stands, as clients see it; its usage is that of its completed cycles."""
    shown: dict[str, Any] = {
        "outerLoopId": loop.id,
        "status": loop.phase,
        "maxCycles": loop.cycles_max,
        "cycles": loop.cycles,
        "pendingCycleRunId": loop.pending_run_id,
    }
    shown["usage"] = sum_models(loop.usage)
    shown["usageByModel"] = copy_usage(loop.usage)
    if cost is not None and loop.usage:
        shown["costUsd"] = cost(loop.usage)
    if loop.phase == DONE:
        shown.update(write_field("output", loop.result))
    if loop.error is not None:
        shown["error"] = loop.error
    return shown
