"""What a child process runs: it says hello, carries sessions, and ends by itself.

User code is imported after the first delivery only. The process ends by `os._exit`: threads of
tools may still run, and pydantic-monty aborts when the interpreter is taken down in order.
"""

import asyncio
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planaria.protocol.messages import Hello, Refused, encode_frame

from . import trace
from .captured_output import CapturedOutput
from .channel import Channel, open_context
from .heartbeat import start_heartbeat
from .worker import EXIT_REFUSED, Worker

EXIT_FAILED = 70  # EX_SOFTWARE of sysexits.h: a fault of ours
EXIT_SUPERVISOR_LOST = 1


def main(spec: Mapping[str, Any], token: bytes) -> None:
    """Runs the child; never returns.

    `spec` has endpoint, directory, alive_fd? (its end means that the supervisor has ended) and
    trace? (see trace.install). The token proves that this is the process that was started.
    """
    if spec.get("trace"):
        trace.install(spec["trace"])
    trace.hit("C0")
    code = EXIT_FAILED
    output = CapturedOutput(
        Path(spec["directory"]), str(spec.get("process_id")), spec.get("log_path")
    )
    try:
        code = asyncio.run(_serve(spec, token, output))
    except BaseException:
        traceback.print_exc()
    finally:
        output.close()
        _exit(code)


async def _serve(spec: Mapping[str, Any], token: bytes, output: CapturedOutput) -> int:
    context = open_context()
    channel = Channel(context, spec["endpoint"])
    channel.send_first(encode_frame([Hello(token.hex(), os.getpid())]))
    trace.hit("C1")
    start_heartbeat(lambda: Channel(context, spec["endpoint"]), token.hex(), on_beat=output.limit)
    loop = asyncio.get_running_loop()
    sender = _DrainingSender(channel, loop)
    worker = Worker(sender, Path(spec["directory"]), on_refused=_exit_refused, output=output)
    sender.take = worker.link.take
    loop.add_reader(channel.fileno(), sender.drain)
    if spec.get("alive_fd") is not None:
        loop.add_reader(spec["alive_fd"], _exit_orphaned)
    sender.drain()
    # Everything reported is known to be on disk by then: no frame is left to wait for.
    return await worker.ended


class _DrainingSender:
    """Sends, and reads what has come: sending swallows the descriptor's news of it."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._loop = loop
        self._is_scheduled = False
        self.take = self._take_nothing

    def send(self, frame: bytes) -> None:
        self._channel.send(frame)
        if self._channel.has_frames() and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.drain)

    def drain(self) -> None:
        self._is_scheduled = False
        self._channel.flush()
        self._channel.drain(self.take)

    def _take_nothing(self, frame: bytes) -> None:
        raise AssertionError("frames are read after the worker is there")


def _exit_refused(refused: Refused) -> None:
    print(f"planaria: session {refused.sessionId}: {refused.message}", file=sys.stderr)
    _exit(EXIT_REFUSED)


def _exit_orphaned() -> None:
    _exit(EXIT_SUPERVISOR_LOST)


def _exit(code: int) -> None:
    trace.hit("C15")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # closed, or its reader has gone: there is nobody to tell
    os._exit(code)
