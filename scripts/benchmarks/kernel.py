"""How many steps per second the kernel does alone: decide, fold, hash and append, no processes.

A fake link in the same process answers every delivery at once, as a child with a quick `read`
tool would. One run of a chain of tool.call steps; one commit per step.
"""

import sys
import tempfile
import time
from pathlib import Path

from planaria.protocol.codec import canonical_bytes, hash_jcs, hash_value, unpack
from planaria.protocol.events import Event
from planaria.protocol.ids import SYSTEM_RUN_ID
from planaria.protocol.messages import Deliver
from planaria.protocol.blobs import blob_ref
from planaria.protocol.payloads import load_value
from planaria.supervisor.event_log import EventLog
from planaria.supervisor.kernel import Kernel
from planaria.supervisor.kernel_messages import AdmitRun, Launch, ProcessReady, Send, SessionReported
from planaria.supervisor.plan import make_plan
from planaria.supervisor.run_state import Now
from planaria.supervisor.system_state import SystemState


class _Library:
    def __init__(self, lock):
        self.lock = lock
        self._plan = None

    def plan(self, version_id, lock_ref):
        self._plan = self._plan or make_plan(version_id, self.lock)
        return self._plan

    def value(self, value):
        return load_value(value, lambda ref: b"")


def make_lock(steps: int) -> dict:
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


def measure(steps: int) -> float:
    lock = make_lock(steps)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "events").mkdir()
        log = EventLog.open(Path(folder) / "events")
        started = {"supervisorId": "bench", "pid": 1, "epoch": 1, "version": "bench"}
        log.append([Event(SYSTEM_RUN_ID, 1, "SupervisorStarted", 0, 0, 1, None, None, started)])
        kernel = Kernel(SystemState(epoch=1, boot_id="b", spares=0), _Library(lock))
        message = AdmitRun(
            None, "run_1", "bench", "sha256:0", "wv_" + hash_jcs(lock)[7:39], lock,
            blob_ref(canonical_bytes(lock)), {"input": 1}, hash_value(1), {},
        )
        pending = [message]
        begin = time.perf_counter()
        while pending:
            now = Now(time.time_ns() // 1000, time.monotonic_ns() // 1000)
            turns = [kernel.handle(m, now) for m in pending]
            pending = []
            events = [e for turn in turns for e in turn.events]
            if events:
                log.append(events)
            for turn in turns:
                for action in turn.actions:
                    if isinstance(action, Launch):
                        pending.append(ProcessReady(action.process_id, 1, 1))
                    elif isinstance(action, Send) and isinstance(action.message, Deliver):
                        pending.append(_answer(action.process_id, action.message.session))
        spent = time.perf_counter() - begin
        assert kernel.system.runs["run_1"].status == "completed"
        log.close()
    return steps / spent


def _answer(process_id: str, session: dict) -> SessionReported:
    started = {
        "callId": "call_" + session["sessionId"], "position": "s0", "caller": "step",
        "toolName": "echo", "args": session["step"]["with"]["args"], "effect": "read",
        "idempotencyKey": "idem_x",
    }
    return SessionReported(process_id, session["sessionId"], session["incarnation"], 0, [
        ["harness.tool_call.started", started],
        ["harness.tool_call.succeeded", {"callId": started["callId"], "result": {"n": 1}}],
        ["harness.execute_step.succeeded", {"output": {"n": 1}}],
    ])


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    rates = sorted(measure(count) for _ in range(5))
    print(f"kernel alone: {rates[2]:,.0f} steps/s (median of 5 runs of {count} steps)")
