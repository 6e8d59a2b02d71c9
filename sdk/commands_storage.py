"""Commands about what a data directory holds as a whole: backup, restore, prune."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from planaria.protocol.errors import UsageError

from .command_line import AsJson, DataDir, note

BackupFolder = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The folder of a backup.", show_default=False),
]


def backup(target: BackupFolder, data_dir: DataDir = None, as_json: AsJson = False) -> int:
    """Copy everything into a new or empty folder, also while runs go on, and verify the copy."""
    from .observation import check_exists

    return _run("backup", as_json, check_exists(data_dir), target.absolute())


def restore(
    source: BackupFolder,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Put it in the place of the present data directory."),
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Make the data directory from a backup, after every file of it has been checked."""
    from .discovery import find_directory

    flags = ["--replace"] if replace else []
    return _run("restore", as_json, *flags, find_directory(data_dir), source.absolute())


def prune(
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="How long ago a run has ended, like 30d.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go; changes nothing.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Delete runs that ended long ago, each with its sub-runs, and what they alone have named."""
    from planaria.protocol.durations import parse_duration

    from .observation import check_exists

    try:
        older_than_ms = parse_duration(older_than)
    except ValueError as error:
        raise UsageError(message=f"--older-than: {error}") from error
    flags = ["--older-than-ms", str(older_than_ms), *(["--dry-run"] if dry_run else [])]
    return _run("prune", as_json, *flags, check_exists(data_dir))


def _run(command: str, as_json: bool, *arguments: str | Path) -> int:
    """Runs a command of supervisor/, which writes its answer itself; returns its exit code.

    Flags first: behind `--` a folder may be called what it likes.
    """
    from .discovery import supervisor_command

    flags = [word for word in arguments if isinstance(word, str)]
    folders = [os.fspath(folder) for folder in arguments if isinstance(folder, Path)]
    as_flag = ["--json"] if as_json else []
    sys.stdout.flush()
    words = supervisor_command(command, *flags, *as_flag, "--", *folders)
    ended = subprocess.run(words, check=False)
    if ended.returncode < 0:
        note(f"planaria: {command} was ended by signal {-ended.returncode}")
        return 128 - ended.returncode
    return ended.returncode
