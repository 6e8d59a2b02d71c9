"""The `planaria` command: its list of commands, and the one place where errors become codes.

Each command imports what it needs when it runs, so that `planaria --help` loads neither zmq nor
pydantic nor user code (test_cli_help.py).
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from planaria.protocol.errors import EXIT_USAGE

from . import (
    commands_check,
    commands_decisions,
    commands_history,
    commands_looking,
    commands_runs,
    commands_storage,
    commands_supervisor,
)
from .command_line import EXIT_BROKEN_PIPE, report_error, write_json

_RUN = "Runs"
_DECIDE = "Decisions"
_LOOK = "Looking"
_DIRECTORY = "Supervisor and data directory"
COMMANDS = (
    (commands_runs.run, _RUN),
    (commands_check.check, _RUN),
    (commands_runs.resume, _RUN),
    (commands_history.retry, _RUN),
    (commands_history.fork, _RUN),
    (commands_runs.wait, _RUN),
    (commands_runs.result, _RUN),
    (commands_runs.cancel, _RUN),
    (commands_decisions.approve, _DECIDE),
    (commands_decisions.reject, _DECIDE),
    (commands_decisions.signal, _DECIDE),
    (commands_decisions.resolve, _DECIDE),
    (commands_decisions.pause, _DECIDE),
    (commands_decisions.unpause, _DECIDE),
    (commands_decisions.approvals, _DECIDE),
    (commands_decisions.effects, _DECIDE),
    (commands_looking.runs, _LOOK),
    (commands_looking.show, _LOOK),
    (commands_history.replay, _LOOK),
    (commands_looking.events, _LOOK),
    (commands_looking.logs, _LOOK),
    (commands_looking.ps, _LOOK),
    (commands_supervisor.up, _DIRECTORY),
    (commands_supervisor.down, _DIRECTORY),
    (commands_supervisor.status, _DIRECTORY),
    (commands_supervisor.verify, _DIRECTORY),
    (commands_supervisor.doctor, _DIRECTORY),
    (commands_storage.backup, _DIRECTORY),
    (commands_storage.restore, _DIRECTORY),
    (commands_storage.prune, _DIRECTORY),
)
HELP = (
    "Run LLM-agent workflows as supervised processes that survive kill -9.\n\n"
    "Exit codes: 0 done, 1 the run failed, 2 usage or input, 3 not found, 4 refused or conflict, "
    "5 waiting for a person, 6 data directory unusable or in use, 70 an unexpected fault, "
    "74 I/O error at a commit, 130 Ctrl-C."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name and returns its exit code; never raises."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    if sys.platform != "linux":
        sys.stderr.write("planaria runs on Linux only: it stands on pidfds and subreapers\n")
        return EXIT_USAGE
    # The root of all that the parser raises; the library has it under different names.
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    try:
        code = make_app()(args=words, prog_name="planaria", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.Exit as ended:
        return int(ended.exit_code)
    except typer.Abort:
        return report_error(KeyboardInterrupt(), as_json=as_json)
    except usage_error as error:
        return _refuse_usage(error, as_json)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        # rich turns a broken pipe into SystemExit.
        if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
            # Who reads has seen enough; nothing may be flushed into the pipe at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return EXIT_BROKEN_PIPE
        return report_error(error, as_json=as_json)


def make_app() -> typer.Typer:
    """Returns the command with all of its commands."""
    app = typer.Typer(
        name="planaria",
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=False)(_describe)
    for function, panel in COMMANDS:
        app.command(function.__name__, rich_help_panel=panel)(function)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"planaria {version('planaria')}")
        raise typer.Exit


def _describe(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def _refuse_usage(error: BaseException, as_json: bool) -> int:
    message = getattr(error, "format_message", lambda: str(error))()
    if not message:
        return EXIT_USAGE  # no command was named: the help has been printed
    if as_json:
        write_json({"error": {"class": "UsageError", "message": message}})
    else:
        command = getattr(getattr(error, "ctx", None), "command_path", "planaria")
        sys.stderr.write(f"planaria: {message}\nTry '{command} --help'.\n")
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
