"""Shows life from a thread and a socket of its own, whatever the main thread is doing.

A blocked event loop or a slow synchronous tool is no hung process: only a stopped process, or
code that keeps the interpreter to itself, keeps this thread from sending.
"""

import os
import threading
from collections.abc import Callable

from planaria.protocol.limits import HEARTBEAT_INTERVAL_MS
from planaria.protocol.messages import Heartbeat, encode_frame

from .channel import Channel


def start_heartbeat(
    open_channel: Callable[[], Channel],
    token: str,
    *,
    on_beat: Callable[[], None] | None = None,
    interval_ms: int = HEARTBEAT_INTERVAL_MS,
) -> Callable[[], None]:
    """Starts the thread; returns what ends it. The process ends when its parent has."""
    ended = threading.Event()
    frame = encode_frame([Heartbeat(token)])
    parent = os.getppid()

    def beat() -> None:
        channel = open_channel()
        while not ended.wait(interval_ms / 1_000):
            if os.getppid() != parent:
                os._exit(1)
            channel.offer(frame)
            if on_beat is not None:
                on_beat()
        channel.close()

    thread = threading.Thread(target=beat, name="planaria-heartbeat", daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    return end
