"""What an exception becomes in the log: the error of a call, and the error of a step."""

from typing import Any

from planaria.protocol.errors import (
    CAUSE_CODES,
    NEVER_RETRIED,
    IntegrityError,
    PlanariaError,
    ProtocolError,
    RecordedError,
    ReplayMismatchError,
    UserCodeError,
    ValueRefusedError,
    shorten,
)
from planaria.protocol.expressions import ExpressionError

# Trying again would meet the same: the value, the expression or the file doesn't change.
_DEFINITE = (ValueRefusedError, ExpressionError, IntegrityError, ProtocolError)


class StepConfigError(PlanariaError):
    """The step can't be carried out as things are set up: a tool, a model or a key is missing."""

    template = "{message}"


def describe_call_error(error: BaseException) -> dict[str, Any]:
    """Returns {name, message} of what a tool or a model raised."""
    if isinstance(error, RecordedError):
        return {"name": _text(error.name), "message": _text(error.message)}
    return {"name": type(error).__name__, "message": _text(error)}


def describe_step_error(error: BaseException) -> dict[str, Any]:
    """Returns {name, message, causeCode, retriable} of what ended a step."""
    cause = _find_cause(error)
    retriable = cause not in NEVER_RETRIED and not is_definite(error)
    return {**describe_call_error(error), "causeCode": cause, "retriable": retriable}


def make_step_error(
    name: str, message: str, cause: str, *, retriable: bool = False
) -> dict[str, Any]:
    """Returns the error of a step."""
    return {"name": name, "message": _text(message), "causeCode": cause, "retriable": retriable}


def is_definite(error: BaseException) -> bool:
    """Says whether another attempt would end the same way.

    A result that can't be recorded counts: its tool has done its work, and would do it again.
    """
    names = {kind.__name__ for kind in _DEFINITE}
    return isinstance(error, _DEFINITE) or (
        isinstance(error, RecordedError) and error.name in names
    )


def _find_cause(error: BaseException) -> str:
    if isinstance(error, StepConfigError | UserCodeError):
        return "runtime_config_error"
    if isinstance(error, ReplayMismatchError):
        return "capability_drift"
    cause = getattr(error, "cause_code", None)
    return cause if cause in CAUSE_CODES else "step_failed"


def _text(value: object) -> str:
    try:
        text = str(value)
    except Exception as error:
        # An exception of user code whose own text fails is still to be reported.
        text = f"<its text can't be made: {type(error).__name__}>"
    # Lone surrogates have no UTF-8 form, and a message is only for reading.
    return shorten(text.encode("utf-8", "replace").decode())
