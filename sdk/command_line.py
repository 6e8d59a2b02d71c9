"""What every command shares: its options, what it writes, and how it says that it failed.

On stdout stands the answer alone, with `--json` one document or one a line; everything else goes
to stderr.
"""

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from planaria.protocol.errors import (
    EXIT_SIGINT,
    PlanariaError,
    UsageError,
    describe_error,
)

EXIT_FAULT = 70  # EX_SOFTWARE of sysexits.h: a fault of ours
EXIT_BROKEN_PIPE = 141  # as a shell shows it: 128 + SIGPIPE
DEBUG_VARIABLE = "PLANARIA_DEBUG"
INPUT_BYTES_MAX = 64 << 20  # as a blob

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="The data directory; default: PLANARIA_DATA_DIR, or .little-workflow here.",
        show_default=False,
        readable=False,  # else the parser refuses it as usage; it is the directory's fault: code 6
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON on stdout, and nothing else.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run.", show_default=False)]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="path.py:name, module:name, or an LWIR file (.json, .yaml).",
        show_default=False,
    ),
]
Module = Annotated[
    Path | None,
    typer.Option(
        "--module",
        help="The Python file with the tools and models of an LWIR file.",
        show_default=False,
    ),
]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
Detach = Annotated[
    bool, typer.Option("--detach", help="Start it, under a supervisor that stays, and return.")
]


class Stopped(Exception):
    """Ctrl-C while a command waited: the run is left open, `hint` says how it goes on."""

    def __init__(self, run_id: str | None, text: str) -> None:
        self.run_id = run_id
        super().__init__(text)


def write_json(value: object) -> None:
    """Writes one JSON document as one line on stdout."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Writes a line for people on stderr."""
    sys.stderr.write(text + "\n")


def report_error(error: BaseException, *, as_json: bool) -> int:
    """Says what went wrong, without a traceback, and returns the exit code."""
    if os.environ.get(DEBUG_VARIABLE):
        import traceback

        traceback.print_exception(error)
    match error:
        case PlanariaError():
            shown, code = describe_error(error), error.exit_code
        case Stopped():
            shown = {"class": "Stopped", "message": str(error), "run_id": error.run_id}
            code = EXIT_SIGINT
        case KeyboardInterrupt():
            shown, code = {"class": "Stopped", "message": "stopped by Ctrl-C"}, EXIT_SIGINT
        case _:
            text = (
                f"an unexpected fault: {type(error).__name__}: {error}. "
                f"{DEBUG_VARIABLE}=1 shows where; what is recorded is not affected"
            )
            shown, code = {"class": type(error).__name__, "message": text}, EXIT_FAULT
    if as_json:
        write_json({"error": shown})
    else:
        note(f"planaria: {shown['message']}")
    return code


def read_input(text: str | None, option: str = "--input") -> Any:
    """Returns the JSON value that an option gives: itself, `@file`, or `-` for stdin.

    Raises:
        UsageError: it can't be read, or is no JSON; names the place.
    """
    if text is None:
        return None
    what, given = option, text
    try:
        if text == "-":
            what = f"{option} from stdin"
            given = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1).decode()
        elif text.startswith("@"):
            what = f"{option} file {text[1:]!r}"
            given = Path(text[1:]).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(message=f"{what} can't be read: {error}") from error
    if len(given) > INPUT_BYTES_MAX:
        raise UsageError(message=f"{what} has more than {INPUT_BYTES_MAX >> 20} MiB")
    try:
        return json.loads(given, parse_constant=_refuse_constant)
    except ValueError as error:
        raise UsageError(
            message=f"{what} is no JSON: {error}. Text needs quotes of its own: {option} '\"text\"'"
        ) from error
    except RecursionError as error:
        raise UsageError(message=f"{what} is nested too deeply") from error


def carry_on_command(verb: str, run_id: str, data_dir: Path | None) -> str:
    """Returns the command line that goes on with a run, ready to be pasted."""
    words = ["planaria", verb, run_id]
    if data_dir is not None:
        words += ["--data-dir", str(data_dir)]
    return shlex.join(words)


@contextlib.contextmanager
def leaving_open(run_id: str, data_dir: Path | None) -> Iterator[None]:
    """Turns Ctrl-C into an error that says that the run is left open, and how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        command = carry_on_command("resume", run_id, data_dir)
        raise Stopped(
            run_id,
            f"stopped; run {run_id!r} is left open and keeps all that is recorded. "
            f"{command!r} carries it on",
        ) from None


@contextlib.contextmanager
def stdout_kept() -> Iterator[None]:
    """Sends to stderr what user code prints while it is loaded: stdout is for the answer."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")
