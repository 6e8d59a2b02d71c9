"""`run` and `arun`: a workflow from its input to its output, over any number of crashes."""

import asyncio
import logging
import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .client import Client, RunResult, make_run_id
from .connection import WaitAbandonedError

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
) -> RunResult:
    """Runs a workflow and returns its result.

    With the id of a run that is open it is joined, with that of one that has ended its recorded
    result is returned or its recorded failure raised; nothing recorded is done again. `timeout`
    (seconds) is the run's deadline; `wait_timeout` is this caller's patience and changes nothing.
    The supervisor of `data_dir` is found or started; user code runs in its children only.

    Raises:
        RunFailedError, InterruptedEffectError, WaitTimeoutError: as `Client.wait`.
        RunInputMismatchError, InputSchemaError, …: as `Client.start`.
        KeyboardInterrupt: the run is left open; its text says how to carry on.
    """
    named = make_run_id() if run_id is None else run_id
    with Client(data_dir) as client:
        try:
            client.start(workflow, input, run_id=named, timeout=timeout, target=target)
            return client.wait(named, timeout=wait_timeout, workflow=workflow)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(describe_open_run(named, client.directory)) from None


async def arun(
    workflow: Any,
    input: Any = None,
    *,
    run_id: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    wait_timeout: float | None = None,
    target: str | None = None,
) -> RunResult:
    """Does what `run` does without blocking the event loop.

    Cancelling it leaves the run open, and writes to the log `planaria` how to carry on.

    Raises:
        As `run`.
    """
    named = make_run_id() if run_id is None else run_id
    directory = Client(data_dir).directory  # of now: the working directory may change meanwhile
    stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def carry_out() -> RunResult:
        with Client(directory) as client:
            client.start(workflow, input, run_id=named, timeout=timeout, target=target)
            return client.wait(named, timeout=wait_timeout, workflow=workflow, stop_fd=stop_fd)

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
            logger.warning("%s", describe_open_run(named, directory))
        raise


def describe_open_run(run_id: str, directory: Path) -> str:
    """Returns the sentence that says how a run goes on whose caller has stopped waiting."""
    words = ["planaria", "resume", run_id, "--data-dir", str(directory)]
    return (
        f"run {run_id!r} is left open and keeps what is recorded. The same call with "
        f"run_id={run_id!r} carries it on, or: {shlex.join(words)}"
    )
