"""Commands that decide something for a run: approvals, signals, pauses, effects in doubt."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planaria.protocol.errors import EXIT_DONE, UsageError

from .command_line import AsJson, DataDir, Quiet, RunId, leaving_open, note, read_input, write_json
from .commands_runs import finish

if TYPE_CHECKING:
    from .client import Client
    from .decisions import Resolution

By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who decides; default: your login.")
]
Note = Annotated[str | None, typer.Option("--note", help="Recorded with the decision.")]
Approval = Annotated[
    str | None,
    typer.Argument(
        metavar="[APPROVAL]",
        help="Its id; may be left out if only one is open.",
        show_default=False,
    ),
]
Detach = Annotated[
    bool,
    typer.Option("--detach", help="Without a supervisor: record it, and let nothing run now."),
]
Act = Callable[["Client"], dict[str, Any]]


def approve(
    run_id: RunId,
    approval: Approval = None,
    by: By = None,
    note: Note = None,
    detach: Detach = False,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Approve what a run asks; 'planaria approvals' lists what is asked."""

    def act(client: "Client") -> dict[str, Any]:
        return client.approve(run_id, _find_approval(client, run_id, approval), by=by, note=note)

    return _carry_out(run_id, act, _tell_decision, data_dir, as_json, quiet, detach)


def reject(
    run_id: RunId,
    approval: Approval = None,
    by: By = None,
    note: Note = None,
    detach: Detach = False,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Reject what a run asks."""

    def act(client: "Client") -> dict[str, Any]:
        return client.reject(run_id, _find_approval(client, run_id, approval), by=by, note=note)

    return _carry_out(run_id, act, _tell_decision, data_dir, as_json, quiet, detach)


def signal(
    run_id: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal's name.")],
    data: Annotated[
        str | None, typer.Option("--data", metavar="JSON|@FILE|-", help="Its data; default: null.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option("--id", help="The same id twice is one signal; default: a new one."),
    ] = None,
    by: By = None,
    detach: Detach = False,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Send a run a signal; one that comes before its wait is kept for it."""
    value = read_input(data, "--data")

    def act(client: "Client") -> dict[str, Any]:
        return client.signal(run_id, name, value, signal_id=id, by=by)

    def tell(answer: dict[str, Any]) -> str:
        again = " (it was there already)" if answer["isRepeated"] else ""
        return f"run {run_id}: signal {name!r} is recorded as {answer['signalId']}{again}"

    return _carry_out(run_id, act, tell, data_dir, as_json, quiet, detach)


def pause(run_id: RunId, by: By = None, data_dir: DataDir = None, as_json: AsJson = False) -> int:
    """Let a run start nothing more; what runs ends as usual."""
    return _carry_out(
        run_id,
        lambda client: client.pause(run_id, by=by),
        lambda answer: f"run {run_id} is paused; 'planaria unpause {run_id}' lets it go on",
        data_dir,
        as_json,
        is_quiet=True,
        is_detached=True,
    )


def unpause(
    run_id: RunId,
    by: By = None,
    detach: Detach = False,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Let a paused run go on."""
    return _carry_out(
        run_id,
        lambda client: client.unpause(run_id, by=by),
        lambda answer: f"run {run_id} goes on",
        data_dir,
        as_json,
        quiet,
        detach,
    )


def resolve(
    run_id: RunId,
    calls: Annotated[
        list[str],
        typer.Argument(metavar="CALL...", help="Ids of calls; 'planaria effects' lists them."),
    ],
    succeeded: Annotated[
        str | None,
        typer.Option("--succeeded", metavar="JSON|@FILE|-", help="It happened, with this result."),
    ] = None,
    failed: Annotated[
        str | None, typer.Option("--failed", metavar="MESSAGE", help="It was refused.")
    ] = None,
    never_happened: Annotated[
        bool, typer.Option("--never-happened", help="It never happened: it is performed (again).")
    ] = False,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Nobody will know: the run fails.")
    ] = False,
    by: By = None,
    detach: Detach = False,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Say what became of effects whose outcome is unknown; the run then goes on by itself."""
    answer = _read_resolution(succeeded, failed, never_happened, give_up)

    def act(client: "Client") -> dict[str, Any]:
        return client.resolve(run_id, dict.fromkeys(calls, answer), by=by)

    def tell(taken: dict[str, Any]) -> str:
        again = " (it stood there already)" if taken["isRepeated"] else ""
        return f"run {run_id}: {len(calls)} answer(s) recorded as {answer.kind}{again}"

    return _carry_out(run_id, act, tell, data_dir, as_json, quiet, detach)


def effects(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Only of this run.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """List the effects whose outcome is unknown, with what is known of each."""
    return _list("effect", run_id, data_dir, as_json)


def approvals(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Only of this run.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """List the approvals that are asked for, with what each shows."""
    return _list("approval", run_id, data_dir, as_json)


def _list(kind: str, run_id: str | None, data_dir: Path | None, as_json: bool) -> int:
    from .display import show_blocks
    from .observation import observe

    with observe(data_dir) as observer:
        listed = [block for block in observer.blocks(run_id) if block["kind"] == kind]
    if as_json:
        write_json(listed)
    else:
        show_blocks(kind, listed)
    return EXIT_DONE


def _carry_out(
    run_id: str,
    act: Act,
    tell: Callable[[dict[str, Any]], str],
    data_dir: Path | None,
    as_json: bool,
    is_quiet: bool,
    is_detached: bool,
) -> int:
    """Records a decision; without a supervisor that lives on, the run is driven here then."""
    from .client import Client
    from .discovery import find_supervisor
    from .observation import check_exists

    directory = check_exists(data_dir)
    connection = find_supervisor(directory)
    if connection is not None:
        connection.close()
    with leaving_open(run_id, data_dir), Client(directory) as client:
        answer = act(client)
        if not as_json:
            print(tell(answer))
        if connection is None and not is_detached:
            if not client.status(run_id)["endedAt"]:
                return finish(
                    client, run_id, None, quiet=is_quiet, as_json=as_json, until_blocked=True
                )
        elif connection is None and not as_json:
            note(f"no supervisor runs: 'planaria resume {run_id}' lets the run go on")
    if as_json:
        write_json(answer)
    return EXIT_DONE


def _find_approval(client: "Client", run_id: str, given: str | None) -> str:
    if given is not None:
        return given
    listed = [b["approvalId"] for b in client.blocks(run_id) if b["kind"] == "approval"]
    if len(listed) == 1:
        return str(listed[0])
    shown = ", ".join(listed) or "none"
    raise UsageError(message=f"run {run_id!r} has these approvals open: {shown}; name one")


def _tell_decision(answer: dict[str, Any]) -> str:
    by = f" by {answer['by']}" if answer.get("by") else ""
    return f"run {answer['runId']}: {answer['approvalId']} is {answer['decision']}{by}"


def _read_resolution(
    succeeded: str | None, failed: str | None, never_happened: bool, give_up: bool
) -> "Resolution":
    from .decisions import Resolution

    given = [succeeded is not None, failed is not None, never_happened, give_up]
    if sum(given) != 1:
        raise UsageError(
            message="give one of --succeeded JSON, --failed MESSAGE, --never-happened, --give-up"
        )
    if succeeded is not None:
        return Resolution.succeeded(read_input(succeeded, "--succeeded"))
    if failed is not None:
        return Resolution.failed(failed)
    return Resolution.never_happened() if never_happened else Resolution.given_up()
