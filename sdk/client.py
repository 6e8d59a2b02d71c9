"""The client of a data directory: start runs, wait for them, look at them, cancel them.

A client never opens the event log. When its supervisor dies under it (SIGKILL, a crash), it starts
another one and asks again: every request may be repeated, and what is on disk counts.
"""

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from planaria.protocol.codec import Json, canonical_bytes, unpack
from planaria.protocol.errors import (
    InterruptedEffectError,
    RunFailedError,
    SupervisorUnavailableError,
    WaitTimeoutError,
)
from planaria.protocol.limits import BLOB_BYTES_MAX, INLINE_BYTES_MAX

from .blobstore import BlobStore
from .connection import Connection
from .discovery import (
    GIVE_UP_SECONDS,
    find_directory,
    find_supervisor,
    reap_supervisors,
    start_supervisor,
)

RECONNECTS_MAX = 20  # in one request: a supervisor that dies so often is not there
DETACH_SECONDS = 1.0  # one that doesn't answer sees from the client's pidfd that it is gone
_PAUSE_SECONDS = 0.1

logger = logging.getLogger("planaria")


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run that ended well. `usage` counts requests and tokens of its recorded model calls."""

    output: Any
    run_id: str
    status: str = "completed"
    usage: dict[str, int] = field(default_factory=dict)


class Client:
    """Requests to the supervisor of one data directory.

    `start_if_missing` starts a supervisor that ends with its last client. Use it as a context
    manager, or call `close`. A client is for one thread; several may have one each.
    """

    def __init__(
        self, data_dir: str | os.PathLike[str] | None = None, *, start_if_missing: bool = True
    ) -> None:
        self.directory: Path = find_directory(data_dir)
        self._start_if_missing = start_if_missing
        self._connection: Connection | None = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

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
    ) -> str:
        """Admits a run, or joins the one that has this id, and returns its id.

        A run that is joined goes on with the code that was stored at its admission; if the source
        has changed since, the log `planaria` has a warning.

        `timeout` (seconds) is the run's deadline, recorded at admission. `target` says where the
        workflow is defined (`path.py:name`, `module:name`); by default it is found.

        Raises:
            RunInputMismatchError: the id is taken by a run with another input.
            CapabilityDriftError: … by a run of another definition.
            InputSchemaError, WorkflowInvalidError: refused; nothing was recorded.
            UsageError: a model's package or key is missing; names it.
        """
        from .definition import prepare_source
        from .loading_guard import raise_if_loading
        from .providers import check_packages

        raise_if_loading()
        value = workflow.dump_input(input)
        check_packages(workflow.models)
        self.ask("ping")  # the directory exists from here on
        source = prepare_source(workflow, target=target, modules_dir=self._modules)
        return self.start_document(
            workflow_id=workflow.id,
            definition_hash=workflow.definition_hash,
            lock=workflow.lock,
            source=source,
            input=value,
            run_id=run_id,
            timeout=timeout,
            labels=labels,
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
    ) -> str:
        """Admits a run of a compiled definition; see `start`."""
        arguments: dict[str, Any] = {
            "runId": make_run_id() if run_id is None else run_id,
            "workflowId": workflow_id,
            "definitionHash": definition_hash,
            "lock": lock,
            "source": source,
            "deadlineMs": None if timeout is None else max(1, int(timeout * 1000)),
            "labels": labels,
        }
        data = canonical_bytes(input)
        if len(data) > INLINE_BYTES_MAX:
            arguments["inputRef"] = self._blobs.write(data)
        else:
            arguments["input"] = input
        answer = self.ask("start_run", **arguments)
        is_open = answer["attached"] and not answer["isEnded"]
        if is_open and answer["modulesRef"] != source.get("modulesRef"):
            logger.warning(
                "run %r goes on with the code that it was admitted with; its source has changed "
                "since. For the new code take a new run id",
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
    ) -> RunResult:
        """Waits until the run has ended and returns its result; `workflow` gives its type back.

        `stop_fd` is a descriptor that ends the waiting, with WaitAbandonedError, once it is
        readable.

        Raises:
            RunFailedError: it failed or was cancelled.
            InterruptedEffectError: it can't go on before a person has decided.
            WaitTimeoutError: `timeout` seconds have passed; the run goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            outcome = self.ask("wait_run", timeout=timeout, stop_fd=stop_fd, runId=run_id)
        except SupervisorUnavailableError as error:
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeoutError(run_id=run_id, seconds=timeout) from error
            raise
        return self.read_outcome(outcome, workflow)

    def result(self, run_id: str, *, workflow: Any = None) -> RunResult:
        """Returns the result of a run that has ended; raises as `wait` if it failed.

        Raises:
            WaitTimeoutError: it is still open.
        """
        shown = self.status(run_id)
        if shown["status"] not in ("completed", "failed", "cancelled", "interrupted"):
            raise WaitTimeoutError(run_id=run_id, seconds=0)
        return self.read_outcome(shown, workflow)

    def read_outcome(self, outcome: dict[str, Any], workflow: Any = None) -> RunResult:
        """Returns the result that an outcome (of `status`, or of `wait_run`) tells, or raises it.

        Raises:
            RunFailedError, InterruptedEffectError: as `wait`.
        """
        run_id = outcome["runId"]
        if outcome["status"] == "interrupted":
            unknown = outcome["interrupted"][0]
            raise InterruptedEffectError(
                run_id=run_id,
                step_path=unknown["stepPath"],
                tool_name=unknown["toolName"],
                effect=unknown["effect"],
                idempotency_key=unknown["idempotencyKey"],
                call_id=unknown["callId"],
                dispatched_at=unknown["dispatchedAt"],
            )
        if outcome["status"] != "completed":
            error = outcome.get("error") or {}
            raise RunFailedError(
                run_id=run_id,
                cause_code=error.get("causeCode", "cancelled"),
                code=error.get("code"),
                message=error.get("message", "it was cancelled"),
                failed_step_path=outcome.get("failedStepPath"),
                error_name=error.get("name"),
            )
        output = self._load(outcome, "output")
        if workflow is not None:
            output = workflow.load_output(output)
        return RunResult(output=output, run_id=run_id, usage=outcome["usage"])

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

    # -- the link --------------------------------------------------------------------------

    def ask(
        self,
        operation: str,
        *,
        timeout: float | None = None,
        stop_fd: int | None = None,
        **arguments: Any,
    ) -> Any:
        """Returns the answer to an operation, over as many supervisors as it takes."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for attempt in range(RECONNECTS_MAX):
            connection = self._find_connection()
            try:
                if self._connection is None:
                    self._connection = connection
                    connection.ask("attach", pid=os.getpid())
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                return connection.ask(operation, timeout=left, stop_fd=stop_fd, **arguments)
            except SupervisorUnavailableError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
                self._drop()
                if attempt + 1 == RECONNECTS_MAX:
                    raise
                time.sleep(_PAUSE_SECONDS)
        raise AssertionError("the loop returns or raises")

    def _find_connection(self) -> Connection:
        if self._connection is not None:
            return self._connection
        found = find_supervisor(self.directory)
        if found is None and self._start_if_missing:
            found = start_supervisor(self.directory)
        if found is None:
            raise SupervisorUnavailableError(
                message=f"none runs for {str(self.directory)!r}; 'planaria up' starts one"
            )
        return found

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Lets go of the supervisor; one that was started for its clients ends with the last.

        That end is waited for, so that what follows finds neither processes nor a lock.
        """
        if self._connection is not None:
            try:
                answer = self._connection.ask("detach", timeout=DETACH_SECONDS)
                if answer["isEnding"]:
                    self._connection.wait_end(GIVE_UP_SECONDS)
            except SupervisorUnavailableError:
                pass
            finally:
                self._drop()
        reap_supervisors()

    @property
    def _modules(self) -> Path:
        return self.directory / "artifacts" / "modules"

    @property
    def _blobs(self) -> BlobStore:
        return BlobStore(self.directory / "artifacts" / "blobs")

    def _load(self, fields: dict[str, Any], name: str) -> Json:
        ref = fields.get(f"{name}Ref")
        if ref is None:
            return fields.get(name)
        return unpack(self._blobs.read(ref), bytes_max=BLOB_BYTES_MAX)


def make_run_id() -> str:
    """Returns a new random run id."""
    return "run_" + os.urandom(8).hex()
