"""Watch many descriptors and one deadline behind a single descriptor.

An epoll descriptor is itself pollable, so the supervisor's loop registers one descriptor for
all children, however many come and go.
"""

import ctypes
import os
import select
import time
from collections.abc import Callable

ROUNDS_MAX = 8  # what a handler starts may be ready at once; the rest waits for the next call
EVENTS_MAX = 256  # per round

_CLOCK_MONOTONIC = 1  # <linux/time.h>; what time.monotonic() reads
_TFD_TIMER_ABSTIME = 1  # <sys/timerfd.h>
_libc = ctypes.CDLL(None, use_errno=True)


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class Readiness:
    """A set of watched descriptors, each with a handler, and one timer."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        # os.timerfd_create came with Python 3.13.
        self._timer = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._timer >= 0, "the kernel has had timerfd since 2.6.25"
        self._epoll.register(self._timer, select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor that is readable whenever `run` has something to do."""
        return self._epoll.fileno()

    def watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever the descriptor is readable or at its end, until `forget`."""
        self._epoll.register(descriptor, select.EPOLLIN)
        self._handlers[descriptor] = handler

    def forget(self, descriptor: int) -> None:
        """Stop watching; to be called before the descriptor is closed."""
        if self._handlers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def set_deadline(self, deadline: float | None) -> None:
        """Become readable at this instant of time.monotonic(); None: at no time."""
        nanoseconds = 0 if deadline is None else max(1, int(deadline * 1e9))
        spec = _TimerSpec(0, 0, *divmod(nanoseconds, 1_000_000_000))
        _libc.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)

    def run(self) -> None:
        """Call the handlers of all that is ready, without waiting."""
        for _ in range(ROUNDS_MAX):
            ready = self._epoll.poll(0, EVENTS_MAX)
            # A handler may close a descriptor and another open one with the same number: only
            # the handler that was there when the round began is meant.
            calls = [(number, self._handlers.get(number)) for number, _ in ready]
            if all(handler is None for _, handler in calls):
                return
            for number, handler in calls:
                if handler is not None and self._handlers.get(number) is handler:
                    handler()

    def wait(self, deadline: float) -> None:
        """Wait until something is ready or the instant has come."""
        self._epoll.poll(max(0.0, deadline - time.monotonic()), 1)

    def close(self) -> None:
        """Close the timer and the set; the watched descriptors stay open."""
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._timer)
        self._handlers.clear()
