"""How many steps per second the kernel does alone: decide, fold, hash and append, no processes.

A fake link in the same process answers every delivery at once, as a child with a quick `read`
tool would. One run of a chain of tool.call steps; one commit per step.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from planaria.protocol.blobs import blob_ref
from planaria.protocol.codec import canonical_bytes, hash_jcs, hash_value
from planaria.protocol.events import Event
from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.protocol.messages import Deliver
from planaria.protocol.payloads import load_value
from planaria.supervisor.event_log import EventLog
from planaria.supervisor.kernel import Kernel
from planaria.supervisor.kernel_messages import (
    AdmitRun,
    Launch,
    ProcessReady,
    Send,
    SessionReported,
)
from planaria.supervisor.main import tune_collector
from planaria.supervisor.plan import Plan, make_plan
from planaria.supervisor.run_state import Now
from planaria.supervisor.system_state import SystemState

REPEATS = 5


class _Library:
    def __init__(self, lock: dict[str, Any]) -> None:
        self.lock = lock
        self._plan: Plan | None = None

    def plan(self, version_id: str, lock_ref: dict[str, Any]) -> Plan:
        self._plan = self._plan or make_plan(version_id, self.lock)
        return self._plan

    def value(self, value: Any) -> Any:
        return load_value(value, lambda ref: b"")


def make_lock(steps: int) -> dict[str, Any]:
    chain = [
        {
            "id": f"s{i}",
            "uses": "tool.call",
            "with": {"tool": "echo", "args": {"n": i}},
            **({"needs": [f"s{i - 1}"]} if i else {}),
        }
        for i in range(steps)
    ]
    document = {
        "apiVersion": "lwir/v1",
        "kind": "Workflow",
        "metadata": {"name": "bench"},
        "permissions": {"tools": ["echo"]},
        "steps": chain,
    }
    return {"lwir": document, "tools": {"echo": {"effect": "read"}}, "models": {}}


def measure(steps: int, folder: Path) -> tuple[float, float]:
    """Returns wall and CPU seconds per step, from the first step's delivery on."""
    lock = make_lock(steps)
    (folder / "events").mkdir()
    log = EventLog.open(folder / "events")
    started = {"supervisorId": "bench", "pid": 1, "epoch": 1, "version": "bench"}
    log.append([Event(SYSTEM_RUN_ID, 1, "SupervisorStarted", 0, 0, 1, None, None, started)])
    kernel = Kernel(SystemState(epoch=1, boot_id="b", spares=0), _Library(lock))
    pending: list[Any] = [_make_admission(lock)]
    begin = begin_cpu = 0.0
    while pending:
        now = Now(time.time_ns() // 1000, time.monotonic_ns() // 1000)
        turns = [kernel.handle(m, now) for m in pending]
        if not begin and isinstance(pending[0], SessionReported):
            begin, begin_cpu = time.perf_counter(), time.process_time()
        pending = []
        events = [e for turn in turns for e in turn.events]
        if events:
            log.append(events)
        for action in [action for turn in turns for action in turn.actions]:
            if isinstance(action, Launch):
                pending.append(ProcessReady(action.process_id, 1, 1))
            elif isinstance(action, Send) and isinstance(action.message, Deliver):
                pending.append(_answer(action.process_id, action.message.session))
        log.checkpoint_if_due(idle=False)
    spent, spent_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    assert kernel.system.runs["run_1"].status == "completed"
    log.close()
    return spent / steps, spent_cpu / steps


def _make_admission(lock: dict[str, Any]) -> AdmitRun:
    return AdmitRun(
        client=None,
        run_id="run_1",
        workflow_id="bench",
        definition_hash="sha256:0",
        version_id="wv_" + hash_jcs(lock)[7:39],
        lock=lock,
        lock_ref=blob_ref(canonical_bytes(lock)),
        input={"input": 1},
        input_hash=hash_value(1),
        source={},
    )


def _answer(process_id: str, session: dict[str, Any]) -> SessionReported:
    started = {
        "callId": "call_" + session["sessionId"],
        "position": "s0",
        "caller": "step",
        "toolName": "echo",
        "args": session["step"]["with"]["args"],
        "effect": "read",
        "idempotencyKey": "idem_x",
    }
    return SessionReported(
        process_id,
        session["sessionId"],
        session["incarnation"],
        0,
        [
            ["harness.tool_call.started", started],
            ["harness.tool_call.succeeded", {"callId": started["callId"], "result": {"n": 1}}],
            ["harness.execute_step.succeeded", {"output": {"n": 1}}],
        ],
    )


def main() -> None:
    """Prints the median of some runs; with a second argument, where the logs are put."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    parent = sys.argv[2] if len(sys.argv) > 2 else None
    spent = []
    tune_collector()  # as in a supervisor
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            spent.append(measure(steps, Path(folder)))
    wall, cpu = (statistics.median(times) for times in zip(*spent, strict=True))
    print(
        f"kernel alone: {1 / wall:,.0f} steps/s, {cpu * 1e3:.3f} ms of CPU per step "
        f"(median of {REPEATS} runs of {steps} steps)"
    )


if __name__ == "__main__":
    main()
