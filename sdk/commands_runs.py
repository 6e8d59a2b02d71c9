"""Commands that carry a run on: run, resume, wait, result, cancel."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planaria.protocol.errors import (
    EXIT_CONFLICT,
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_RUN_FAILED,
    PlanariaError,
    SupervisorUnavailableError,
    UsageError,
    WaitTimeoutError,
)
from planaria.protocol.ids import check_id

from .command_line import (
    AsJson,
    DataDir,
    Detach,
    Module,
    Quiet,
    RunId,
    Target,
    carry_on_command,
    leaving_open,
    note,
    read_input,
    stdout_kept,
    write_json,
)

if TYPE_CHECKING:
    from .client import Client
    from .results import RunResult

OPEN_STATUSES = ("admitted", "running", "interrupted")


UntilBlocked = Annotated[
    bool,
    typer.Option(
        "--until-blocked",
        help="Return (code 5) when only others can move the run on; else an approval or a "
        "signal is waited for, an effect in doubt never.",
    ),
]
OnInterrupted = Annotated[
    str,
    typer.Option(
        "--on-interrupted",
        metavar="hold|fail|DURATION",
        help="What an effect of unknown outcome does: hold the run, fail it, or fail it then.",
    ),
]


def read_seconds(text: str) -> float:
    """Returns the seconds that an option says: a number of them, or a duration like `5m`."""
    from planaria.protocol.durations import parse_duration

    try:
        return float(text) if text.replace(".", "", 1).isdecimal() else parse_duration(text) / 1000
    except ValueError as error:
        raise typer.BadParameter(f"{error}, or a number of seconds") from error


def run(
    target: Target,
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="The input; default: null."),
    ] = None,
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", help="An id of your own; the same one carries on or reads back."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            parser=read_seconds, metavar="DURATION", help="The run's deadline (30, 90s, 5m)."
        ),
    ] = None,
    wait_timeout: Annotated[
        float | None,
        typer.Option(
            parser=read_seconds, metavar="DURATION", help="Stop waiting then; the run goes on."
        ),
    ] = None,
    detach: Detach = False,
    until_blocked: UntilBlocked = False,
    on_interrupted: OnInterrupted = "hold",
    module: Module = None,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Run a workflow to its end; with the id of an open run, carry that one on."""
    from .client import Client
    from .definition import load_target
    from .discovery import find_directory
    from .providers import check_packages
    from .requests import make_run_id

    is_named = run_id is not None
    patience: Any = on_interrupted
    if patience not in ("hold", "fail"):
        patience = read_seconds(on_interrupted)
    run_id = make_run_id() if run_id is None else check_id(run_id, "run id")
    value = read_input(input)
    directory = find_directory(data_dir)
    try:
        with stdout_kept():
            workflow = load_target(target, str(module) if module else None)
        workflow.dump_input(value)  # refused before anything is made or started
    except UsageError as error:
        hint = _find_open(run_id, data_dir) if is_named else None
        if hint is None:
            raise
        raise error.with_hint(hint) from error
    check_packages(workflow)
    if detach:
        keep_supervisor(directory)
    with leaving_open(run_id, data_dir), Client(directory) as client:
        client.start(workflow, value, run_id=run_id, timeout=timeout, on_interrupted=patience)
        if detach:
            return say_detached(client, run_id, data_dir, as_json)
        return finish(
            client,
            run_id,
            wait_timeout,
            quiet=quiet,
            as_json=as_json,
            until_blocked=until_blocked,
        )


def resume(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Ids of runs; default: every open run."),
    ] = None,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Carry open runs on, with a supervisor if there is none, and wait until they end."""
    from .client import Client
    from .observation import check_exists

    directory = check_exists(data_dir)
    if runs is not None and len(runs) == 1:
        with leaving_open(runs[0], data_dir), Client(directory) as client:
            client.status(runs[0])
            return finish(client, runs[0], None, quiet=quiet, as_json=as_json)
    with Client(directory) as client:
        wanted = runs or [
            row["runId"]
            for status in OPEN_STATUSES
            for row in client.runs(limit=1_000, status=status)
        ]
        for run_id in wanted:
            client.status(run_id)  # an unknown one is refused before any is waited for
        outcomes: list[dict[str, Any]] = []
        for run_id in wanted:
            with leaving_open(run_id, data_dir):
                outcome = client.ask("wait_run", runId=run_id)
            outcomes.append(outcome)
            if not as_json:
                print(f"{run_id} {outcome['status']}")
    if as_json:
        write_json({"runs": outcomes})
    elif not wanted:
        print("no run is open")
    return _worst_code({outcome["status"] for outcome in outcomes})


def wait(
    run_id: RunId,
    timeout: Annotated[
        float | None,
        typer.Option(
            parser=read_seconds, metavar="DURATION", help="Stop waiting then; the run goes on."
        ),
    ] = None,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Wait until a run has ended and write its output."""
    from .client import Client
    from .observation import check_exists

    directory = check_exists(data_dir)
    with leaving_open(run_id, data_dir), Client(directory) as client:
        client.status(run_id)
        return finish(client, run_id, timeout, quiet=quiet, as_json=as_json)


def result(run_id: RunId, data_dir: DataDir = None, as_json: AsJson = False) -> int:
    """Write the output of a run that has ended."""
    from .client import Client
    from .discovery import find_directory
    from .observation import observe

    with observe(data_dir) as observer:
        shown = observer.status(run_id)
    if shown["status"] in ("admitted", "running"):
        raise WaitTimeoutError(run_id=run_id, seconds=0)
    # Reads blobs only: it asks no supervisor.
    found = Client(find_directory(data_dir), start_if_missing=False).read_outcome(shown)
    return _write_result(found, as_json)


def cancel(
    run_id: RunId,
    reason: Annotated[str | None, typer.Option("--reason", help="Recorded with the run.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the run has ended.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Cancel a run: no new step starts, and what runs is given a grace time."""
    from .client import Client
    from .discovery import find_supervisor
    from .observation import check_exists

    directory = check_exists(data_dir)
    with leaving_open(run_id, data_dir):
        connection = find_supervisor(directory)
        if connection is not None:
            connection.close()
        with Client(directory) as client:
            answer = client.cancel(run_id, reason=reason)
            if wait or connection is None:  # a supervisor of our own ends with us
                answer["status"] = client.ask("wait_run", runId=run_id)["status"]
    if as_json:
        write_json(answer)
    elif answer["alreadyEnded"]:
        print(f"run {run_id} had ended already: {answer['status']}")
    else:
        print(f"run {run_id}: cancellation is recorded; it is {answer['status']} now")
    refused = answer["alreadyEnded"] and answer["status"] != "cancelled"
    return EXIT_CONFLICT if refused else EXIT_DONE


def finish(
    client: "Client",
    run_id: str,
    timeout: float | None,
    *,
    quiet: bool,
    as_json: bool,
    until_blocked: bool = False,
) -> int:
    """Waits with progress, writes the result and returns the exit code; raises as `Client.wait`."""
    from .following import follow_until, left_until
    from .progress import Progress

    deadline = None if timeout is None else time.monotonic() + timeout
    is_terminal = sys.stderr.isatty()
    silent = quiet or (as_json and not is_terminal)
    try:
        with Progress(run_id, is_live=is_terminal, is_silent=silent) as progress:
            if not silent:
                follow_until(client, run_id, progress, deadline, until_blocked)
            found = client.wait(run_id, timeout=left_until(deadline), until_blocked=until_blocked)
    except (SupervisorUnavailableError, WaitTimeoutError) as error:
        if timeout is None or left_until(deadline):
            raise
        raise WaitTimeoutError(run_id=run_id, seconds=timeout) from error
    return _write_result(found, as_json)


def _find_open(run_id: str, data_dir: Path | None) -> str | None:
    """Returns how an open run goes on whose definition can't be loaded now; None of another one."""
    from .observation import observe

    try:
        with observe(data_dir) as observer:
            shown = observer.status(run_id)
    except PlanariaError:
        return None
    if shown["status"] not in OPEN_STATUSES:
        return None
    command = carry_on_command("resume", run_id, data_dir)
    return f"Run {run_id!r} is open: {command!r} goes on with the code that it was admitted with"


def _write_result(found: "RunResult", as_json: bool) -> int:
    from .display import format_usage

    if as_json:
        write_json(
            {
                "runId": found.run_id,
                "status": found.status,
                "output": found.output,
                "usage": found.usage,
                "costUsd": found.cost_usd,
            }
        )
        return EXIT_DONE
    text = found.output
    if not isinstance(text, str):
        text = json.dumps(text, ensure_ascii=False, indent=2)
    sys.stdout.write(text.encode(errors="backslashreplace").decode() + "\n")
    if found.usage and sys.stderr.isatty():
        note(f"run {found.run_id}: {format_usage(found.usage, found.cost_usd)}")
    return EXIT_DONE


def keep_supervisor(directory: Path) -> None:
    """Starts a supervisor that stays, if none runs."""
    from .discovery import find_supervisor, start_supervisor

    connection = find_supervisor(directory)
    if connection is None:
        connection = start_supervisor(directory, is_ephemeral=False)
        note(
            f"planaria: a supervisor for {str(directory)!r} was started and stays; "
            "'planaria down' ends it"
        )
    connection.close()


def say_detached(client: "Client", run_id: str, data_dir: Path | None, as_json: bool) -> int:
    """Writes how a run stands that isn't waited for, and returns the exit code."""
    facts = client.ping()
    if facts.get("isEphemeral"):
        note(
            f"planaria: supervisor {facts['pid']} was started by another command and ends with "
            "it; 'planaria up' or 'planaria resume' carries the run on then"
        )
    if as_json:
        write_json({"runId": run_id, "status": client.status(run_id)["status"]})
    else:
        print(run_id)
        if sys.stderr.isatty():
            note(f"{carry_on_command('wait', run_id, data_dir)!r} waits for its result")
    return EXIT_DONE


def _worst_code(statuses: set[str]) -> int:
    if statuses & {"failed", "cancelled"}:
        return EXIT_RUN_FAILED
    return EXIT_INTERRUPTED if "interrupted" in statuses else EXIT_DONE
