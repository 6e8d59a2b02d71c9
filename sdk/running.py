"""`run` and `arun`: a workflow from its input to its output, over any number of crashes."""

import asyncio
import logging
import os
import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.protocol.errors import RunFailedError, UsageError

from .client import Client
from .connection import WaitAbandonedError
from .declarations import Budget
from .loops import check_cycles, make_loop_id
from .requests import make_run_id
from .results import RunResult

logger = logging.getLogger("planaria")


def run(
    workflow: Any,
    input: Any = None,
    *,
    run_id: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    wait_timeout: float | None = None,
    target: str | None = None,
    budget: Budget | None = None,
    max_outer_cycles: int | None = None,
    outer_loop_id: str | None = None,
    supervise: Callable[[Any], Any] | None = None,
) -> RunResult:
    """Runs a workflow or an orchestrator and returns its result.

    With the id of a run that is open it is joined, with that of one that has ended its recorded
    result is returned or its recorded failure raised; nothing recorded is done again. `timeout`
    (seconds) is the run's deadline; `wait_timeout` is this caller's patience and changes nothing.
    The supervisor of `data_dir` is found or started; user code runs in its children only.

    With `supervise` it is an outer loop of at most `max_outer_cycles` runs: see
    `Client.start_loop`. It has an id of its own, `outer_loop_id`, and no `run_id`.

    Raises:
        RunFailedError, InterruptedEffectError, WaitTimeoutError: as `Client.wait`.
        RunInputMismatchError, InputSchemaError, …: as `Client.start`.
        KeyboardInterrupt: the run is left open; its text says how to carry on.
    """
    wanted = _Wanted(
        workflow, input, timeout, target, budget, run_id, max_outer_cycles, outer_loop_id, supervise
    ).check()
    with Client(data_dir) as client:
        try:
            return wanted.carry_out(client, wait_timeout)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(wanted.describe_open(client.directory)) from None


async def arun(
    workflow: Any,
    input: Any = None,
    *,
    run_id: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    wait_timeout: float | None = None,
    target: str | None = None,
    budget: Budget | None = None,
    max_outer_cycles: int | None = None,
    outer_loop_id: str | None = None,
    supervise: Callable[[Any], Any] | None = None,
) -> RunResult:
    """Does what `run` does without blocking the event loop.

    Cancelling it leaves the run open, and writes to the log `planaria` how to carry on.

    Raises:
        As `run`.
    """
    wanted = _Wanted(
        workflow, input, timeout, target, budget, run_id, max_outer_cycles, outer_loop_id, supervise
    ).check()
    directory = Client(data_dir).directory  # of now: the working directory may change meanwhile
    stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def carry_out() -> RunResult:
        with Client(directory) as client:
            return wanted.carry_out(client, wait_timeout, stop_fd)

    # A thread of its own: asyncio's shared ones may all be taken by other waits.
    threads = ThreadPoolExecutor(1, thread_name_prefix="planaria-arun")
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(threads, carry_out)
    threads.shutdown(wait=False)
    work.add_done_callback(lambda _: os.close(stop_fd))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if not work.done():
            os.eventfd_write(stop_fd, 1)
            await asyncio.wait([work])  # a moment: the client lets go of its supervisor
        if isinstance(work.exception(), WaitAbandonedError):
            logger.warning("%s", wanted.describe_open(directory))
        raise


@dataclass(slots=True)
class _Wanted:
    """What a caller wants to be run: once, or in the cycles of a loop."""

    workflow: Any
    input: Any
    timeout: float | None
    target: str | None
    budget: Budget | None
    run_id: str | None
    max_outer_cycles: int | None
    outer_loop_id: str | None
    supervise: Callable[[Any], Any] | None

    def check(self) -> "_Wanted":
        """Refuses what doesn't go together; gives what has no id its id."""
        if self.supervise is None:
            self.run_id = make_run_id() if self.run_id is None else self.run_id
            if self.max_outer_cycles is not None or self.outer_loop_id is not None:
                raise RunFailedError(
                    run_id=self.outer_loop_id or self.run_id,
                    cause_code="runtime_config_error",
                    code="outer_loop_requested_without_supervise",
                    message="an outer loop was asked for, and nobody says when it is done: give "
                    "supervise=, a function that answers Done(...) or Continue(...)",
                )
            return self
        check_cycles(self.max_outer_cycles)
        if self.run_id is not None:
            raise UsageError(
                message=f"run_id={self.run_id!r} names one run, and an outer loop has several: "
                "give the loop an id by outer_loop_id="
            )
        if self.outer_loop_id is None:
            self.outer_loop_id = make_loop_id()
        return self

    def carry_out(
        self, client: Client, wait_timeout: float | None, stop_fd: int | None = None
    ) -> RunResult:
        """Starts or joins it, and waits for its result."""
        if self.max_outer_cycles is None or self.outer_loop_id is None:
            assert self.run_id is not None, "checked"
            client.start(
                self.workflow,
                self.input,
                run_id=self.run_id,
                timeout=self.timeout,
                target=self.target,
                budget=self.budget,
            )
            return client.wait(
                self.run_id, timeout=wait_timeout, workflow=self.workflow, stop_fd=stop_fd
            )
        loop_id = client.start_loop(
            self.workflow,
            self.input,
            max_outer_cycles=self.max_outer_cycles,
            outer_loop_id=self.outer_loop_id,
            supervise=self.supervise,
            timeout=self.timeout,
            target=self.target,
            budget=self.budget,
        )
        return client.wait_loop(loop_id, timeout=wait_timeout, stop_fd=stop_fd)

    def describe_open(self, directory: Path) -> str:
        """Returns the sentence that says how it goes on when its caller has stopped waiting."""
        if self.supervise is None:
            assert self.run_id is not None, "checked"
            return describe_open_run(self.run_id, directory)
        command = shlex.join(["planaria", "up", "--data-dir", str(directory)])
        return (
            f"outer loop {self.outer_loop_id!r} is left open and keeps what is recorded. The same "
            f"call with outer_loop_id={self.outer_loop_id!r} carries it on, or: {command}"
        )


def describe_open_run(run_id: str, directory: Path) -> str:
    """Returns the sentence that says how a run goes on whose caller has stopped waiting."""
    words = ["planaria", "resume", run_id, "--data-dir", str(directory)]
    return (
        f"run {run_id!r} is left open and keeps what is recorded. The same call with "
        f"run_id={run_id!r} carries it on, or: {shlex.join(words)}"
    )
