"""The client of a data directory: start runs and loops, wait for them, look at them, end them.

A client never opens the event log.
"""

import logging
from collections.abc import Iterator
from typing import Any

from planaria.protocol.codec import Json
from planaria.protocol.errors import RunFailedError, SupervisorUnavailableError, WaitTimeoutError

from .decisions import DecisionRequests
from .declarations import Budget
from .history import HistoryRequests
from .loops import LoopRequests
from .requests import (
    OnInterrupted,
    describe_budget,
    describe_on_interrupted,
    make_deadline,
    make_run_id,
)
from .results import RunResult, read_outcome
from .run_logs import has_printed

OPEN_STATUSES = ("admitted", "running")  # others wait for nothing, or for a person
LOOK_SECONDS = 10.0
_CAUSES_LOGGED = frozenset({"step_failed", "process_crashed", "step_timeout"})

logger = logging.getLogger("planaria")


class Client(DecisionRequests, HistoryRequests, LoopRequests):
    """Requests to the supervisor of one data directory.

    `start_if_missing` starts a supervisor that ends with its last client. Use it as a context
    manager, or call `close`. A client is for one thread; several may have one each.
    """

    silent_pid = None  # see observation.Observer: this one answers

    # -- runs ------------------------------------------------------------------------------

    def start(
        self,
        workflow: Any,
        input: Any = None,
        *,
        run_id: str | None = None,
        timeout: float | None = None,
        target: str | None = None,
        labels: dict[str, str] | None = None,
        budget: Budget | None = None,
        on_interrupted: OnInterrupted = "hold",
    ) -> str:
        """Admits a run, or joins the one that has this id, and returns its id.

        A run that is joined goes on with the code that was stored at its admission; if the source
        has changed since, the log `planaria` has a warning.

        `workflow` is a Workflow or an Orchestrator. `timeout` (seconds) is the run's deadline and
        `budget` what its model calls may take, both recorded at admission; so is `on_interrupted`,
        which says what an effect of unknown outcome does to the run: "hold" it until somebody
        decides, "fail" it, or fail it after so many seconds. `target` says where the
        workflow is defined (`path.py:name`, `module:name`); by default it is found.

        Raises:
            RunInputMismatchError: the id is taken by a run with another input.
            CapabilityDriftError: … by a run of another definition.
            InputSchemaError, WorkflowInvalidError: refused; nothing was recorded.
            UsageError: a model's package or key is missing; names it.
        """
        from .loading_guard import raise_if_loading

        raise_if_loading()
        value = workflow.dump_input(input)
        made = self._describe_definition(workflow, target)
        return self.start_document(
            workflow_id=workflow.id,
            definition_hash=made["definitionHash"],
            lock=made["lock"],
            source=made["source"],
            input=value,
            run_id=run_id,
            timeout=timeout,
            labels=labels,
            budget=budget,
            on_interrupted=on_interrupted,
        )

    def start_document(
        self,
        *,
        workflow_id: str,
        definition_hash: str,
        lock: dict[str, Any],
        source: dict[str, Any],
        input: Json,
        run_id: str | None = None,
        timeout: float | None = None,
        labels: dict[str, str] | None = None,
        budget: Budget | None = None,
        on_interrupted: OnInterrupted = "hold",
    ) -> str:
        """Admits a run of a compiled definition; see `start`."""
        arguments: dict[str, Any] = {
            "runId": make_run_id() if run_id is None else run_id,
            "workflowId": workflow_id,
            "definitionHash": definition_hash,
            "lock": lock,
            "source": source,
            "deadlineMs": make_deadline(timeout),
            "labels": labels,
            **self._store("input", input),
            **describe_budget(budget),
            **describe_on_interrupted(on_interrupted),
        }
        answer = self.ask("start_run", **arguments)
        is_open = answer["attached"] and not answer["isEnded"]
        if is_open and answer["modulesRef"] != source.get("modulesRef"):
            logger.warning(
                "run %r goes on with the code that it was admitted with; its source has changed "
                "since. For the new code take a new run id, or 'planaria fork %s --source current'",
                answer["runId"],
                answer["runId"],
            )
        return str(answer["runId"])

    def wait(
        self,
        run_id: str,
        *,
        timeout: float | None = None,
        workflow: Any = None,
        stop_fd: int | None = None,
        until_blocked: bool = False,
    ) -> RunResult:
        """Waits until the run has ended and returns its result; `workflow` gives its type back.

        With `until_blocked` it also ends when only others can move the run on: an approval, a
        signal, the end of a pause. `stop_fd` is a descriptor that ends the waiting, with
        WaitAbandonedError, once it is readable.

        Raises:
            RunFailedError: it failed or was cancelled.
            InterruptedEffectError: it can't go on before a person has decided.
            RunBlockedError: it waits for others; only with `until_blocked`.
            WaitTimeoutError: `timeout` seconds have passed; the run goes on.
        """
        asked = {"runId": run_id, "untilBlocked": until_blocked}
        try:
            outcome = self._wait("wait_run", run_id, timeout, stop_fd, **asked)
        except WaitTimeoutError:
            outcome = self._look_once(run_id)
            if outcome["status"] in OPEN_STATUSES:
                raise
        return self.read_outcome(outcome, workflow)

    def _look_once(self, run_id: str) -> dict[str, Any]:
        """Returns how a run stands when its waiter's time is over: of one that has ended the
        answer may just not have come within that time, which may have been no time at all.
        """
        try:
            shown: dict[str, Any] = self.ask("get_run", timeout=LOOK_SECONDS, runId=run_id)
            return shown
        except SupervisorUnavailableError:
            return {"status": "running"}  # as far as can be known

    def result(self, run_id: str, *, workflow: Any = None) -> RunResult:
        """Returns the result of a run that has ended; raises as `wait` if it failed.

        Raises:
            WaitTimeoutError: it is still open.
        """
        shown = self.status(run_id)
        if shown["status"] in OPEN_STATUSES:
            raise WaitTimeoutError(run_id=run_id, seconds=0)
        return self.read_outcome(shown, workflow)

    def read_outcome(self, outcome: dict[str, Any], workflow: Any = None) -> RunResult:
        """Returns the result that an outcome (of `status`, or of `wait_run`) tells, or raises it.

        Raises:
            RunFailedError, InterruptedEffectError: as `wait`.
        """
        try:
            return read_outcome(outcome, self._load, workflow)
        except RunFailedError as error:
            hint = self._find_printed(error)
            if hint is None:
                raise
            failure = error.with_hint(hint)
        raise failure

    def _find_printed(self, error: RunFailedError) -> str | None:
        """Returns where to read what the processes of a failed run have printed, if it helps."""
        if error.cause_code not in _CAUSES_LOGGED:
            return None
        if has_printed(self.directory / "runs" / error.run_id / "logs"):
            return f"'planaria logs {error.run_id}' shows what its processes have printed"
        return "It has printed nothing" if error.cause_code == "process_crashed" else None

    def cancel(self, run_id: str, *, reason: str | None = None) -> dict[str, Any]:
        """Asks to cancel a run; returns {runId, status, alreadyEnded} as it was then."""
        answer: dict[str, Any] = self.ask("cancel_run", runId=run_id, reason=reason)
        return answer

    # -- looking ---------------------------------------------------------------------------

    def status(self, run_id: str) -> dict[str, Any]:
        """Returns a run: status, steps as a tree, sessions, what it waits for."""
        shown: dict[str, Any] = self.ask("get_run", runId=run_id)
        return shown

    def runs(self, *, limit: int = 50, status: str | None = None) -> list[dict[str, Any]]:
        """Returns the newest runs first: {runId, status, workflowId, admittedAt, endedAt}."""
        listed: list[dict[str, Any]] = self.ask("list_runs", limit=limit, status=status)
        return listed

    def count_runs(self) -> dict[str, int]:
        """Returns how many runs there are of each status."""
        counts: dict[str, int] = self.ask("count_runs")
        return counts

    def events(
        self, run_id: str, *, after: int = 0, follow: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yields a run's events in their order; with `follow`, until the run has ended."""
        while True:
            page = self.ask("read_events", runId=run_id, after=after, follow=follow)
            yield from page["events"]
            if page["events"]:
                after = page["events"][-1]["sequence"]
            elif not follow or page["isEnded"]:
                return

    def processes(self) -> list[dict[str, Any]]:
        """Returns the living child processes: pid, run, session, step, incarnation."""
        listed: list[dict[str, Any]] = self.ask("list_processes")
        return listed

    def ping(self) -> dict[str, Any]:
        """Returns the supervisor's own facts: pid, epoch, version, open runs."""
        facts: dict[str, Any] = self.ask("ping")
        return facts

    def stop_supervisor(self) -> None:
        """Asks the supervisor to end: what runs is put away and goes on at its next start."""
        self.ask("stop")
