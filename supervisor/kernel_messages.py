"""What reaches the kernel (requests and reports), and the actions that it answers with."""

from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.errors import PlanariaError
from planaria.protocol.messages import ToChild

# What a caller may say of how a run is carried out, as fields of its admission.
OPTIONS = ("deadlineMs", "labels", "onInterrupted", "budget")


@dataclass(frozen=True, slots=True)
class AdmitRun:
    """A client asks for a run; `lock` holds the document, `client` is where the answer goes."""

    client: Any
    run_id: str
    workflow_id: str
    definition_hash: str
    version_id: str
    lock: dict[str, Any]
    lock_ref: dict[str, Any]
    input: dict[str, Any]  # {"input": value} or {"inputRef": reference}
    input_hash: str
    source: dict[str, Any]
    trigger: str = "client"
    options: dict[str, Any] = field(default_factory=dict)  # see OPTIONS; only those that are given


@dataclass(frozen=True, slots=True)
class RetryRun:
    """A client asks for another attempt of a run that has failed or was cancelled.

    `source` is there if it asks for the code as it is today.
    """

    client: Any
    run_id: str
    by: str
    reason: str
    source: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ForkRun:
    """A client asks for a run that takes over what another has committed; `admission` is its own.

    `inherited_ref` names the blob of what it takes over, see `inheritance`.
    """

    admission: AdmitRun
    from_run_id: str
    at_sequence: int
    by: str
    changes: dict[str, Any]
    inherited_ref: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CancelRun:
    """A client asks to cancel a run."""

    client: Any
    run_id: str
    request_id: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessReady:
    """A child has said hello with its token."""

    process_id: str
    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class SessionReported:
    """A child asks to append events of its session."""

    process_id: str
    session_id: str
    incarnation: int
    after: int
    events: list[Any]


@dataclass(frozen=True, slots=True)
class HistoryAsked:
    """A child asks for its session's events after a run sequence."""

    process_id: str
    session_id: str
    incarnation: int
    after: int


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """A child has shown life."""

    process_id: str


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A child's death is proven, and what it had sent is read."""

    process_id: str
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """No process came of a launch."""

    process_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Something may be due; the kernel fills in the runs that have a timer that is."""

    due: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StopSystem:
    """The supervisor is asked to end: no session starts any more, the running ones are put away."""


@dataclass(frozen=True, slots=True)
class DecideApproval:
    """A person answers an approval: `decision` is approved or rejected."""

    client: Any
    run_id: str
    approval_id: str
    decision: str
    by: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class SignalRun:
    """A signal for a run; `data` is {"data": value} or {"dataRef": reference}."""

    client: Any
    run_id: str
    signal_id: str
    name: str
    data: dict[str, Any]
    by: str | None = None


@dataclass(frozen=True, slots=True)
class PauseRun:
    """A client asks that a run starts nothing more, or that it goes on."""

    client: Any
    run_id: str
    is_paused: bool
    by: str


@dataclass(frozen=True, slots=True)
class ResolveEffects:
    """A person says what has become of effects whose outcome is unknown.

    Each of `answers` is {callId, resolution, result? | resultRef?, message?}; the resolution is
    one of succeeded, failed, never_happened, given_up.
    """

    client: Any
    run_id: str
    answers: list[dict[str, Any]]
    by: str


@dataclass(frozen=True, slots=True)
class StartLoop:
    """A client asks for an outer loop; `admission` is what its cycles' runs are admitted with."""

    admission: AdmitRun
    loop_id: str
    cycles_max: int
    goal: dict[str, Any]
    supervise: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DriveLoop:
    """An outer loop is to take its next step, from wherever it is."""

    loop_id: str


@dataclass(frozen=True, slots=True)
class ErrandEnded:
    """A child has done its errand: what came of it, or the error that it raised."""

    process_id: str
    errand_id: str
    result: dict[str, Any] | None
    error: dict[str, Any] | None


KernelMessage = (
    AdmitRun
    | DecideApproval
    | SignalRun
    | PauseRun
    | ResolveEffects
    | StartLoop
    | DriveLoop
    | ErrandEnded
    | RetryRun
    | ForkRun
    | CancelRun
    | ProcessReady
    | SessionReported
    | HistoryAsked
    | ProcessSeen
    | ProcessEnded
    | LaunchFailed
    | Tick
    | StopSystem
)


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a child."""

    process_id: str
    message: ToChild


@dataclass(frozen=True, slots=True)
class SendHistory:
    """Read a session's events from the log and send them as pages."""

    process_id: str
    run_id: str
    session_id: str
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a blank child process."""

    process_id: str
    kind: str


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL a child and its descendants."""

    process_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a client's request."""

    client: Any
    result: dict[str, Any] | None = None
    error: PlanariaError | None = None


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Write an outer loop's manifest as its events have it now."""

    loop_id: str


@dataclass(frozen=True, slots=True)
class StopLoop:
    """An outer loop can't go on by itself; `error` says why."""

    loop_id: str
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TellLoop:
    """Answer those who wait for an outer loop that has ended."""

    loop_id: str


@dataclass(frozen=True, slots=True)
class Feed:
    """Give the kernel a message, after everything before it is done."""

    message: DriveLoop


Action = Send | SendHistory | Launch | Kill | Answer | WriteManifest | StopLoop | TellLoop | Feed
