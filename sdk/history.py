"""Requests that go back in a run's history: retry, fork, replay."""

import getpass
import os
from collections.abc import Mapping, Sequence
from typing import Any

from planaria.protocol.values import check_json

from .requests import Requests, make_run_id

UNCHANGED: Any = object()  # of a fork's input, where None is an input like any other


class HistoryRequests(Requests):
    """What a client asks about what a run has behind it."""

    def retry(
        self,
        run_id: str,
        *,
        by: str | None = None,
        reason: str | None = None,
        workflow: Any = None,
        target: str | None = None,
        within: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Lets a run that failed go on with a new attempt of the step that failed it.

        It runs the code that it was admitted with, unless `workflow` is given: then that one's. Of
        a sub-run `workflow` is the outermost one and `within` the way down from it. `by` names who
        asks for it, by default the user that this process belongs to.

        Raises:
            ConflictError: the run can't be retried as it stands.
        """
        current = self._describe_current(workflow, target, within)
        answer: dict[str, Any] = self.ask(
            "retry_run", runId=run_id, by=by or find_user(), reason=reason or "", **current
        )
        return answer

    def fork(
        self,
        run_id: str,
        *,
        at: int | None = None,
        new_run_id: str | None = None,
        by: str | None = None,
        input: Any = UNCHANGED,
        models: Mapping[str, str] | None = None,
        instructions: str | None = None,
        output_schema: Any = None,
        workflow: Any = None,
        target: str | None = None,
        within: Sequence[str] = (),
    ) -> str:
        """Starts a run that shares another one's events up to `at`, and returns its id.

        Without `at` it shares all that can be shared. What is changed holds for what follows:
        another input, other models in slots, other instructions, another schema (or type) of the
        output, the code of `workflow` (see `retry`) instead of the recorded one.

        Raises:
            ConflictError: the run can't be forked there.
            UsageError: a change that can't be one.
        """
        from .changes import check_models, describe_schema

        changes: dict[str, Any] = {}
        if input is not UNCHANGED:
            if workflow is not None and not within:
                input = workflow.dump_input(input)
            check_json(input)
            changes.update(self._store("input", input))
        if models:
            changes["models"] = check_models(models)
        if instructions is not None:
            changes["instructions"] = instructions
        if output_schema is not None:
            changes["outputSchema"] = describe_schema(run_id, output_schema)
        arguments: dict[str, Any] = {} if at is None else {"atSequence": at}
        arguments.update(self._describe_current(workflow, target, within))
        answer = self.ask(
            "fork_run",
            fromRunId=run_id,
            runId=make_run_id() if new_run_id is None else new_run_id,
            by=by or find_user(),
            changes=changes,
            **arguments,
        )
        return str(answer["runId"])

    def replay(self, run_id: str, *, at: int | None = None) -> dict[str, Any]:
        """Returns a run as `status` does, rebuilt from its log as it stood at an event's sequence.

        No model or tool is called, and no supervisor is needed.
        """
        from .log_reader import read_replay

        return read_replay(self.directory, run_id, at)


def find_user() -> str:
    """Returns the login name of the user that this process belongs to, or the number of one."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user needs no name
        return f"uid {os.getuid()}"
