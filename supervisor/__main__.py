"""`python -m planaria.supervisor …`: a supervisor of a data directory, and what reads its log.

The sdk launches these by name, so that nothing but this folder ever opens the database. `show`,
`events`, `runs` and `counts` write JSON, an error too: {"error": its wire form}.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from planaria.protocol.directories import refuse_unusable
from planaria.protocol.errors import (
    EXIT_DATA_DIRECTORY,
    PlanariaError,
    describe_error,
    error_to_wire,
)
from planaria.protocol.limits import HEARTBEAT_TIMEOUT_MS


def main() -> int:
    """Runs the command that the arguments name and returns its exit code."""
    arguments = _make_parser().parse_args()
    match arguments.command:
        case "serve":
            return _serve(arguments)
        case "verify":
            return _verify(arguments)
        case "doctor":
            return _examine(arguments.directory, arguments.json)
        case "backup" | "restore" | "prune":
            from .storage_commands import run_command

            return run_command(arguments)
    return _read(arguments)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m planaria.supervisor")
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text)
        command.add_argument("directory", type=Path)
        return command

    serve = add("serve", "run the supervisor of a data directory")
    serve.add_argument("--ephemeral", action="store_true", help="end with the last client")
    serve.add_argument("--children", type=int, default=None, help="most child processes at once")
    serve.add_argument("--take-over", action="store_true", help="end the one that holds the lock")
    serve.add_argument("--log", action="store_true", help="log to a file in the directory")
    # For tests: nobody has a use for another time, and help doesn't show it.
    serve.add_argument(
        "--heartbeat-timeout-ms", type=int, default=HEARTBEAT_TIMEOUT_MS, help=argparse.SUPPRESS
    )
    serve.add_argument("--announce", action="store_true", help="print its facts when it is ready")
    verify = add("verify", "check everything in the directory against its events")
    verify.add_argument("--json", action="store_true")
    verify.add_argument("--pages", action="store_true", help="check every page of the database too")
    verify.add_argument(
        "--repair", action="store_true", help="make wrong manifests of outer loops anew from events"
    )
    add("doctor", "look at the machine and the directory").add_argument(
        "--json", action="store_true"
    )
    backup = add("backup", "copy all of the directory, and verify the copy")
    backup.add_argument("target", type=Path)
    restore = add("restore", "make the directory from a backup")
    restore.add_argument("backup", type=Path)
    restore.add_argument("--replace", action="store_true", help="in the present one's place")
    prune = add("prune", "delete runs that ended long ago")
    prune.add_argument("--older-than-ms", type=int, required=True)
    prune.add_argument("--dry-run", action="store_true", help="only say what would go")
    for command in (backup, restore, prune):
        command.add_argument("--json", action="store_true")
    add("show", "one run").add_argument("run_id")
    replay = add("replay", "one run as it was at one of its events")
    replay.add_argument("run_id")
    replay.add_argument("--at", type=int, default=None)
    events = add("events", "the events of a run, one a line")
    events.add_argument("run_id")
    events.add_argument("--after", type=int, default=0)
    runs = add("runs", "the newest runs")
    runs.add_argument("--limit", type=int, default=50)
    runs.add_argument("--status", default=None)
    add("blocks", "what waits for people").add_argument("run_id", nargs="?", default=None)
    add("counts", "how many runs there are of each status")
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    # Until the loop listens a signal just ends the process: nothing has begun, and a traceback
    # would tell nobody anything.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    from .main import run_from_command_line

    directory: Path = arguments.directory
    if arguments.log:
        from .supervisor_log import log_to_directory

        log_to_directory(directory)
    if arguments.take_over:
        from .takeover import end_holder

        try:
            end_holder(directory)
        except PlanariaError as error:
            sys.stderr.write(f"planaria: {error}\n")
            return error.exit_code
    return run_from_command_line(
        directory,
        is_ephemeral=arguments.ephemeral,
        children_max=arguments.children,
        heartbeat_timeout_ms=arguments.heartbeat_timeout_ms,
        on_ready=_announce if arguments.announce else None,
    )


def _announce(facts: dict[str, Any]) -> None:
    _write(facts)


def _verify(arguments: argparse.Namespace) -> int:
    from .verify import verify_directory

    directory, as_json = arguments.directory, arguments.json
    try:
        report = verify_directory(
            directory, integrity_check=arguments.pages, with_repair=arguments.repair
        )
    except PlanariaError as error:
        return _refuse(error, as_json)
    except OSError as error:
        return _refuse(refuse_unusable(str(directory), error), as_json)
    counts = {
        "directory": str(directory),
        "isSound": report.is_sound,
        "events": report.events,
        "runs": report.runs,
        "blobs": report.blobs,
        "artifacts": report.artifacts,
        "outerLoops": report.loops,
        "unreferencedBlobs": report.unreferenced,
    }
    if as_json:
        violations = [
            {"invariant": v.invariant, "runId": v.run_id, "sequence": v.sequence, "text": v.message}
            for v in report.violations
        ]
        listed = {"violations": violations, "findings": list(report.findings)}
        _write({**counts, **listed, "repaired": list(report.repaired)})
    else:
        for line in report.repaired:
            print(f"repaired: {line}")
        for line in report.lines():
            print(line)
        found = len(report.violations) + len(report.findings)
        print(
            f"{report.events} events of {report.runs} runs, {report.blobs} blobs, "
            f"{report.artifacts} artifacts, {report.loops} outer loops: "
            + (f"{found} finding(s)" if found else "everything is as it was written")
        )
    return 0 if report.is_sound else EXIT_DATA_DIRECTORY


def _examine(directory: Path, as_json: bool) -> int:
    from .doctor import PROBLEM, examine

    findings = examine(directory)
    if as_json:
        listed = [{"name": f.name, "status": f.status, "text": f.text, **f.facts} for f in findings]
        _write({"directory": str(directory), "checks": listed})
    else:
        for finding in findings:
            print(f"{finding.status:8} {finding.name:12} {finding.text}")
    return EXIT_DATA_DIRECTORY if any(f.status == PROBLEM for f in findings) else 0


def _read(arguments: argparse.Namespace) -> int:
    from . import offline

    try:
        with offline.open_log(arguments.directory) as log:
            match arguments.command:
                case "show":
                    _write(log.show_run(arguments.run_id))
                case "replay":
                    _write(log.replay_run(arguments.run_id, arguments.at))
                case "events":
                    for event in log.read_events(arguments.run_id, arguments.after):
                        _write(event)
                case "runs":
                    _write(log.list_runs(arguments.limit, arguments.status))
                case "blocks":
                    _write(log.list_blocks(arguments.run_id))
                case "counts":
                    _write(log.count_runs())
    except PlanariaError as error:
        _write({"error": error_to_wire(error)})
        return error.exit_code
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing may be flushed into it at exit
    except OSError as error:
        refusal = refuse_unusable(str(arguments.directory), error)
        _write({"error": error_to_wire(refusal)})
        return refusal.exit_code
    return 0


def _refuse(error: PlanariaError, as_json: bool) -> int:
    if as_json:
        _write({"error": describe_error(error)})
    else:
        sys.stderr.write(f"planaria: {error}\n")
    return error.exit_code


def _write(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=_write_bytes) + "\n")
    sys.stdout.flush()


def _write_bytes(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"a {type(value).__name__} has no JSON form")


if __name__ == "__main__":
    sys.exit(main())
