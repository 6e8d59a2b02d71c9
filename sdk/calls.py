"""What a running tool can ask about the call that it carries out."""

from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CallContext:
    """One call of a tool: who asks, for which step, and the key under which it happens once.

    `idempotency_key` is the same in every attempt and in every process that carries the call out
    again: give it to services that take one.
    """

    idempotency_key: str
    run_id: str
    session_id: str
    step_path: str
    attempt: int
    call_id: str
    scratch_directory: str

    @property
    def scratch(self) -> Path:
        """The session's working directory; a successor finds there what was left half-written."""
        directory = Path(self.scratch_directory)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory


CURRENT_CALL: ContextVar[CallContext] = ContextVar("planaria_call")


def current_call() -> CallContext:
    """Returns the call that the running tool carries out; also in the threads of sync tools.

    Raises:
        LookupError: no tool is running here.
    """
    try:
        return CURRENT_CALL.get()
    except LookupError:
        raise LookupError(
            "current_call() was called outside of a tool call: it is there while planaria runs a "
            "tool, not at import, and not in a thread that the tool has started without "
            "contextvars.copy_context()"
        ) from None
