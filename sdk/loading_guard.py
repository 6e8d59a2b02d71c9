"""Stops `run()` while a child only loads the module that calls it.

A script without an `if __name__ == "__main__":` guard calls `run()` again when a child process
loads it for its definitions. That call has to end the loading, not start another run, and it
has to get through the script's own `except Exception`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LOADING: ContextVar[bool] = ContextVar("planaria_loading", default=False)


class StopLoading(BaseException):
    """Ends the loading of a module at its call of `run()`; what stands above it is defined."""


@contextmanager
def loading() -> Iterator[None]:
    """Marks the time in which user modules are loaded for what they define."""
    token = _LOADING.set(True)
    try:
        yield
    finally:
        _LOADING.reset(token)


def is_loading() -> bool:
    """Returns whether a module is being loaded for its definitions only."""
    return _LOADING.get()


def raise_if_loading() -> None:
    """Stops here when a module is only loaded; the first line of everything that starts runs.

    Raises:
        StopLoading: a BaseException, which the loader catches.
    """
    if _LOADING.get():
        raise StopLoading("a module was loaded for its definitions; run() is not called again")
