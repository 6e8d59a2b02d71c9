"""What stands in a data directory, and what is said of a place that can't be one.

Clients look before they ask for anything, and the supervisor before it makes anything: the same
sentence comes from both.
"""

from collections.abc import Iterable

from .errors import DataDirectoryError

DATABASE = ("events", "events.db")  # below the directory
SUPERVISOR_LOG_NAME = "supervisor.log"
OWN_NAMES = frozenset(
    "events artifacts runs memory locks outer-loops supervisor.json supervisor.sock "
    f"{SUPERVISOR_LOG_NAME} {SUPERVISOR_LOG_NAME}.1".split()
)
_NOT_FOREIGN = frozenset({"lost+found", ".gitignore"})


def refuse_file(root: str) -> DataDirectoryError:
    """Returns what is said of a file where a directory should be."""
    return DataDirectoryError(
        message=f"{root!r} is a file; expected a data directory. --data-dir, or "
        "PLANARIA_DATA_DIR, names it"
    )


def refuse_foreign(root: str, names: Iterable[str]) -> DataDirectoryError | None:
    """Returns what is said of a directory without an event log that has something else in it."""
    foreign = sorted(set(names) - OWN_NAMES - _NOT_FOREIGN)
    if not foreign:
        return None
    return DataDirectoryError(
        message=f"{root!r} holds other things ({foreign[0]!r}) and no event log. Choose an empty "
        "directory or a new one"
    )


def refuse_unusable(root: str, error: OSError) -> DataDirectoryError:
    """Returns what is said of a directory that the system doesn't let us use."""
    return DataDirectoryError(
        message=f"data directory {root!r} can't be used: {error.strerror} "
        f"({error.filename or 'while it was tried'}). Make room, change its permissions, or "
        "choose another one"
    )


def refuse_empty(path: str) -> DataDirectoryError:
    """Returns what is said where an event log is looked for, and none is there."""
    return DataDirectoryError(
        message=f"there is no event log at {path!r}: nothing has run there yet, or it was lost. "
        "'planaria run' and 'planaria up' make one; --data-dir names another directory"
    )
