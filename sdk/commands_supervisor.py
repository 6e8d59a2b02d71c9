"""Commands about the supervisor and its data directory: up, down, status, verify, doctor."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from planaria.protocol.errors import (
    EXIT_DONE,
    DataDirectoryError,
    DataDirLockedError,
    SupervisorUnavailableError,
)

from .command_line import AsJson, DataDir, note, write_json

END_SECONDS = 30.0  # the grace of a supervisor is 10 s, then it kills and ends
CHILDREN_MAX = 1_000


def up(
    take_over: Annotated[
        bool, typer.Option("--take-over", help="End the supervisor that has the directory first.")
    ] = False,
    children: Annotated[
        int | None,
        typer.Option("--children", min=1, max=CHILDREN_MAX, help="Most child processes at once."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when it is ready; it stays.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Run a supervisor until it is told to end; every open run goes on by itself."""
    from .discovery import find_directory, supervisor_command

    directory = find_directory(data_dir)
    if detach:
        return _start_detached(directory, take_over, children, as_json)
    arguments = ["serve", str(directory)]
    if take_over:
        arguments.append("--take-over")
    if children is not None:
        arguments += ["--children", str(children)]
    if as_json:
        arguments.append("--announce")
    command = supervisor_command(*arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    # The same process from here on: signals and the exit code are the supervisor's own.
    os.execv(command[0], command)


def _start_detached(directory: Path, take_over: bool, children: int | None, as_json: bool) -> int:
    from .discovery import find_supervisor, read_facts, start_supervisor

    if not take_over:
        connection = find_supervisor(directory)
        if connection is not None:
            facts = connection.ask("ping")
            connection.close()
            raise DataDirLockedError(directory=str(directory), pid=facts["pid"])
    connection = start_supervisor(
        directory, is_ephemeral=False, children_max=children, take_over=take_over
    )
    facts = connection.ask("ping")
    connection.close()
    if as_json:
        write_json({**facts, **(read_facts(directory) or {})})
    else:
        print(f"supervisor {facts['pid']} serves {directory}; 'planaria down' ends it")
    return EXIT_DONE


def down(data_dir: DataDir = None, as_json: AsJson = False) -> int:
    """End the supervisor: what is in flight is finished, the rest goes on at the next start."""
    from .discovery import find_supervisor, is_held, read_holder_pid
    from .observation import check_exists

    directory = check_exists(data_dir)
    pid = read_holder_pid(directory) if is_held(directory) else None
    if pid is not None:
        connection = find_supervisor(directory)
        if connection is not None:
            try:
                connection.ask("stop")
            except SupervisorUnavailableError:
                pass  # it has ended meanwhile
            finally:
                connection.close()
        _wait_end(pid, directory)
    if as_json:
        write_json({"directory": str(directory), "stopped": pid is not None, "pid": pid})
    elif pid is None:
        print(f"no supervisor runs for {directory}")
    else:
        print(f"supervisor {pid} has ended")
    return EXIT_DONE


def _wait_end(pid: int, directory: Path) -> None:
    from .discovery import is_held

    deadline = time.monotonic() + END_SECONDS
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([descriptor], [], [], deadline - time.monotonic())
    finally:
        os.close(descriptor)
    if not ready and is_held(directory):
        raise DataDirectoryError(
            message=f"supervisor {pid} has not ended within {END_SECONDS:.0f} s; "
            "'planaria up --take-over' kills it and starts another one"
        )


def status(data_dir: DataDir = None, as_json: AsJson = False) -> int:
    """Show whether a supervisor runs, and how many runs there are of each status."""
    from .discovery import find_directory
    from .observation import find_supervisor_facts, observe

    directory = find_directory(data_dir)
    with observe(data_dir) as observer:
        supervisor = find_supervisor_facts(observer)
        counts = observer.count_runs()
    if as_json:
        write_json({"directory": str(directory), "supervisor": supervisor, "runs": counts})
        return EXIT_DONE
    _print_status(directory, supervisor, counts)
    return EXIT_DONE


def _print_status(
    directory: Path, supervisor: dict[str, Any] | None, counts: dict[str, int]
) -> None:
    print(f"directory   {directory}")
    if supervisor is None:
        print("supervisor  none runs; 'planaria up' starts one")
    elif not supervisor["isAnswering"]:
        from .observation import describe_silence

        print(f"supervisor  {describe_silence(supervisor['pid'])}")
    else:
        kind = "ends with its last client" if supervisor.get("isEphemeral") else "stays"
        stopping = ", is stopping" if supervisor["isStopping"] else ""
        print(
            f"supervisor  pid {supervisor['pid']}, planaria {supervisor['version']}, {kind}, "
            f"{supervisor['processes']} processes{stopping}"
        )
    listed = ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
    print(f"runs        {listed}")


def verify(
    pages: Annotated[
        bool, typer.Option("--pages", help="Check every page of the database too; takes longer.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Make manifests of outer loops anew from the events; no supervisor may run.",
        ),
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Check everything in the data directory against its events; code 6 if something is wrong."""
    from .observation import check_exists

    asked = {"--pages": pages, "--repair": repair, "--json": as_json}
    flags = [flag for flag, is_asked in asked.items() if is_asked]
    return _run_reader("verify", check_exists(data_dir), flags)


def doctor(data_dir: DataDir = None, as_json: AsJson = False) -> int:
    """Look at this machine and the data directory, and say what is wrong with them."""
    from .discovery import find_directory

    return _run_reader("doctor", find_directory(data_dir), ["--json"] if as_json else [])


def _run_reader(command: str, directory: Path, flags: list[str]) -> int:
    """Runs a command of supervisor/, which writes its answer itself."""
    from .discovery import supervisor_command

    sys.stdout.flush()
    ended = subprocess.run(supervisor_command(command, *flags, "--", str(directory)), check=False)
    if ended.returncode < 0:
        note(f"planaria: {command} was ended by signal {-ended.returncode}")
        return 128 - ended.returncode
    return ended.returncode
