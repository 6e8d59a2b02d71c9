"""The clocks: the one place where the supervisor reads them."""

import time

from .run_state import Now


def read_clock() -> Now:
    """Returns both clocks now, in µs."""
    return Now(at=time.time_ns() // 1_000, mono=time.monotonic_ns() // 1_000)
