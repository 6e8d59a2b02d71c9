"""What a run is doing while one waits for it: a live table on a terminal, else a line a fact."""

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from .display import STYLES, describe_failure, make_console, name_step, shorten

LINES_MAX = 20  # steps shown at once: those that run, and the last that ended
REFRESH_PER_SECOND = 8
OUTCOMES = frozenset(
    {
        "harness.model.responded",
        "harness.model.failed",
        "harness.tool_call.succeeded",
        "harness.tool_call.failed",
    }
)
ENDS = frozenset({"RunCompleted", "RunFailed", "RunCancelled", "RunInterrupted"})
_MARKS = {"completed": "✓", "failed": "✗", "running": "●", "waiting": "◌"}


@dataclass(slots=True)
class StepLine:
    """One visit of a step, as far as its events tell."""

    path: str
    uses: str
    status: str = "running"
    attempt: int = 1
    fix: int = 0  # number of the fixer's attempt
    pid: int | None = None
    incarnation: int = 1
    live: int = 0  # outcomes of calls that were made
    replayed: int = 0  # … of which a successor got these from the log
    text: str = ""


class Progress:
    """Follows a run's events and says what they mean."""

    def __init__(self, run_id: str, *, is_live: bool, is_silent: bool = False) -> None:
        self.run_id = run_id
        self.steps: dict[str, StepLine] = {}
        self.tokens = {"input_tokens": 0, "output_tokens": 0}
        self.requests = 0
        self.sub_runs: dict[str, str] = {}  # id -> status
        self._by_session: dict[str, StepLine] = {}
        self._started = time.monotonic()
        self._is_silent = is_silent
        self._is_over = False
        self._spinning = Spinner("dots")
        self._live: Live | None = None
        if is_live and not is_silent:
            self._live = Live(
                get_renderable=self.render,
                console=make_console(to_stderr=True),
                refresh_per_second=REFRESH_PER_SECOND,
            )

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over = True
        if self._live is not None:
            self._live.stop()  # the last picture stays

    def take(self, event: dict[str, Any]) -> None:
        """Notes an event; without a terminal, prints what is worth a line."""
        line = self._note(event)
        if line is not None and self._live is None and not self._is_silent:
            sys.stderr.write(f"{event['at'][11:19]} {line}\n")
            sys.stderr.flush()

    def _note(self, event: dict[str, Any]) -> str | None:
        kind, payload = event["type"], event["payload"]
        session = self._by_session.get(event.get("sessionId") or "")
        match kind:
            case "RunStarted":
                return f"run {self.run_id} started"
            case "WorkflowVersionRegistered" if ".plan" in self.steps:
                return self._end_planning(payload)
            case "SubRunRequested":
                self.sub_runs[payload["subRunId"]] = "running"
                return f"sub-run {payload['subRunId']} ({payload['workflowId']}) started"
            case "SubRunSettled":
                self.sub_runs[payload["subRunId"]] = payload["status"]
                return f"sub-run {payload['subRunId']} {payload['status']}"
            case "RunReopened":
                return f"run {self.run_id} is tried again, asked for by {payload['by']}"
            case "RunForked":
                shared = f"run {payload['fromRunId']} up to its event {payload['atSequence']}"
                return f"run {self.run_id} shares {shared}"
            case "BudgetExhausted":
                return f"run {self.run_id}: its budget is used up"
            case "StepRepairAttempted":
                count = len(payload["findings"])
                path = name_step(payload["stepPath"])
                return f"step {path}: {count} finding(s), attempt {payload['attempt']} to mend them"
            case "StepAttemptStarted":
                return self._start_step(payload)
            case "ProcessStarted":
                return self._start_process(payload)
            case "ProcessExited":
                return self._end_process(payload)
            case "harness.session.resumed" if session is not None:
                session.replayed = session.live
                return (
                    f"step {session.path}: incarnation {payload['incarnation']} goes on after "
                    f"{session.replayed} recorded calls"
                )
            case "harness.model.responded":
                self.requests += 1
                for name in self.tokens:
                    self.tokens[name] += payload["usage"].get(name, 0)
            case "StepCompleted" | "StepFailed" | "StepSkipped" | "StepRetryScheduled":
                return self._end_step(kind, payload)
            case "RunInterrupted":
                return f"run {self.run_id} is interrupted: {payload['toolName']} may have happened"
            case "ApprovalRequested":
                number, prompt = payload["approvalId"], shorten(payload["prompt"], 200)
                return f"approval {number} is asked for: {prompt}"
            case "ApprovalResolved":
                by = f" by {payload['by']}" if payload.get("by") else ""
                return f"approval {payload['approvalId']}: {payload['decision']}{by}"
            case "WaitStarted":
                what = f"signal {payload['name']!r}" if payload.get("name") else "its time"
                return f"step {name_step(payload['stepPath'])} waits for {what}"
            case "SignalReceived":
                return f"signal {payload['name']!r} came ({payload['signalId']})"
            case "RunPaused" | "RunUnpaused":
                how = "is paused" if kind == "RunPaused" else "goes on"
                return f"run {self.run_id} {how}, asked for by {payload['by']}"
            case "EffectResolved":
                return f"call {payload['callId']}: {payload['resolution']}, says {payload['by']}"
            case "CancellationRequested":
                return f"run {self.run_id}: cancellation was asked for"
            case "RunCompleted" | "RunFailed" | "RunCancelled":
                return f"run {self.run_id} {kind.removeprefix('Run').lower()}"
        if kind in OUTCOMES and session is not None:
            session.live += 1
        return None

    def _start_step(self, payload: dict[str, Any]) -> str | None:
        path = payload["stepPath"]
        line = self.steps[path] = StepLine(
            name_step(path),
            payload["uses"],
            attempt=payload["attempt"],
            fix=payload.get("fixAttempt") or 0,
        )
        session_id = payload.get("sessionId")
        if session_id is not None:
            self._by_session[session_id] = line
            return None  # its process is worth the line
        return f"step {path} ({line.uses}) started"

    def _end_planning(self, payload: dict[str, Any]) -> str:
        self.steps[".plan"].status = "completed"
        return f"planned: version {payload['workflowVersionId']}"

    def _start_process(self, payload: dict[str, Any]) -> str | None:
        line = self._by_session.get(payload["sessionId"])
        if line is None:
            return None
        line.pid, line.incarnation = payload["pid"], payload["incarnation"]
        line.status, line.text = "running", ""
        again = f", incarnation {line.incarnation}" if line.incarnation > 1 else ""
        again = f", fix {line.fix}{again}" if line.fix else again
        return f"step {line.path} ({line.uses}) in process {line.pid}{again}"

    def _end_process(self, payload: dict[str, Any]) -> str | None:
        line = self._by_session.get(payload["sessionId"])
        if line is None:
            return None
        how = f", signal {payload['signal']}" if payload.get("signal") else ""
        line.status, line.text = "waiting", f"its process ended: {payload['reason']}{how}"
        return f"step {line.path}: process {line.pid} ended ({payload['reason']}{how})"

    def _end_step(self, kind: str, payload: dict[str, Any]) -> str:
        path = name_step(payload["stepPath"])
        line = self.steps.setdefault(payload["stepPath"], StepLine(path, ""))
        if kind == "StepCompleted":
            line.status = "completed"
            line.text = f"→ {payload['chosen']}" if payload.get("chosen") else ""
        elif kind == "StepFailed":
            line.status = "failed"
            line.text = shorten(describe_failure(payload.get("error") or {}), 200)
        elif kind == "StepSkipped":
            line.status = "skipped"
        else:
            line.status, line.text = "waiting", f"attempt {payload['nextAttempt']} follows"
        return f"step {path} {line.status}" + (f": {line.text}" if line.text else "")

    def render(self) -> RenderableType:
        """Returns the table as it is now."""
        table = Table.grid(padding=(0, 1))
        chosen = self._choose_lines()
        for line in chosen:
            table.add_row(*self._cells(line))
        done = sum(1 for line in self.steps.values() if line.status == "completed")
        head = Text(
            f"run {self.run_id}: {done} of {len(self.steps)} steps done, "
            f"{time.monotonic() - self._started:.0f} s"
        )
        if self.requests:
            tokens = f"{self.tokens['input_tokens']:,} in, {self.tokens['output_tokens']:,} out"
            head.append(f", {self.requests} model calls, tokens {tokens}")
        if self.sub_runs:
            ended = sum(1 for status in self.sub_runs.values() if status != "running")
            head.append(f", {ended} of {len(self.sub_runs)} sub-runs ended")
        left_out = len(self.steps) - len(chosen)
        parts: list[RenderableType] = [head if self._is_over else self._spinner(head), table]
        if left_out > 0:
            parts.append(Text(f"  … and {left_out} more", style="dim"))
        return Group(*parts)

    def _spinner(self, head: Text) -> Spinner:
        self._spinning.update(text=head)  # the same one: a new one would stand still
        return self._spinning

    def _choose_lines(self) -> list[StepLine]:
        """Returns the steps that are under way, filled up with the last ended, in their order."""
        lines = list(self.steps.values())
        if len(lines) <= LINES_MAX:
            return lines
        under_way = [line for line in lines if line.status in ("running", "waiting")]
        chosen = {line.path for line in under_way[-LINES_MAX:]}
        for line in reversed(lines):
            if len(chosen) >= LINES_MAX:
                break
            chosen.add(line.path)
        return [line for line in lines if line.path in chosen]

    def _cells(self, line: StepLine) -> Iterable[Text]:
        style = STYLES.get(line.status, "dim")
        depth = line.path.count("/")
        yield Text("  " * depth + _MARKS.get(line.status, "·"), style=style)
        yield Text(line.path)
        yield Text(line.uses, style="dim")
        yield Text(f"pid {line.pid}" if line.pid and line.status == "running" else "", style="cyan")
        again = [f"incarnation {line.incarnation}"] if line.incarnation > 1 else []
        if line.attempt > 1:
            again.append(f"attempt {line.attempt}")
        if line.fix:
            again.append(f"fix {line.fix}")
        yield Text(", ".join(again), style="yellow")
        calls = f"{line.live - line.replayed} live" if line.live else ""
        yield Text(calls + (f", {line.replayed} replayed" if line.replayed else ""), style="dim")
        yield Text(line.text, style=style)
