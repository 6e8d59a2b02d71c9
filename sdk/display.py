"""Runs, steps, events and processes as people see them: tables, trees, single lines."""

import json
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

PAYLOAD_CHARS_MAX = 120
PIPE_COLUMNS = 400  # of a file or a pipe, where nothing is cut at an edge
STYLES = {
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "interrupted": "magenta",
    "running": "cyan",
}
_MARKS = {"completed": "✓", "failed": "✗", "running": "●", "backoff": "◌", "skipped": "–"}


def make_console(*, to_stderr: bool = False) -> Console:
    """Returns a console that breaks no line of a file or pipe."""
    console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    return console


def format_instant(microseconds: int | None) -> str:
    """Returns an instant (µs since 1970, UTC) in local time; "-" for none."""
    if microseconds is None:
        return "-"
    instant = datetime.fromtimestamp(microseconds / 1_000_000, UTC).astimezone()
    return instant.strftime("%Y-%m-%d %H:%M:%S")


def format_span(start: int | None, end: int | None) -> str:
    """Returns the time between two instants, short; "-" when one is missing."""
    if start is None or end is None:
        return "-"
    seconds = (end - start) / 1_000_000
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"


def style_status(status: str) -> Text:
    """Returns a status in its colour."""
    return Text(status, style=STYLES.get(status, ""))


def show_runs(runs: list[dict[str, Any]]) -> None:
    """Prints runs as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("RUN", "STATUS", "WORKFLOW", "ADMITTED", "TOOK"):
        table.add_column(title, no_wrap=True)
    for run in runs:
        table.add_row(
            Text(run["runId"]),
            style_status(run["status"]),
            Text(run["workflowId"] or "-"),
            format_instant(run["admittedAt"]),
            format_span(run["admittedAt"], run["endedAt"]),
        )
    make_console().print(table)


def show_run(run: dict[str, Any]) -> None:
    """Prints a run: what it is, what it waits for, and its steps as a tree."""
    console = make_console()
    head = Text.assemble(
        (run["runId"], "bold"), "  ", style_status(run["status"]), f"  {run['workflowId']}"
    )
    tree = Tree(head, guide_style="dim")
    _add_steps(tree, run["steps"])
    console.print(tree)
    if run.get("stepsLeftOut"):
        console.print(f"  … and {run['stepsLeftOut']} more steps (--json shows no more either)")
    console.print(
        f"admitted {format_instant(run['admittedAt'])}, "
        f"took {format_span(run['admittedAt'], run['endedAt'])}, {run['events']} events"
    )
    if run["usage"]:
        console.print(escape(format_usage(run["usage"])))
    if run.get("waitsFor"):
        console.print(f"waits for: {escape(run['waitsFor'])}")
    for unknown in run.get("interrupted") or ():
        console.print(
            escape(
                f"unknown outcome: {unknown['toolName']} ({unknown['effect']}) at step "
                f"{unknown['stepPath']}, key {unknown['idempotencyKey']}, dispatched "
                f"{format_instant(unknown['dispatchedAt'])}"
            ),
            style="magenta",
        )
    error = run.get("error")
    if error:
        console.print(escape(f"error: {describe_failure(error)}"), style="red")
    if run["status"] == "completed":
        shown = json.dumps(run.get("output", run.get("outputRef")), ensure_ascii=False)
        console.print(escape(f"output: {shorten(shown, 2_000)}"))


def describe_failure(error: dict[str, Any]) -> str:
    """Returns a recorded error as a sentence."""
    cause = error.get("causeCode") or error.get("code") or "failed"
    return f"{error.get('message', 'no message')} ({cause})"


def format_usage(usage: dict[str, int]) -> str:
    """Returns requests and tokens in one line."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in usage.items())


def _add_steps(tree: Tree, steps: list[dict[str, Any]]) -> None:
    for step in steps:
        branch = tree.add(_step_line(step))
        group = step.get("branches")
        if group:
            branch.add(
                Text(
                    f"{group['completed']} of {group['total']} branches done, "
                    f"{group['failed']} failed",
                    style="dim",
                )
            )
            for live in group["live"]:
                _add_steps(branch.add(Text(f"[{live['itemKey']}]", style="dim")), live["steps"])


def _step_line(step: dict[str, Any]) -> Text:
    status = step["status"]
    line = Text.assemble(
        (_MARKS.get(status, "·"), STYLES.get(status, "dim")),
        f" {step['stepId']} ",
        (step["uses"], "dim"),
        f" {status}",
    )
    if step["attempt"] > 1:
        line.append(f" attempt {step['attempt']}", style="yellow")
    if step["visits"] > 1:
        line.append(f" visit {step['visits']}", style="dim")
    if step.get("chosen"):
        line.append(f" → {step['chosen']}")
    session = step.get("session")
    if session:
        if session.get("pid"):
            line.append(f" pid {session['pid']}", style="cyan")
        if session["incarnation"] > 1:
            line.append(f" incarnation {session['incarnation']}", style="yellow")
        if session["openCalls"]:
            line.append(f" in {', '.join(session['openCalls'])}", style="dim")
    if step.get("error"):
        line.append(f" {shorten(describe_failure(step['error']), 200)}", style="red")
    return line


def format_event(event: dict[str, Any]) -> str:
    """Returns an event as one line."""
    payload = json.dumps(event["payload"], ensure_ascii=False)
    return (
        f"{event['sequence']:>6}  {event['at'][11:23]}  {event['type']:<30}  "
        f"{shorten(payload, PAYLOAD_CHARS_MAX)}"
    )


def show_processes(supervisor: dict[str, Any], processes: list[dict[str, Any]]) -> None:
    """Prints the supervisor's processes as a tree by run; blank ones stand at the end."""
    tree = Tree(Text(f"supervisor pid {supervisor['pid']}", style="bold"), guide_style="dim")
    by_run: dict[str, list[dict[str, Any]]] = {}
    for process in processes:
        by_run.setdefault(process["runId"] or "", []).append(process)
    for run_id in sorted(by_run, key=lambda run_id: (run_id == "", run_id)):
        branch = tree.add(Text(run_id or "ready, without a run yet"))
        for process in by_run[run_id]:
            line = Text.assemble(
                (f"pid {process['pid'] or '-'}", "cyan"), f" {process['kind']} {process['status']}"
            )
            if process["stepPath"]:
                line.append(f" step {process['stepPath']}")
            if process["incarnation"] > 1:
                line.append(f" incarnation {process['incarnation']}", style="yellow")
            below = branch.add(line)
            for descendant in process.get("descendants", ()):
                below.add(Text(f"pid {descendant['pid']} {descendant['name']}", style="dim"))
    make_console().print(tree)


def shorten(text: str, chars_max: int) -> str:
    """Returns the text, cut with a mark if it is longer."""
    text = text.replace("\n", "⏎")
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"
