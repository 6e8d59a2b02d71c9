"""Every error that a user, a client or a child can meet, as one tree.

PlanariaError
├── UsageError                  exit 2: what was asked for is malformed
│   ├── InvalidIdError
│   ├── WorkflowInvalidError    findings of a workflow document
│   ├── ValueRefusedError       a value that can't be recorded exactly
│   ├── InputSchemaError
│   ├── SnapshotTooLargeError
│   └── UserCodeError           the user's module can't be loaded
├── NotFoundError               exit 3
│   └── RunNotFoundError
├── ConflictError               exit 4: refused as things stand
│   ├── RunInputMismatchError
│   └── CapabilityDriftError
├── RunFailedError              exit 1: the run ended without an output
├── InterruptedEffectError      exit 5: a person has to decide
├── RunBlockedError             exit 5: only others can move it on
├── WaitTimeoutError            exit 5: the caller's patience ended, the run goes on
├── DataDirectoryError          exit 6
│   ├── DataDirLockedError
│   ├── SupervisorUnavailableError
│   └── IntegrityError
├── CommitUnknownError          exit 74: an I/O error at a commit
├── ProtocolError               a peer broke the protocol
├── ReplayMismatchError         a replay asked for something else than was recorded
└── RecordedError               what a tool or model raised, as it stands in the log

One class per reaction. The text is made from the fields, so that an error can be sent over the
wire as {class, fields} and be the same on the other side (test_errors.py sends every one).
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from .limits import ERROR_TEXT_CHARS_MAX

EXIT_DONE = 0
EXIT_RUN_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_CONFLICT = 4
EXIT_INTERRUPTED = 5
EXIT_DATA_DIRECTORY = 6
EXIT_COMMIT_IO = 74  # EX_IOERR of sysexits.h
EXIT_SIGINT = 130

CAUSE_CODES = frozenset(
    "input_schema_error planner_validation_exhausted capability_drift runtime_config_error "
    "step_schema_error step_failed max_visits_exceeded timeout cancelled interrupted "
    "process_crashed budget_exceeded outer_loop_exhausted step_timeout".split()
)
# Causes after which a step is not tried again, whatever its retry policy says.
NEVER_RETRIED = frozenset(
    "cancelled timeout capability_drift runtime_config_error step_schema_error "
    "max_visits_exceeded interrupted budget_exceeded".split()
)
# Causes that no other source would mend.
NEVER_FIXED = frozenset(
    "cancelled timeout capability_drift runtime_config_error interrupted budget_exceeded".split()
)
# Causes that fail the run also inside a group with failureMode all_settled.
ALWAYS_FAIL_RUN = frozenset(
    "cancelled timeout capability_drift runtime_config_error budget_exceeded interrupted".split()
)


# Errors of steps whose messages are sentences of ours: their names would add nothing.
_SENTENCES = frozenset(
    "ExpressionError IntegrityError PlanInvalidError ProtocolError SandboxError StepConfigError "
    "SubRunFailed SubRunRefused ValueRefusedError".split()
)


class PlanariaError(Exception):
    """Root of every error that planaria raises on purpose; fields are JSON values.

    The field `hint` says what else helps, where whoever reports the error knows more.
    """

    exit_code: ClassVar[int] = EXIT_RUN_FAILED
    template: ClassVar[str] = "{message}"

    def __init__(self, **fields: Any) -> None:
        self.fields: dict[str, Any] = fields
        hint = fields.get("hint")
        super().__init__(shorten(f"{self._make_text()}. {hint}") if hint else self._make_text())

    def with_hint(self, hint: str) -> Self:
        """Returns the same error with a sentence at its end."""
        return type(self)(**{**self.fields, "hint": hint})

    def _make_text(self) -> str:
        try:
            text = self.template.format(**self.fields)
        except (KeyError, IndexError):
            text = f"{type(self).__name__}: {self.fields}"
        return shorten(text)

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (error_from_wire, (error_to_wire(self),))


class UsageError(PlanariaError):
    """What was asked for is malformed; nothing was done."""

    exit_code = EXIT_USAGE


class InvalidIdError(UsageError):
    template = "{text!r} is no legal {what}: expected {allowed}"


class WorkflowInvalidError(UsageError):
    """The workflow document has findings; `findings` lists {code, path, message}."""

    def _make_text(self) -> str:
        findings = self.fields.get("findings", [])
        lines = [f"{f['code']} at {f['path']}: {f['message']}" for f in findings]
        name = self.fields.get("name") or "workflow"
        return shorten(f"{name!r} has {len(lines)} finding(s):\n  " + "\n  ".join(lines))


class ValueRefusedError(UsageError):
    """A value can't be recorded exactly; the field `of` says of what it is, if that is known."""

    template = "the value at {path} can't be recorded exactly: {reason}"

    def _make_text(self) -> str:
        if "of" not in self.fields:
            return super()._make_text()
        return shorten("{of}, at {path}: {reason}".format(**self.fields))

    def said_of(self, of: str) -> "ValueRefusedError":
        """Returns the refusal with its beginning: "the result of tool 'x' doesn't fit"."""
        return ValueRefusedError(**{**self.fields, "of": of})


class InputSchemaError(UsageError):
    template = "the input of {name!r} doesn't fit its schema: {reason}"


class SnapshotTooLargeError(UsageError):
    template = "{message}"


class UserCodeError(UsageError):
    """The user's module failed while it was loaded; `traceback_text` stays in the log."""

    template = "{message}"


class NotFoundError(PlanariaError):
    exit_code = EXIT_NOT_FOUND


class RunNotFoundError(NotFoundError):
    template = "no run {run_id!r} in this data directory; 'planaria runs' lists them"


class ConflictError(PlanariaError):
    exit_code = EXIT_CONFLICT


class RunInputMismatchError(ConflictError):
    template = (
        "run {run_id!r} was admitted with another {what}; nothing was run. Use a new run id, "
        "or the {what} it was admitted with"
    )


class CapabilityDriftError(ConflictError):
    template = (
        "run {run_id!r} was admitted with another definition ({changes}); nothing was run. "
        "'planaria resume {run_id}' goes on with the code that it was admitted with; or restore "
        "that definition, or use a new run id"
    )


class RunFailedError(PlanariaError):
    """The run ended without an output: `cause_code` is one of CAUSE_CODES."""

    exit_code = EXIT_RUN_FAILED

    def _make_text(self) -> str:
        f = self.fields
        step = f" at step {f['failed_step_path']!r}" if f.get("failed_step_path") else ""
        cause, name = f.get("cause_code"), f.get("error_name")
        text = name_failure(name, f.get("message"), cause)
        return shorten(f"run {f.get('run_id')!r} failed{step} ({cause}): {text}")


class InterruptedEffectError(PlanariaError):
    """The outcome of an effect is unknown, and only a person can say what happened."""

    exit_code = EXIT_INTERRUPTED
    template = (
        "run {run_id!r} holds at step {step_path!r}: tool {tool_name!r} (class {effect}) was "
        "dispatched and its process died before the outcome was recorded (idempotency key "
        "{idempotency_key}). Look outside whether it happened, then say so: 'planaria resolve "
        "{run_id} {call_id}' with --succeeded JSON, --failed TEXT, --never-happened or --give-up; "
        "'planaria cancel {run_id}' ends the run"
    )


class RunBlockedError(PlanariaError):
    """Only others can move the run on: `blocks` says what each of them has to decide."""

    exit_code = EXIT_INTERRUPTED
    template = "run {run_id!r} waits for others"

    def _make_text(self) -> str:
        blocks, run_id = self.fields.get("blocks"), self.fields.get("run_id")
        blocks = blocks if isinstance(blocks, list) else []
        named = ", ".join(_name_block(block) for block in blocks[:3]) or "others"
        more = f" and {len(blocks) - 3} more" if len(blocks) > 3 else ""
        text = f"run {run_id!r} waits for {named}{more}; 'planaria show {run_id}' says what to do"
        return shorten(text)


def _name_block(block: dict[str, Any]) -> str:
    match block["kind"]:
        case "approval":
            return f"approval {block['approvalId']} of step {block['stepPath']!r}"
        case "signal":
            return f"signal {block['name']!r} for step {block['stepPath']!r}"
        case "effect":
            return f"what became of {block['toolName']!r} of step {block['stepPath']!r}"
        case _:
            return f"the end of the pause by {block['by']}"


class WaitTimeoutError(PlanariaError):
    exit_code = EXIT_INTERRUPTED
    template = (
        "run {run_id!r} had not ended after {seconds} s; it goes on. "
        "'planaria wait {run_id}' waits again"
    )


class DataDirectoryError(PlanariaError):
    exit_code = EXIT_DATA_DIRECTORY


class DataDirLockedError(DataDirectoryError):
    template = (
        "data directory {directory!r} is in use by the supervisor with pid {pid}; "
        "'planaria up --take-over' ends that one first"
    )


class SupervisorUnavailableError(DataDirectoryError):
    template = "the supervisor of this data directory doesn't answer: {message}"


class IntegrityError(DataDirectoryError):
    """Stored data are not what was written: nothing is repaired, nothing guessed."""


class CommitUnknownError(PlanariaError):
    """A commit met an I/O error: it may or may not be on disk; only a restart can tell."""

    exit_code = EXIT_COMMIT_IO


class ProtocolError(PlanariaError):
    template = "{message}"


class ReplayMismatchError(PlanariaError):
    template = (
        "session {session_id!r} replays position {position}: recorded was {recorded}, asked for "
        "is {asked}. The code that runs is not the code that was recorded"
    )


class RecordedError(PlanariaError):
    """What a tool or model raised, as recorded: `name` of the exception type and `message`."""

    template = "{name}: {message}"


def name_failure(name: object, message: object, cause: object) -> str:
    """Returns what a failure says, with the exception's class if a step raised it.

    "boom" alone says little, and the "3" of a SystemExit nothing.
    """
    if cause != "step_failed" or not name or name in _SENTENCES:
        return str(message)
    return f"{name}: {message}" if message not in (None, "") else str(name)


def describe_type(value: object) -> str:
    """Returns what errors call a value's type: "an int"."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def shorten(text: str) -> str:
    """Returns `text` cut to the limit of an error text, with a mark where it was cut."""
    if len(text) <= ERROR_TEXT_CHARS_MAX:
        return text
    return text[: ERROR_TEXT_CHARS_MAX - 12] + " […cut off]"


def _classes(root: type[PlanariaError]) -> dict[str, type[PlanariaError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_classes(child))
    return found


def error_to_wire(error: PlanariaError) -> dict[str, Any]:
    """Returns the error as a JSON map: {class, fields}."""
    return {"class": type(error).__name__, "fields": error.fields}


def describe_error(error: PlanariaError) -> dict[str, Any]:
    """Returns the error as people's programs see it: {class, message, and its fields}."""
    return {"class": type(error).__name__, **error.fields, "message": str(error)}


def error_from_wire(wire: Mapping[str, Any]) -> PlanariaError:
    """Returns the error that `error_to_wire` was given; an unknown class becomes the root."""
    known = _classes(PlanariaError)
    fields = dict(wire.get("fields") or {})
    return known.get(str(wire.get("class")), PlanariaError)(**fields)
