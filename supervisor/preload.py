"""What a fork server loads before its first fork, and what a forked child does before user code.

`multiprocess` imports this module in a new fork server. It then finds its configuration in the
environment, loads the modules named there, and reports through a pipe. Imported anywhere else it
does nothing. It must not name a module that is user code: those are imported in the child only.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from .process_tree import (
    MARKER_VARIABLE,
    PROCESS_VARIABLE,
    kill_marked,
    kill_tree,
    list_children,
    name_process,
    read_stat,
    set_parent_death_signal,
)

CONFIGURATION_VARIABLE = "PLANARIA_FORK_SERVER"
BASE_MODULES = ("planaria.supervisor.fork_server",)  # what every child unpickles its start from
LIGHT_MODULES = (*BASE_MODULES, "asyncio", "msgpack", "zmq")
HEAVY_MODULES = (*LIGHT_MODULES, "pydantic_ai", "planaria.workers.agent_loop")
HEAVY_WARM_UP = "planaria.supervisor.preload:warm_up_agent"

NOFILE_MAX = 256  # open descriptors of a child, see 6-reliability, Limits
SWITCH_INTERVAL_SECONDS = 0.0005  # a heartbeat beside a busy thread waits 0.7 ms, not 5
COPY_EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h
COPY_TEXT = (
    b"planaria: a tool called os.fork(); the copy was ended, for it would have gone on as the same "
    b"session. Start programs with subprocess (without preexec_fn), Python with spawn.\n"
)
PROBLEM_CHARS_MAX = 500
REPORT_BYTES_MAX = 32_768  # less than a pipe holds, so that writing it never waits
TREE_WAIT_SECONDS = 2.0

_server_pid = 0  # the fork server that this process is, or was forked from
_supervisor_pid = 0


def run_child(target: str, spec: dict[str, Any], token: bytes) -> None:
    """Make a forked process a child of its own standing, then call the target in it."""
    _isolate(spec)
    _apply_limits(spec.get("limits", {}))
    _redirect_output(spec.get("log_path"))
    if spec.get("cwd") is not None:
        os.chdir(spec["cwd"])
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    os.register_at_fork(after_in_child=_end_copy)
    resolve(target)(spec, token)


def resolve(name: str) -> Callable[..., Any]:
    """Return what "package.module:attribute" names, importing the module."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def warm_up_agent() -> None:
    """Run one agent against a test model, for pydantic-ai imports lazily.

    Without it the first run in each child takes 100-175 ms and copies 30 MB of shared pages.
    """
    import asyncio

    import pydantic_ai
    from pydantic_ai import durable_exec
    from pydantic_ai.models.test import TestModel

    for name in durable_exec.__all__:
        getattr(durable_exec, name)
    asyncio.run(pydantic_ai.Agent(TestModel()).run("x"))


def _isolate(spec: Mapping[str, Any]) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)
    os.setsid()  # Ctrl-C at the supervisor's terminal must not reach it
    set_parent_death_signal(signal.SIGKILL)  # not inherited by fork: each child sets its own
    if os.getppid() != _server_pid:
        os._exit(1)  # the fork server ended before the call above
    marker = os.environ.get(MARKER_VARIABLE)
    environment = dict(spec.get("environment", {}))
    if marker is not None:
        environment[MARKER_VARIABLE] = marker
    environment[PROCESS_VARIABLE] = spec["process_id"]
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    name_process(spec.get("title", spec["process_id"]))


def _apply_limits(limits: Mapping[str, int]) -> None:
    wanted = {
        resource.RLIMIT_NOFILE: limits.get("nofile", NOFILE_MAX),
        resource.RLIMIT_AS: limits.get("memory_bytes"),
        resource.RLIMIT_CPU: limits.get("cpu_seconds"),
        resource.RLIMIT_FSIZE: limits.get("file_bytes"),
    }
    for kind, value in wanted.items():
        if value is None:
            continue
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))


def _redirect_output(log_path: str | None) -> None:
    if log_path is not None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(log_path, flags, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a killed process loses what it had buffered
            reconfigure(line_buffering=True, encoding="utf-8", errors="backslashreplace")


def _end_copy() -> None:
    # subprocess without preexec_fn forks in C and never comes here. multiprocessing's fork
    # method, os.forkpty and preexec_fn do, and are ended too.
    os.write(2, COPY_TEXT)
    os._exit(COPY_EXIT_CODE)


def _become_fork_server(configuration: Mapping[str, Any]) -> None:
    global _server_pid, _supervisor_pid
    _server_pid = os.getpid()
    _supervisor_pid = configuration["supervisor_pid"]
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGTERM, _end_server)
    set_parent_death_signal(signal.SIGTERM)
    if os.getppid() != _supervisor_pid:
        sys.exit(0)  # the supervisor ended before the call above
    atexit.register(_end_children)  # the end of the alive pipe comes before the signal
    name_process(configuration["name"])
    started = time.monotonic()
    problems: dict[str, str] = {}
    for module in configuration["modules"]:
        _catch(problems, module, functools.partial(importlib.import_module, module))
    warm_up = configuration["warm_up"]
    if warm_up is not None:
        _catch(problems, warm_up, lambda: resolve(warm_up)())
    gc.collect()
    gc.freeze()  # a later collection in a child would copy every shared page
    report = {
        "threads": len(os.listdir("/proc/self/task")),
        "problems": problems,
        "seconds": round(time.monotonic() - started, 3),
    }
    text = json.dumps(report).encode()
    assert len(text) <= REPORT_BYTES_MAX, f"a report of {len(text)} bytes: too many modules named"
    os.write(configuration["report_fd"], text)
    os.close(configuration["report_fd"])


def _catch(problems: dict[str, str], name: str, action: Callable[[], object]) -> None:
    # multiprocess swallows ImportError and dies of anything else; both are reported instead.
    # BaseException: a module that calls sys.exit() must not end the fork server either.
    try:
        action()
    except BaseException as error:
        problems[name] = f"{type(error).__name__}: {error}"[:PROBLEM_CHARS_MAX]


def _end_server(_signum: int, _frame: FrameType | None) -> None:
    if os.getpid() != _server_pid:  # a child that was forked a moment ago
        os._exit(1)
    _end_children()
    os._exit(0)


def _end_children() -> None:
    """Kill the children's trees; without a supervisor, all that works for its directory."""
    if os.getpid() != _server_pid:
        return
    for pid in list_children(_server_pid):
        stat = read_stat(pid)
        if stat is not None:
            kill_tree(pid, stat.start_time, TREE_WAIT_SECONDS)
    marker = os.environ.get(MARKER_VARIABLE)
    if os.getppid() != _supervisor_pid and marker is not None:
        # Orphans that the supervisor had adopted have lost it too. A successor can't be hit:
        # it ends this process, and waits for that, before it starts anything.
        kill_marked(marker, TREE_WAIT_SECONDS)


if CONFIGURATION_VARIABLE in os.environ:
    _become_fork_server(json.loads(os.environ.pop(CONFIGURATION_VARIABLE)))
