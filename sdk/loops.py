"""Requests about outer loops: a workflow run in cycles until a function of the user is content."""

import os
from typing import Any

from planaria.protocol.errors import UsageError
from planaria.protocol.ids import check_id

from .declarations import Budget
from .requests import Requests, describe_budget, make_deadline
from .results import RunResult, read_loop


class LoopRequests(Requests):
    """What a client asks about outer loops."""

    def start_loop(
        self,
        workflow: Any,
        input: Any = None,
        *,
        max_outer_cycles: int,
        supervise: Any,
        outer_loop_id: str | None = None,
        timeout: float | None = None,
        target: str | None = None,
        budget: Budget | None = None,
    ) -> str:
        """Starts an outer loop, or joins the one that has this id, and returns its id.

        Each cycle runs the workflow once; then `supervise(state)`, in a process of its own, answers
        Done(final_output) or Continue(prompt_note). It may be called again with an equal state.

        Raises:
            RunFailedError: the loop of this id has another number of cycles, goal or input.
            UsageError, InputSchemaError, …: as `start`.
        """
        from .definition import prepare_function
        from .loading_guard import raise_if_loading

        raise_if_loading()
        check_cycles(max_outer_cycles)
        if outer_loop_id is not None:
            check_id(outer_loop_id, "outer loop id")
        value = workflow.dump_input(input)
        made = self._describe_definition(workflow, target)
        goal = {
            "workflowDefinitionHash": made["definitionHash"],
            "description": workflow.description,
        }
        answer = self.ask(
            "start_loop",
            outerLoopId=make_loop_id() if outer_loop_id is None else outer_loop_id,
            workflowId=workflow.id,
            supervise=prepare_function(supervise, beside=workflow, modules_dir=self._modules),
            goal=goal,
            maxCycles=max_outer_cycles,
            deadlineMs=make_deadline(timeout),
            **made,
            **self._store("input", value),
            **describe_budget(budget),
        )
        return str(answer["outerLoopId"])

    def wait_loop(
        self, loop_id: str, *, timeout: float | None = None, stop_fd: int | None = None
    ) -> RunResult:
        """Waits until an outer loop has ended; `stop_fd` as in `wait`.

        The result's output is what `supervise` answered, as JSON; its run is the last cycle's.

        Raises:
            RunFailedError: it was exhausted or stopped.
            WaitTimeoutError: `timeout` seconds have passed; the loop goes on.
        """
        answer = self._wait("wait_loop", loop_id, timeout, stop_fd, outerLoopId=loop_id)
        return read_loop(answer, self._load)


def make_loop_id() -> str:
    """Returns a new random id of an outer loop."""
    return "ol_" + os.urandom(8).hex()


def check_cycles(count: object) -> None:
    """Refuses what can't be the number of an outer loop's cycles.

    Raises:
        UsageError: says what was expected.
    """
    if type(count) is not int or count < 1:
        raise UsageError(
            message=f"max_outer_cycles is {str(count)[:60]!r}; expected a whole number, 1 or more"
        )
