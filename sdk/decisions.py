"""What people say to runs: decisions, signals, pauses, and what has become of lost effects."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planaria.protocol.codec import Json
from planaria.protocol.values import check_json

from .history import find_user
from .requests import Requests


@dataclass(frozen=True, slots=True)
class Resolution:
    """What has become of an effect whose outcome is unknown; made by one of its four functions."""

    kind: str
    value: Any = None
    message: str | None = None

    @classmethod
    def succeeded(cls, result: Any = None) -> "Resolution":
        """It happened, with this result (JSON): the run goes on with it."""
        check_json(result)
        return cls("succeeded", value=result)

    @classmethod
    def failed(cls, message: str) -> "Resolution":
        """It was refused: the call fails with this message, as if the tool had raised it."""
        return cls("failed", message=message)

    @classmethod
    def never_happened(cls) -> "Resolution":
        """It never happened: it is performed (again)."""
        return cls("never_happened")

    @classmethod
    def given_up(cls) -> "Resolution":
        """Nobody will know: the run ends as failed, with the cause `interrupted`."""
        return cls("given_up")


class DecisionRequests(Requests):
    """What a client says to runs. `by` names who says it, by default the user of this process.

    Each of them may be repeated: the same again changes nothing and gets the first answer.
    """

    def approve(
        self, run_id: str, approval_id: str, *, by: str | None = None, note: str | None = None
    ) -> dict[str, Any]:
        """Approves what an approval shows; returns the decision that counts, and its instant.

        Raises:
            ConflictError: it is decided otherwise, has expired, or nobody waits for it any more.
            NotFoundError: the run has no such approval.
        """
        return self._decide(run_id, approval_id, "approved", by, note)

    def reject(
        self, run_id: str, approval_id: str, *, by: str | None = None, note: str | None = None
    ) -> dict[str, Any]:
        """Rejects what an approval shows; as `approve` otherwise."""
        return self._decide(run_id, approval_id, "rejected", by, note)

    def signal(
        self,
        run_id: str,
        name: str,
        data: Json = None,
        *,
        signal_id: str | None = None,
        by: str | None = None,
    ) -> dict[str, Any]:
        """Sends a signal, which is kept until a wait takes it: {runId, signalId, isRepeated}.

        Give it a `signal_id` of your own if you may send it again: the same id is one signal.

        Raises:
            ConflictError: the id came with other data before, or the run has ended.
        """
        check_json(data)
        number = "sig_" + os.urandom(8).hex() if signal_id is None else signal_id
        answer: dict[str, Any] = self.ask(
            "signal_run",
            runId=run_id,
            name=name,
            signalId=number,
            by=by or find_user(),
            **self._store("data", data),
        )
        return answer

    def pause(self, run_id: str, *, by: str | None = None) -> dict[str, Any]:
        """Lets a run start nothing more: no step, retry or sub-run; what runs ends as usual.

        Raises:
            ConflictError: the run has ended.
        """
        return self._set_paused(run_id, True, by)

    def unpause(self, run_id: str, *, by: str | None = None) -> dict[str, Any]:
        """Lets a paused run go on; what fell due meanwhile is done at once."""
        return self._set_paused(run_id, False, by)

    def resolve(
        self, run_id: str, answers: Mapping[str, Resolution], *, by: str | None = None
    ) -> dict[str, Any]:
        """Says what has become of effects, by their call ids; all of it is taken, or nothing.

        Raises:
            ConflictError: one of them was answered otherwise before.
            NotFoundError: there is no such effect.
        """
        listed = [self._describe(call_id, answer) for call_id, answer in answers.items()]
        answer: dict[str, Any] = self.ask(
            "resolve_effects", runId=run_id, answers=listed, by=by or find_user()
        )
        return answer

    def blocks(self, run_id: str | None = None) -> list[dict[str, Any]]:
        """Returns what waits for people, of one run or of all open ones.

        Each is {kind: effect|approval|signal|pause, runId, …}.
        """
        listed: list[dict[str, Any]] = self.ask("list_blocks", runId=run_id)
        return listed

    def _decide(
        self, run_id: str, approval_id: str, decision: str, by: str | None, note: str | None
    ) -> dict[str, Any]:
        answer: dict[str, Any] = self.ask(
            "decide_approval",
            runId=run_id,
            approvalId=approval_id,
            decision=decision,
            by=by or find_user(),
            note=note or "",
        )
        return answer

    def _set_paused(self, run_id: str, is_paused: bool, by: str | None) -> dict[str, Any]:
        answer: dict[str, Any] = self.ask(
            "pause_run", runId=run_id, isPaused=is_paused, by=by or find_user()
        )
        return answer

    def _describe(self, call_id: str, answer: Resolution) -> dict[str, Any]:
        said: dict[str, Any] = {"callId": call_id, "resolution": answer.kind}
        if answer.kind == "succeeded":
            said.update(self._store("result", answer.value))
        elif answer.message:
            said["message"] = answer.message
        return said
