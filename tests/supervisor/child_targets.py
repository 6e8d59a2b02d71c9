"""What the children of test_children.py do; loaded by name in the child."""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from typing import Any


def main(spec: dict[str, Any], token: bytes) -> None:
    actions = {
        "return": lambda: None,
        "exit": lambda: sys.exit(spec["code"]),
        "segfault": lambda: ctypes.string_at(0),
        "tell": lambda: _tell(spec, token),
        "wait": lambda: _say(spec, os.getpid()) or _wait(spec),
        "hang": lambda: _say(spec, os.getpid()) or signal.pause(),
        "grandchild": lambda: _keep_grandchild(spec),
        "leave": lambda: _leave_grandchild(spec),
        "fork": lambda: _fork(spec),
    }
    actions[spec["do"]]()


def _say(spec: dict[str, Any], what: object) -> None:
    with open(spec["say"], "w") as fifo:
        fifo.write(json.dumps(what) + "\n")


def _wait(spec: dict[str, Any]) -> None:
    os.read(spec["alive_fd"], 1)


def _tell(spec: dict[str, Any], token: bytes) -> None:
    print("printed")
    _say(
        spec,
        {
            "token": token.hex(),
            "environment": dict(os.environ),
            "cwd": os.getcwd(),
            "session": os.getsid(0) == os.getpid(),
            "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "threads": threading.active_count(),
            "argv": open("/proc/self/cmdline").read(),
            "name": open("/proc/self/comm").read().strip(),
            "modules": [name for name in ("pydantic_ai", "psutil", "zmq") if name in sys.modules],
            "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
            "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
        },
    )


def _start_sleeper() -> int:
    # A session of its own: what killpg would miss.
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid


def _keep_grandchild(spec: dict[str, Any]) -> None:
    _say(spec, [os.getpid(), _start_sleeper()])
    signal.pause()


def _leave_grandchild(spec: dict[str, Any]) -> None:
    _say(spec, [os.getpid(), _start_sleeper()])
    os._exit(0)


def _fork(spec: dict[str, Any]) -> None:
    pid = os.fork()
    _say(spec, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else "the copy went on")
