"""Starts a supervisor: lock, log, recovery of every open run, then the loop, then a clean end."""

import contextlib
import gc
import json
import logging
import os
import resource
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from planaria.protocol.errors import EXIT_DATA_DIRECTORY, EXIT_DONE, PlanariaError, describe_error
from planaria.protocol.ids import SYSTEM_RUN_ID, derive_id
from planaria.protocol.limits import CHILDREN_MAX, CHILDREN_PER_CORE, HEARTBEAT_TIMEOUT_MS

from .blobs import BlobStore
from .children import Children
from .clock import read_clock
from .data_directory import (
    DataDirectory,
    choose_socket_path,
    prepare_data_directory,
    remove_supervisor_json,
    write_supervisor_json,
)
from .desk import Desk
from .event_log import EventLog
from .faults import Faults
from .kernel import Kernel, Turn
from .library import BlobLibrary
from .locks import DirectoryLock
from .loop import Loop
from .loop_files import LoopFiles
from .outfit import Outfit
from .process_tree import boot_id, forbid_tracing
from .sockets import Sockets
from .storage import Storage
from .system_state import SystemState

CHILD_TARGET = "planaria.workers.main:main"
# Net new containers per collection of the youngest, then collections per next older one. A step
# makes some hundred that live until its run ends; looking at them all the time costs a tenth of
# the kernel's work (scripts/benchmarks/kernel.py).
COLLECT_AFTER = (20_000, 20, 50)
NOFILE_WANTED = 8_192  # libzmq aborts the process when it can't accept for want of descriptors

logger = logging.getLogger(__name__)


OnReady = Callable[[dict[str, Any]], None]


def serve(
    root: Path,
    *,
    is_ephemeral: bool = False,
    children_max: int | None = None,
    heartbeat_timeout_ms: int = HEARTBEAT_TIMEOUT_MS,
    on_ready: OnReady | None = None,
) -> int:
    """Runs the supervisor of a data directory until it is asked to end; returns the exit code.

    `on_ready` is told its facts (pid, epoch, socket, …) when clients may come.

    Raises:
        DataDirectoryError: unusable, in use by another supervisor, or damaged.
    """
    faults = Faults.read()
    faults.hit("S0")
    _raise_limits()
    directory = prepare_data_directory(root)
    lock = DirectoryLock.acquire(directory.supervisor_lock)
    faults.hit("S1")
    trace = faults.hit if faults.is_planted else None
    log = EventLog.open(directory.events, trace=trace)
    log.goes_on_after_failure = "go_on_after_failed_commit" in faults.bugs
    faults.hit("S2")
    blobs = BlobStore(directory.blobs, trace)
    storage = Storage(directory, log, blobs, lock)
    try:
        code = _serve(storage, faults, is_ephemeral, children_max, heartbeat_timeout_ms, on_ready)
    finally:
        log.close()
        lock.release()
    return code


def _serve(
    storage: Storage,
    faults: Faults,
    is_ephemeral: bool,
    children_max: int | None,
    heartbeat_timeout_ms: int,
    on_ready: OnReady | None,
) -> int:
    directory, log = storage.directory, storage.log
    library = BlobLibrary(storage.blobs, log)
    cores = len(os.sched_getaffinity(0))
    system = SystemState(
        epoch=log.epoch + 1,
        boot_id=boot_id(),
        children_max=children_max or min(CHILDREN_PER_CORE * cores, CHILDREN_MAX),
        heartbeat_timeout_ms=heartbeat_timeout_ms,
        bugs=faults.bugs,
    )
    kernel = Kernel(system, library)
    socket_path = choose_socket_path(directory)
    sockets = Sockets(socket_path)
    outfit = Outfit(directory, sockets.endpoint, faults.child)
    marker = derive_id("pd_", str(directory.root.resolve()))
    children = Children(
        target=CHILD_TARGET,
        marker=marker,
        environment=outfit.base_environment(),
        socket_directory=socket_path.parent,
    )
    facts = _make_facts(directory, marker, system.epoch, is_ephemeral)
    loops = LoopFiles(directory, system, library, trace=faults.hit)
    desk = Desk(kernel, log, library, storage.blobs, loops, facts)
    loop = Loop(
        kernel,
        storage,
        sockets,
        children,
        desk,
        loops,
        outfit,
        faults,
        is_ephemeral=is_ephemeral,
    )
    outfit.remove_blank_outputs()
    loop.watch_signals()
    children.start()
    try:
        started = {name: facts[name] for name in ("supervisorId", "pid", "epoch", "version")}
        loop.record("SupervisorStarted", started)
        faults.hit("S3")
        loop.recover(_recover(kernel, storage, library))
        facts["socket"] = str(socket_path)
        write_supervisor_json(directory, facts)
        logger.info("ready: pid %d serves %r", os.getpid(), str(directory.root))
        if on_ready is not None:
            on_ready(facts)
        tune_collector()
        reason = loop.run()
        faults.hit("S15")
    finally:
        children.close()
        outfit.remove_blank_outputs()
        sockets.close()
        remove_supervisor_json(directory)
    loop.record("SupervisorStopped", {"epoch": system.epoch, "reason": reason})
    return EXIT_DONE


def _make_facts(
    directory: DataDirectory, marker: str, epoch: int, is_ephemeral: bool
) -> dict[str, Any]:
    return {
        "supervisorId": derive_id("sv_", marker, epoch),
        "pid": os.getpid(),
        "epoch": epoch,
        "version": version("planaria"),
        "directory": str(directory.root),
        "isEphemeral": is_ephemeral,
    }


def _recover(kernel: Kernel, storage: Storage, library: BlobLibrary) -> list[Turn]:
    """Folds every open run and lets it go on; one that can't be folded strands no other."""
    turns: list[Turn] = []
    for run_id in storage.log.open_runs():
        if run_id == SYSTEM_RUN_ID:
            continue
        with _leaving_broken(kernel, run_id):
            run = library.run(run_id)
            assert run is not None
            kernel.load(run)
    for run_id in list(kernel.system.runs):
        with _leaving_broken(kernel, run_id):
            turns.append(kernel.recover(run_id, read_clock()))
    return turns


@contextlib.contextmanager
def _leaving_broken(kernel: Kernel, run_id: str) -> Iterator[None]:
    try:
        yield
    except PlanariaError as error:
        kernel.system.runs.pop(run_id, None)
        logger.error("run %s can't go on and is left untouched: %s", run_id, error)


def tune_collector() -> None:
    """Lets the garbage collector look less often, and never at what stands here at the start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def _raise_limits() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = NOFILE_WANTED if hard == resource.RLIM_INFINITY else min(NOFILE_WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        forbid_tracing()


def run_from_command_line(
    root: Path,
    *,
    is_ephemeral: bool,
    children_max: int | None,
    heartbeat_timeout_ms: int = HEARTBEAT_TIMEOUT_MS,
    on_ready: OnReady | None = None,
) -> int:
    """Serves, and turns what can go wrong into one sentence and an exit code."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    try:
        return serve(
            root,
            is_ephemeral=is_ephemeral,
            children_max=children_max,
            heartbeat_timeout_ms=heartbeat_timeout_ms,
            on_ready=on_ready,
        )
    except PlanariaError as error:
        sys.stderr.write(f"planaria: {error}\n")
        if on_ready is not None:  # whoever waits for the facts as JSON gets the refusal as JSON
            sys.stdout.write(json.dumps({"error": describe_error(error)}) + "\n")
            sys.stdout.flush()
        return error.exit_code or EXIT_DATA_DIRECTORY
