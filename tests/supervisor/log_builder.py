"""A builder of logs for the tests of the checker: event by event, without writer or fold."""

from hashlib import sha256
from typing import Any

import msgpack

from planaria.protocol.blobs import blob_ref
from planaria.protocol.events import TASKS, Event, encode_event
from planaria.protocol.ids import SYSTEM_RUN_ID, call_id, session_id
from planaria.protocol.manifests import hash_manifest
from planaria.supervisor.checker import Row, Violation, check_log

DATABASE_ID = "0f" * 16
DOCUMENT = {
    "steps": [
        {"id": "draft", "uses": "tool.call", "maxVisits": 2},
        {
            "id": "route",
            "uses": "decision",
            "needs": ["draft"],
            "with": {"cases": [{"when": "x", "to": "draft"}, {"when": "y", "to": "send"}],
                     "default": "end"},
        },
        {"id": "send", "uses": "tool.call"},
        {
            "id": "each",
            "uses": "parallel",
            "with": {},
            "steps": [{"id": "work", "uses": "tool.call"}],
        },
    ]
}  # fmt: skip
LOCK = msgpack.packb({"lwir": DOCUMENT})
DEFINITION_HASH = "sha256:0"
ERROR = {"name": "E", "message": "m", "causeCode": "step_failed", "retriable": True}


def make_manifest(role: str, path: str, version: str) -> dict[str, Any]:
    """Returns a manifest with the fields of a role, written down here once more."""
    shared = {"harnessId": f"planaria.{role}/1", "skillsHash": "sha256:s", "memoryStoreIds": []}
    agent = {**shared, "systemPromptHash": "sha256:p", "globalToolsHash": "sha256:t"}
    worker = {
        **shared,
        "workflowDefinitionHash": DEFINITION_HASH,
        "workflowVersionId": version,
        "stepPath": path,
        "stepConfigHash": "sha256:c",
        "allowedToolsHash": "sha256:t",
    }
    match role:
        case "planner":
            return {
                **agent, "plannerModelSlotId": "m", "workflowDefinitionHash": DEFINITION_HASH
            }  # fmt: skip
        case "orchestrator":
            more = {"availableWorkflows": [], "maxConcurrentSubRuns": 10}
            return {**agent, "orchestratorModelSlotId": "m", **more}
        case "fixer":
            more = {"fixerModelSlotId": "m", "fixerSystemHash": "sha256:f", "fixerMaxAttempts": 2}
            return {**worker, **more}
    return worker


class LogBuilder:
    """Writes a log event by event; what a method doesn't set comes from the defaults."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.blobs: dict[str, bytes] = {}
        self.epoch = 0
        self.mono = 0
        self.at = 1_000_000
        self.chains: dict[str, int] = {}
        self.manifest_hashes: dict[str, str] = {}  # session -> hash

    def add(
        self,
        kind: str,
        payload: dict[str, Any] | None = None,
        session: str | None = None,
        by: int | None = None,
        run: str = "run_a",
    ) -> Event:
        self.mono += 10
        self.at += 10
        sequence = self.chains[run] = self.chains.get(run, 0) + 1
        payload = payload or {}
        event = Event(
            run, sequence, kind, self.at, self.mono, self.epoch, session, by, payload
        )  # fmt: skip
        self.events.append(event)
        return event

    def blob(self, data: bytes) -> dict[str, Any]:
        ref = blob_ref(data)
        self.blobs[ref["ref"]] = data
        return ref

    def up(self) -> None:
        self.epoch += 1
        payload = {"supervisorId": "s", "pid": 1, "epoch": self.epoch, "version": "0"}
        self.add("SupervisorStarted", payload, run=SYSTEM_RUN_ID)

    def down(self) -> None:
        payload = {"epoch": self.epoch, "reason": "asked"}
        self.add("SupervisorStopped", payload, run=SYSTEM_RUN_ID)

    def admit(self, run: str = "run_a") -> None:
        lock = self.blob(LOCK)
        admission = {
            "workflowId": "w",
            "workflowDefinitionHash": DEFINITION_HASH,
            "trigger": "api",
            "input": 1,
            "inputHash": "sha256:1",
            "source": {"kind": "file"},
        }
        event = self.add("RunAdmitted", admission, run=run)
        first = sha256(bytes.fromhex(DATABASE_ID) + encode_event(event)).hexdigest()
        recorded = {"admittedRunId": run, "admissionHash": f"sha256:{first}"}
        self.add("RunRecorded", recorded, run=SYSTEM_RUN_ID)
        version = {
            "workflowVersionId": "wv_1",
            "lwirHash": "sha256:2",
            "lockRef": lock,
            "lockHash": lock["sha256"],
        }
        self.add("WorkflowVersionRegistered", version, run=run)
        self.add("RunStarted", {"workflowVersionId": "wv_1", "inputHash": "sha256:1"}, run=run)

    def attempt(self, path: str, step: str, visit: int = 0, attempt: int = 1, **more: Any) -> str:
        """Starts an attempt with its session, and returns the session's id."""
        session = session_id("run_a", path, attempt)
        payload = {"stepPath": path, "stepId": step, "visitIndex": visit, "attempt": attempt}
        started = {**payload, "uses": "tool.call", "sessionId": session, **more}
        self.add("StepAttemptStarted", started)
        self.open_session(session, path, attempt)
        return session

    def open_session(
        self, session: str, path: str, attempt: int = 1, role: str = "worker", run: str = "run_a",
        version: str = "wv_1", **fields: Any,
    ) -> None:  # fmt: skip
        manifest = {**make_manifest(role, path, version), **fields}
        opened = {
            "role": role,
            "task": TASKS[role],
            "stepPath": path,
            "attempt": attempt,
            "manifest": manifest,
            "manifestHash": hash_manifest(manifest),
        }
        self.manifest_hashes[session] = opened["manifestHash"]
        self.add("harness.session.started", opened, session, run=run)

    def process(self, session: str, incarnation: int = 1, pid: int | None = None) -> None:
        payload = {
            "sessionId": session,
            "incarnation": incarnation,
            "pid": 100 + len(self.events) if pid is None else pid,
            "startTime": 7,
            "bootId": "boot",
        }
        self.add("ProcessStarted", payload, session)

    def exit(self, session: str, incarnation: int = 1, **more: Any) -> None:
        facts = {"reason": "crashed", "signal": 9, **more}
        payload = {"sessionId": session, "incarnation": incarnation, **facts}
        self.add("ProcessExited", payload, session)

    def resume(self, session: str, incarnation: int = 2, **more: Any) -> None:
        given = [encode_event(e) for e in self.events if e.session_id == session]
        payload = {
            "incarnation": incarnation,
            "manifestHash": self.manifest_hashes[session],
            "replayedEvents": len(given),
            "digest": "sha256:" + sha256(b"".join(given)).hexdigest(),
            **more,
        }
        self.add("harness.session.resumed", payload, session, incarnation)

    def tool(self, session: str, position: str = "s0", by: int = 1, **more: Any) -> str:
        name = call_id(session, position)
        payload = {
            "callId": name,
            "position": position,
            "caller": "step",
            "toolName": "mail",
            "args": {},
            "effect": "once",
            "idempotencyKey": f"idem_{position}",
            **more,
        }
        self.add("harness.tool_call.started", payload, session, by)
        return name

    def tool_end(self, session: str, call: str, by: int = 1, result: Any = 5) -> None:
        payload = {"callId": call, "result": result}
        self.add("harness.tool_call.succeeded", payload, session, by)

    def unknown(self, session: str, call: str) -> None:
        payload = {"callId": call, "since": 1, "evidence": "lost"}
        self.add("harness.tool_call.unknown", payload, session)

    def model(self, session: str, position: str = "m1.0", by: int = 1, **more: Any) -> str:
        name = call_id(session, position)
        payload = {
            "callId": name,
            "position": position,
            "turn": 1,
            "requestHash": "sha256:r",
            "messages": [],
            "settings": {},
            **more,
        }
        self.add("harness.model.called", payload, session, by)
        return name

    def model_end(self, session: str, call: str, by: int | None = 1, failed: bool = False) -> None:
        if failed:
            payload: dict[str, Any] = {"callId": call, "turn": 1, "error": ERROR}
            self.add("harness.model.failed", payload, session, by)
        else:
            payload = {"callId": call, "turn": 1, "response": {}, "usage": {}, "model": "m"}
            self.add("harness.model.responded", payload, session, by)

    def end_session(self, session: str, by: int | None = 1, failed: bool = False) -> None:
        if by is not None:
            kind, payload = ("failed", {"error": ERROR}) if failed else ("succeeded", {"output": 5})
            self.add(f"harness.execute_step.{kind}", payload, session, by)
        if failed:
            self.add("harness.session.failed", {"error": ERROR}, session)
        else:
            self.add("harness.session.completed", {"usage": {}}, session)

    def end_step(
        self, path: str, step: str, visit: int = 0, attempt: int = 1, failed: bool = False,
        **more: Any,
    ) -> None:  # fmt: skip
        payload = {"stepPath": path, "stepId": step, "visitIndex": visit, "attempt": attempt}
        if failed:
            self.add("StepFailed", {**payload, "error": ERROR, **more})
        else:
            self.add("StepCompleted", {**payload, **({} if "chosen" in more else {"output": 5}),
                                       **more})  # fmt: skip

    def step(self, path: str, step: str, visit: int = 0, **more: Any) -> None:
        session = self.attempt(path, step, visit, **more)
        self.process(session)
        self.tool_end(session, self.tool(session))
        self.end_session(session)
        self.end_step(path, step, visit, **more)

    def decide(self, visit: int, chosen: str) -> None:
        path = f"route.visit[{visit}]"
        payload = {"stepPath": path, "stepId": "route", "visitIndex": visit, "attempt": 1}
        self.add("StepAttemptStarted", {**payload, "uses": "decision"})
        self.add("StepCompleted", {**payload, "chosen": chosen})

    def group(self, keys: list[str], attempt: int = 1) -> None:
        payload = {"stepPath": "each", "stepId": "each", "visitIndex": 0, "attempt": attempt}
        self.add("StepAttemptStarted", {**payload, "uses": "parallel"})
        started = {"stepPath": "each", "attempt": attempt, "itemKeys": keys}
        self.add("ParallelGroupStarted", started)

    def branch(self, index: int, key: str, path: str | None = None) -> dict[str, Any]:
        payload = {
            "stepPath": "each",
            "branchPath": path or f"each[{key}]",
            "itemKey": key,
            "branchIndex": index,
        }
        self.add("ParallelBranchScheduled", payload)
        return payload

    def end_run(self, kind: str = "RunCompleted") -> None:
        payloads: dict[str, dict[str, Any]] = {
            "RunCompleted": {"output": 5, "terminalStepPath": None},
            "RunFailed": {"error": ERROR, "failedStepPath": "send"},
            "RunCancelled": {"requestId": "r"},
        }
        self.add(kind, payloads[kind])

    def rows(self) -> list[Row]:
        tails: dict[str, bytes] = {}
        rows = []
        for position, event in enumerate(self.events, 1):
            body = encode_event(event)
            before = tails.get(event.run_id, bytes.fromhex(DATABASE_ID))
            digest = tails[event.run_id] = sha256(before + body).digest()
            rows.append(
                Row(position, event.run_id, event.sequence, event.session_id, event.type, body,
                    digest)
            )  # fmt: skip
        return rows

    def check(self, rows: list[Row] | None = None, **more: Any) -> list[Violation]:
        return check_log(
            self.rows() if rows is None else rows,
            database_id=DATABASE_ID,
            read_blob=self.blobs.get,
            **more,
        )


def opened() -> LogBuilder:
    log = LogBuilder()
    log.up()
    log.admit()
    return log


def with_session() -> tuple[LogBuilder, str]:
    log = opened()
    log.decide(0, "send")
    session = log.attempt("send", "send")
    log.process(session)
    return log, session


def assert_only(invariant: str, log: LogBuilder, **more: Any) -> None:
    found = log.check(**more)
    assert [invariant] == [violation.invariant for violation in found], "\n".join(map(str, found))


def make_clean_log() -> LogBuilder:
    """Two visits of a loop, a choice, a group with a retry, a crash, a lost call, two epochs."""
    log = opened()
    log.step("draft.visit[0]", "draft", 0)
    log.decide(0, "draft")
    log.step("draft.visit[1]", "draft", 1)
    log.decide(1, "send")
    session = log.attempt("send", "send")
    log.process(session)
    call = log.model(session)
    log.model_end(session, call, failed=True)
    log.exit(session)
    log.process(session, 2)
    log.resume(session)
    log.model(session, by=2)
    log.down()
    log.up()
    log.exit(session, 2, reason="supervisor_lost", signal=None)
    log.process(session, 3)
    log.resume(session, 3)
    log.model_end(session, call, by=3)
    tool = log.tool(session, "t1.0", by=3, effect="idempotent")
    log.tool_end(session, tool, by=3)
    log.end_session(session, by=3)
    log.end_step("send", "send")
    log.group(["k", "l"])
    one, two = log.branch(0, "k"), log.branch(1, "l")
    log.step("each[k].work", "work", branchPath="each[k]")
    log.add("ParallelBranchCompleted", {**one, "output": 5})
    log.add("StepAttemptStarted", {
        "stepPath": "each[l].work", "stepId": "work", "visitIndex": 0, "attempt": 1,
        "uses": "tool.call", "sessionId": session_id("run_a", "each[l].work", 1),
        "branchPath": "each[l]",
    })  # fmt: skip
    session = session_id("run_a", "each[l].work", 1)
    log.open_session(session, "each[l].work")
    log.end_session(session, by=None, failed=True)
    log.end_step("each[l].work", "work", failed=True, branchPath="each[l]")
    log.add("ParallelBranchFailed", {**two, "error": ERROR})
    log.add("ParallelGroupFailed", {"stepPath": "each", "attempt": 1, "error": ERROR})
    log.end_step("each", "each", failed=True)
    due = {"stepPath": "each", "nextAttempt": 2, "dueAt": log.at + 1}
    log.add("StepRetryScheduled", due)
    log.group(["k", "l"], 2)
    again = log.branch(1, "l", "each@attempt_2[l]")
    path = "each@attempt_2[l].work"
    log.step(path, "work", branchPath="each@attempt_2[l]")
    log.add("ParallelBranchCompleted", {**again, "output": 5})
    log.add("ParallelGroupCompleted", {"stepPath": "each", "attempt": 2})
    log.end_step("each", "each", attempt=2)
    log.end_run()
    return log
