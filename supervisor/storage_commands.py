"""`python -m planaria.supervisor backup|restore|prune …`: what is said of their outcome."""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from planaria.protocol.directories import refuse_unusable
from planaria.protocol.errors import EXIT_DONE, PlanariaError, describe_error

from .backup import make_backup
from .backup_manifest import BackupManifest
from .faults import Faults
from .prune import PruneReport, prune_directory
from .restore import restore_backup

RUNS_SHOWN = 20  # of a prune, for people; --json lists all


def run_command(arguments: argparse.Namespace) -> int:
    """Runs one of the three commands and returns its exit code."""
    try:
        match arguments.command:
            case "backup":
                shown, lines = _backup(arguments.directory, arguments.target)
            case "restore":
                shown, lines = _restore(arguments)
            case _:
                shown, lines = _prune(arguments)
    except OSError as error:
        return _refuse(refuse_unusable(str(arguments.directory), error), arguments.json)
    except PlanariaError as error:
        return _refuse(error, arguments.json)
    if arguments.json:
        lines = [json.dumps(shown)]
    for line in lines:
        print(line)
    return EXIT_DONE


def _backup(directory: Path, target: Path) -> tuple[dict[str, Any], list[str]]:
    made = make_backup(directory, target, trace=Faults.read().hit)
    shown = {
        "directory": str(directory),
        "backup": str(made.path),
        "events": made.events,
    }
    shown.update({"runs": made.runs, **_describe(made.manifest)})
    lines = [f"skipped {path!r}: no ordinary file" for path in made.manifest.skipped]
    lines.append(
        f"{str(made.path)!r} holds {made.events} events of {made.runs} runs, "
        f"{len(made.manifest.files)} files, {_show_bytes(made.manifest.bytes)}: verified"
    )
    return shown, lines


def _restore(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    directory, backup = arguments.directory, arguments.backup
    trace = Faults.read().hit
    restored = restore_backup(backup, directory, replace=arguments.replace, trace=trace)
    shown = {
        "directory": str(directory),
        "backup": str(backup),
        "events": restored.events,
    }
    shown.update({"runs": restored.runs, "hasReplaced": restored.has_replaced})
    shown.update(_describe(restored.manifest))
    made_at = _show_instant(restored.manifest.made_at)
    lines = [
        f"{str(directory)!r} is as it was at {made_at}: {restored.events} events of "
        f"{restored.runs} runs, verified. What was done after that isn't known to it; open runs "
        "go on with 'planaria up' or 'planaria resume'"
    ]
    return shown, lines


def _prune(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    report = prune_directory(
        arguments.directory,
        arguments.older_than_ms,
        is_dry_run=arguments.dry_run,
        trace=Faults.read().hit,
    )
    return {
        "directory": str(arguments.directory),
        **describe_prune(report),
    }, _show_prune(report)


def describe_prune(report: PruneReport) -> dict[str, Any]:
    """Returns the report of a prune as JSON; `endedAt` is UTC in µs."""
    return {
        "isDryRun": report.is_dry_run,
        "cutoffAt": report.cutoff_at,
        "runs": [
            {
                "runId": run.run_id,
                "workflowId": run.workflow_id,
                "status": run.status,
                "endedAt": run.ended_at,
                "events": run.events,
                "bytes": run.bytes,
            }
            for run in report.runs
        ],
        "events": report.events,
        "eventBytes": report.event_bytes,
        "blobs": report.blobs,
        "modules": report.modules,
        "fileBytes": report.file_bytes,
        "left": report.left,
        "isCompacted": report.is_compacted,
    }


def _show_prune(report: PruneReport) -> list[str]:
    lines = [
        f"{run.run_id}  {run.workflow_id}  {run.status} {_show_instant(run.ended_at)}  "
        f"{run.events} events, {_show_bytes(run.bytes)}"
        for run in report.runs[:RUNS_SHOWN]
    ]
    if len(report.runs) > RUNS_SHOWN:
        lines.append(f"… and {len(report.runs) - RUNS_SHOWN} more")
    lines += [f"left as it is: {text}" for text in report.left]
    verb = "would go" if report.is_dry_run else "are gone"
    lines.append(
        f"{len(report.runs)} runs that ended before {_show_instant(report.cutoff_at)} {verb}: "
        f"{report.events} events ({_show_bytes(report.event_bytes)}), {report.blobs} blobs, "
        f"{report.modules} pinned modules ({_show_bytes(report.file_bytes)} of files)"
    )
    return lines


def _describe(manifest: BackupManifest) -> dict[str, Any]:
    return {
        "epoch": manifest.epoch,
        "lastPosition": manifest.last_position,
        "madeAt": manifest.made_at,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "skipped": manifest.skipped,
    }


def _refuse(error: PlanariaError, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": describe_error(error)}))
    else:
        sys.stderr.write(f"planaria: {error}\n")
    return error.exit_code


def _show_instant(at: int) -> str:
    return datetime.fromtimestamp(at // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _show_bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
