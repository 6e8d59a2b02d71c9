"""What requests say of definitions, and how they wait: shared by all that a client can ask."""

import os
import time
from collections.abc import Sequence
from typing import Any, Literal

from planaria.protocol.errors import SupervisorUnavailableError, UsageError, WaitTimeoutError

from .declarations import Budget
from .supervisor_link import SupervisorLink

OnInterrupted = float | Literal["hold", "fail"]


class Requests(SupervisorLink):
    """A link that knows what requests are made of."""

    def _describe_definition(self, workflow: Any, target: str | None) -> dict[str, Any]:
        """Stores a definition's modules and returns what a request says of it."""
        from .definition import prepare_source
        from .providers import check_packages

        check_packages(workflow)
        self.ask("ping")  # the directory exists from here on
        return {
            "definitionHash": workflow.definition_hash,
            "lock": workflow.lock,
            "source": prepare_source(workflow, target=target, modules_dir=self._modules),
        }

    def _describe_current(
        self, workflow: Any, target: str | None, within: Sequence[str]
    ) -> dict[str, Any]:
        """Returns the definition that is to be run instead of the recorded one; {} for none."""
        if workflow is None:
            return {}
        made = self._describe_definition(workflow, target)
        for name in within:
            if name not in workflow.workflows:
                raise UsageError(
                    message=f"workflow {workflow.id!r} doesn't have the workflow {name!r} any more"
                )
            workflow = workflow.workflows[name]
        if not within:
            return made
        return {
            "definitionHash": workflow.definition_hash,
            "lock": workflow.lock,
            "source": {**made["source"], "within": list(within)},
        }

    def _wait(
        self,
        operation: str,
        name: str,
        timeout: float | None,
        stop_fd: int | None,
        **arguments: Any,
    ) -> dict[str, Any]:
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            answer: dict[str, Any] = self.ask(
                operation, timeout=timeout, stop_fd=stop_fd, **arguments
            )
            return answer
        except SupervisorUnavailableError as error:
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeoutError(run_id=name, seconds=timeout) from error
            raise


def make_run_id() -> str:
    """Returns a new random run id."""
    return "run_" + os.urandom(8).hex()


def make_deadline(timeout: float | None) -> int | None:
    """Returns a deadline in the milliseconds of requests."""
    return None if timeout is None else max(1, int(timeout * 1000))


def describe_on_interrupted(patience: OnInterrupted) -> dict[str, Any]:
    """Returns what an effect of unknown outcome does to a run, as fields of a request.

    Raises:
        UsageError: says what was expected.
    """
    if patience == "hold":
        return {}
    if patience == "fail":
        return {"onInterrupted": "fail"}
    is_time = isinstance(patience, int | float) and not isinstance(patience, bool)
    if not is_time or not patience > 0:
        raise UsageError(
            message=f"on_interrupted is {str(patience)[:60]!r}; expected 'hold', 'fail' or a "
            "number of seconds above 0"
        )
    return {"onInterrupted": max(1, int(float(patience) * 1000))}


def describe_budget(budget: Budget | None) -> dict[str, Any]:
    """Returns a budget as fields of a request; none without one."""
    return {} if budget is None else {"budget": budget.describe()}
