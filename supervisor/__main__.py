"""`python -m planaria.supervisor serve DIRECTORY`: a supervisor, and tools that read its log."""

import argparse
import sys
from pathlib import Path


def main() -> int:
    """Runs the command that the arguments name and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m planaria.supervisor")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run the supervisor of a data directory")
    serve.add_argument("directory", type=Path)
    serve.add_argument("--ephemeral", action="store_true", help="end with the last client")
    serve.add_argument("--children", type=int, default=None, help="most child processes at once")
    arguments = parser.parse_args()
    from .main import run_from_command_line

    return run_from_command_line(
        arguments.directory,
        is_ephemeral=arguments.ephemeral,
        children_max=arguments.children,
    )


if __name__ == "__main__":
    sys.exit(main())
