"""`run` and `arun`: a workflow from its input to its output, over any number of crashes."""

import asyncio
import functools
import os
from typing import Any

from .client import Client, RunResult


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
    """
    with Client(data_dir) as client:
        started = client.start(
            workflow, input, run_id=run_id, timeout=timeout, target=target
        )
        return client.wait(started, timeout=wait_timeout, workflow=workflow)


async def arun(workflow: Any, input: Any = None, **options: Any) -> RunResult:
    """Does what `run` does, in a thread; cancelling the wait leaves the run open."""
    return await asyncio.to_thread(functools.partial(run, workflow, input, **options))
