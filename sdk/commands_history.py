"""Commands that go back in a run's history: replay, retry, fork."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planaria.protocol.errors import EXIT_DONE, UsageError
from planaria.protocol.ids import check_id

from .command_line import (
    AsJson,
    DataDir,
    Detach,
    Module,
    Quiet,
    RunId,
    leaving_open,
    read_input,
    stdout_kept,
    write_json,
)
from .commands_runs import finish, keep_supervisor, say_detached

if TYPE_CHECKING:
    from .client import Client

Source = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="current",
        help="'current': the definition as it is now, not as it was recorded.",
    ),
]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who asks; default: your login.")
]
Moved = Annotated[
    str | None,
    typer.Option("--target", metavar="TARGET", help="Where the definition is now; with --source."),
]


def replay(
    run_id: RunId,
    at: Annotated[
        int | None, typer.Option("--at", min=1, metavar="SEQ", help="As it stood at this event.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Show a run as it stood at an event, rebuilt from its log; nothing is called."""
    from .log_reader import read_replay
    from .observation import check_exists

    shown = read_replay(check_exists(data_dir), check_id(run_id, "run id"), at)
    if as_json:
        write_json(shown)
        return EXIT_DONE
    from .display import show_run

    show_run(shown)
    return EXIT_DONE


def retry(
    run_id: RunId,
    reason: Annotated[str | None, typer.Option("--reason", help="Recorded with the run.")] = None,
    by: By = None,
    source: Source = None,
    target: Moved = None,
    module: Module = None,
    detach: Detach = False,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Try the failed step of a run again, in the same run, and what follows it."""
    from .client import Client
    from .observation import check_exists

    _check_source(source, target, module)
    directory = check_exists(data_dir)
    if detach:
        keep_supervisor(directory)
    with leaving_open(run_id, data_dir), Client(directory) as client:
        current = _load_current(client, run_id, source, target, module)
        client.retry(run_id, by=by, reason=reason, **current)
        if detach:
            return say_detached(client, run_id, data_dir, as_json)
        return finish(client, run_id, None, quiet=quiet, as_json=as_json)


def fork(
    run_id: RunId,
    at: Annotated[
        int | None,
        typer.Option("--at", min=1, metavar="SEQ", help="The last event that both share."),
    ] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="Another input."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="SLOT=NAME", help="Another model in a slot; repeatable."),
    ] = None,
    instructions: Annotated[
        str | None, typer.Option("--instructions", metavar="TEXT", help="Other instructions.")
    ] = None,
    output_schema: Annotated[
        Path | None,
        typer.Option("--output-schema", metavar="FILE", help="A JSON Schema of the output."),
    ] = None,
    new_run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="NEW", help="The new run's id.")
    ] = None,
    by: By = None,
    source: Source = None,
    target: Moved = None,
    module: Module = None,
    detach: Detach = False,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Start a run that shares the events of another one up to a point, and goes its own way."""
    from .client import Client
    from .observation import check_exists
    from .requests import make_run_id

    _check_source(source, target, module)
    wanted_id = make_run_id() if new_run_id is None else check_id(new_run_id, "run id")
    changes: dict[str, Any] = {"models": _read_models(model or []), "instructions": instructions}
    if input is not None:
        changes["input"] = read_input(input)
    if output_schema is not None:
        changes["output_schema"] = read_input(f"@{output_schema}", "--output-schema")
    directory = check_exists(data_dir)
    if detach:
        keep_supervisor(directory)
    with leaving_open(wanted_id, data_dir), Client(directory) as client:
        current = _load_current(client, run_id, source, target, module)
        made = client.fork(run_id, at=at, new_run_id=wanted_id, by=by, **changes, **current)
        if detach:
            return say_detached(client, made, data_dir, as_json)
        return finish(client, made, None, quiet=quiet, as_json=as_json)


def _check_source(source: str | None, target: str | None, module: Path | None) -> None:
    if source not in (None, "current"):
        raise UsageError(
            message=f"--source {source!r} is none; there is 'current', and without the option the "
            "recorded one is run"
        )
    if source is None and (target is not None or module is not None):
        raise UsageError(
            message="--target and --module go with --source current: without it the recorded "
            "definition is run"
        )


def _load_current(
    client: "Client",
    run_id: str,
    source: str | None,
    target: str | None,
    module: Path | None,
) -> dict[str, Any]:
    """Returns the definition as it is now, as arguments of the client; {} for the recorded one."""
    if source is None:
        return {}
    from .current_source import load_current

    run = client.status(run_id)
    with stdout_kept():
        current = load_current(run, target, str(module) if module else None)
    return {"workflow": current.workflow, "within": current.within}


def _read_models(pairs: list[str]) -> dict[str, str]:
    models: dict[str, str] = {}
    for pair in pairs:
        slot, separator, name = pair.partition("=")
        if not separator or not slot or not name:
            raise UsageError(
                message=f"--model {pair!r} says no slot and model: write SLOT=NAME, as in "
                "fast=anthropic:claude-haiku-4-5"
            )
        if models.setdefault(slot, name) != name:
            raise UsageError(message=f"--model gives slot {slot!r} two models: leave one out")
    return models
