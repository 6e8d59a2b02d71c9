"""Ids: their form, and the ones that are pure functions of a position in a run."""

import hashlib
import re

from .errors import InvalidIdError
from .limits import ID_CHARS_MAX

_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{ID_CHARS_MAX}}}")
_WORKFLOW_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_DIGEST_CHARS = 24  # 96 bits: two of a billion ids collide with a chance of 1e-11

SYSTEM_RUN_ID = "run_system"


def is_id(text: object) -> bool:
    """Says whether `text` is a legal id."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def check_id(text: object, what: str) -> str:
    """Returns `text` if it is a legal id; `what` names it in the error ("run id").

    Raises:
        InvalidIdError: before any path is made of it.
    """
    if not is_id(text):
        raise InvalidIdError(what=what, text=str(text)[:100], allowed="[A-Za-z0-9_-]{1,80}")
    return str(text)


def check_workflow_id(text: object) -> str:
    """Returns `text` if it is a legal workflow id (dots are allowed there, not at its start)."""
    if not isinstance(text, str) or not _WORKFLOW_ID.fullmatch(text):
        allowed = "[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
        raise InvalidIdError(what="workflow id", text=str(text)[:100], allowed=allowed)
    return text


def derive_id(prefix: str, *parts: str | int) -> str:
    """Returns an id that is a pure function of its parts: a replay derives the same one."""
    text = "\x1f".join(str(part) for part in parts)
    return prefix + hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]


def session_id(run_id: str, step_path: str, attempt: int) -> str:
    """Returns the id of the session that carries one attempt of one visit of a step."""
    return derive_id("hs_", run_id, step_path, attempt)


def call_id(session: str, position: str) -> str:
    """Returns the id of a model or tool call at a position of a session (`t2.0`, `m3.0`, `s0`)."""
    return derive_id("call_", session, position)


def sub_run_id(run_id: str, *place: str | int) -> str:
    """Returns the id of the run that a call (its id) or a step (path, attempt) of a run starts."""
    return derive_id("run_", run_id, *place)
