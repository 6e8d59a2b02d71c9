"""What clients say to runs: decisions, signals, pauses, what became of effects; field by field."""

from collections.abc import Callable
from typing import Any

from planaria.protocol.errors import UsageError
from planaria.protocol.ids import check_id

from .admissions import check_text, read_value
from .blobs import BlobStore
from .kernel_messages import DecideApproval, KernelMessage, PauseRun, ResolveEffects, SignalRun
from .resolving import RESOLUTIONS

NAME_CHARS_MAX = 200
ANSWERS_MAX = 1_000  # of one request
DECISIONS = ("approved", "rejected")
_ANSWER_FIELDS = frozenset({"callId", "resolution", "result", "resultRef", "message"})


class DecisionRequests:
    """Reads requests into messages of the kernel; `load` brings an ended run into memory."""

    def __init__(self, blobs: BlobStore, load: Callable[[str], None]) -> None:
        self._blobs = blobs
        self._load = load

    def read_approval(self, client: Any, arguments: dict[str, Any]) -> KernelMessage:
        """Returns the decision of a person on an approval."""
        if arguments["decision"] not in DECISIONS:
            raise ValueError(f"decision is {arguments['decision']!r}, expected one of {DECISIONS}")
        return DecideApproval(
            client=client,
            run_id=self._read_run(arguments),
            approval_id=check_id(arguments["approvalId"], "approval id"),
            decision=arguments["decision"],
            by=check_text(arguments["by"], "by"),
            note=check_text(arguments.get("note") or "", "note") or None,
        )

    def read_signal(self, client: Any, arguments: dict[str, Any]) -> KernelMessage:
        """Returns a signal."""
        name = arguments["name"]
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX:
            raise UsageError(
                message=f"a signal's name is a text of 1 to {NAME_CHARS_MAX} characters"
            )
        data, _ = read_value(self._blobs, arguments, "data")
        return SignalRun(
            client=client,
            run_id=self._read_run(arguments),
            signal_id=check_id(arguments["signalId"], "signal id"),
            name=name,
            data=data,
            by=check_text(arguments["by"], "by"),
        )

    def read_pause(self, client: Any, arguments: dict[str, Any]) -> KernelMessage:
        """Returns a pause, or the end of one."""
        if type(arguments["isPaused"]) is not bool:
            raise TypeError("isPaused isn't a truth value")
        by = check_text(arguments["by"], "by")
        return PauseRun(client, self._read_run(arguments), arguments["isPaused"], by)

    def read_resolution(self, client: Any, arguments: dict[str, Any]) -> KernelMessage:
        """Returns what a person knows of effects."""
        answers = arguments["answers"]
        if not isinstance(answers, list) or not 0 < len(answers) <= ANSWERS_MAX:
            raise ValueError(f"answers isn't a list of 1 to {ANSWERS_MAX}")
        if len({answer["callId"] for answer in answers}) < len(answers):
            raise UsageError(message="a call is answered twice in one request: answer it once")
        read = [self._read_answer(answer) for answer in answers]
        by = check_text(arguments["by"], "by")
        return ResolveEffects(client, self._read_run(arguments), read, by)

    def _read_answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        if not answer.keys() <= _ANSWER_FIELDS or answer["resolution"] not in RESOLUTIONS:
            raise ValueError(f"an answer has {sorted(answer)}, with one of {sorted(RESOLUTIONS)}")
        read: dict[str, Any] = {
            "callId": check_id(answer["callId"], "call id"),
            "resolution": answer["resolution"],
        }
        if answer["resolution"] == "succeeded":
            value, _ = read_value(self._blobs, {"result": None, **answer}, "result")
            read.update(value)
        elif answer.get("message"):
            read["message"] = check_text(answer["message"], "message")
        return read

    def _read_run(self, arguments: dict[str, Any]) -> str:
        run_id = check_id(arguments["runId"], "run id")
        self._load(run_id)
        return run_id
