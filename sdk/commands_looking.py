"""Commands that only look: runs, show, events, logs, ps."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer

from planaria.protocol.errors import EXIT_DONE, NotFoundError, UsageError

from .command_line import AsJson, DataDir, RunId, note, write_json

STATUSES = ("admitted", "running", "interrupted", "completed", "failed", "cancelled")
DESCENDANTS_MAX = 100  # shown of one child


def runs(
    status: Annotated[
        str | None, typer.Option("--status", help=f"Only those that are {', '.join(STATUSES)}.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="At most so many.")] = 50,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """List the newest runs."""
    from .observation import observe

    if status is not None and status not in STATUSES:
        raise UsageError(
            message=f"a run has no status {status!r}; --status takes one of: {', '.join(STATUSES)}"
        )
    with observe(data_dir) as observer:
        listed = observer.runs(limit=limit, status=status)
    if as_json:
        write_json(listed)
        return EXIT_DONE
    from .display import show_runs

    show_runs(listed)
    return EXIT_DONE


def show(run_id: RunId, data_dir: DataDir = None, as_json: AsJson = False) -> int:
    """Show a run: its steps as a tree, and what it waits for."""
    from .observation import observe

    with observe(data_dir) as observer:
        shown = observer.status(run_id)
    if as_json:
        write_json(shown)
        return EXIT_DONE
    from .display import show_run

    show_run(shown)
    return EXIT_DONE


def events(
    run_id: RunId,
    type: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="GLOB", help="Only these types, like 'Step*'; repeatable."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more, until the run has ended.")
    ] = False,
    after: Annotated[
        int, typer.Option("--after", min=0, help="Only those behind this sequence.")
    ] = 0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """List the events of a run; with --json one a line, whole."""
    from .observation import describe_silence, observe

    with observe(data_dir) as observer:
        is_served = observer.ping() is not None
        for event in observer.events(run_id, after=after, follow=follow):
            if type and not any(fnmatchcase(event["type"], pattern) for pattern in type):
                continue
            if as_json:
                write_json(event)
            else:
                from .display import format_event

                print(format_event(event), flush=follow)
        if follow and not is_served and not observer.status(run_id)["endedAt"]:
            if observer.silent_pid is not None:
                note(f"planaria: no more events come: {describe_silence(observer.silent_pid)}")
            else:
                note(
                    f"planaria: no supervisor runs, so no more events come; "
                    f"'planaria resume {run_id}' carries the run on"
                )
    return EXIT_DONE


def logs(
    run_id: RunId,
    session: Annotated[
        str | None, typer.Option("--session", help="Only this session's (see 'show --json').")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Write what the processes of a run printed, session by session."""
    from .discovery import find_directory
    from .observation import observe
    from .run_logs import read_logs

    with observe(data_dir) as observer:
        known = [
            event
            for event in observer.events(run_id)
            if event["type"] in ("harness.session.started", "ProcessStarted")
        ]
    captured = read_logs(find_directory(data_dir) / "runs" / run_id / "logs", known)
    if session is not None:
        if all(event.get("sessionId") != session for event in known):
            raise NotFoundError(message=f"run {run_id!r} has no session {session!r}")
        captured = [log for log in captured if log["sessionId"] == session]
    if as_json:
        write_json({"runId": run_id, "sessions": captured})
        return EXIT_DONE
    for log in captured:
        if session is None:
            note(f"--- {log['stepPath'] or '?'}  {log['sessionId'] or log['file']}")
        print(log["text"], end="" if log["text"].endswith("\n") else "\n")
    if not captured:
        note(f"planaria: the processes of run {run_id!r} have printed nothing")
    return EXIT_DONE


def ps(data_dir: DataDir = None, as_json: AsJson = False) -> int:
    """Show the living processes: the supervisor, its children by run, and theirs."""
    from .observation import describe_silence, find_supervisor_facts, observe

    with observe(data_dir) as observer:
        supervisor = find_supervisor_facts(observer)
        processes = observer.processes()
    for process in processes:
        process["descendants"] = _find_descendants(process["pid"]) if process["pid"] else []
    if supervisor is not None:
        supervisor["others"] = _find_others(supervisor["pid"], processes)
    if as_json:
        write_json({"supervisor": supervisor, "processes": processes})
        return EXIT_DONE
    if supervisor is None:
        print("no supervisor runs, so no process does")
        return EXIT_DONE
    if not supervisor["isAnswering"]:
        print(f"supervisor  {describe_silence(supervisor['pid'])}")
        return EXIT_DONE
    from .display import show_processes

    show_processes(supervisor, processes)
    return EXIT_DONE


def _find_others(pid: int, processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what a supervisor has below it besides: servers that fork children, just launched
    ones; of one that doesn't answer all.
    """
    listed = {process["pid"] for process in processes}
    for process in processes:
        listed.update(descendant["pid"] for descendant in process["descendants"])
    return [found for found in _find_descendants(pid) if found["pid"] not in listed]


def _find_descendants(pid: int) -> list[dict[str, Any]]:
    """Returns {pid, name} of the processes below one, as /proc tells now."""
    found: list[dict[str, Any]] = []
    below = [pid]
    while below and len(found) < DESCENDANTS_MAX:
        for path in Path(f"/proc/{below.pop()}/task").glob("*/children"):
            for child in _read(path).split():
                name = _read(Path(f"/proc/{child}/comm")).strip()
                found.append({"pid": int(child), "name": name})
                below.append(int(child))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # it has ended meanwhile
