"""Runs, steps, events and processes as people see them: tables, trees, single lines."""

import json
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from planaria.protocol.errors import name_failure

PAYLOAD_CHARS_MAX = 120
PIPE_COLUMNS = 400  # of a file or a pipe, where nothing is cut at an edge
STYLES = {
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "interrupted": "magenta",
    "running": "cyan",
}
# Sessions of these roles stand at steps that no document has.
PSEUDO_STEPS = {".plan": "plan", ".orchestrate": "orchestrate"}
_MARKS = {"completed": "✓", "failed": "✗", "running": "●", "backoff": "◌", "skipped": "–"}


def make_console(*, to_stderr: bool = False) -> Console:
    """Returns a console that breaks no line of a file or pipe."""
    # Names of models have colons, and so do those of emoji.
    console = Console(stderr=to_stderr, highlight=False, soft_wrap=True, emoji=False)
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
    """Prints runs as a table; a sub-run stands below the run that has started it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("RUN", "STATUS", "WORKFLOW", "ADMITTED", "TOOK"):
        table.add_column(title, no_wrap=True)
    for run, depth in order_family(runs):
        table.add_row(
            Text("  " * (depth - 1) + "└ " + run["runId"] if depth else run["runId"]),
            style_status(run["status"]),
            Text(run["workflowId"] or "-"),
            format_instant(run["admittedAt"]),
            format_span(run["admittedAt"], run["endedAt"]),
        )
    make_console().print(table)


def order_family(runs: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Returns the runs with their depth: each, then its sub-runs; otherwise in their order."""
    known = {run["runId"] for run in runs}
    below: dict[str | None, list[dict[str, Any]]] = {}
    for run in runs:
        parent = run.get("parentRunId")
        below.setdefault(parent if parent in known else None, []).append(run)
    ordered: list[tuple[dict[str, Any], int]] = []
    pending = [(run, 0) for run in reversed(below.get(None, []))]
    while pending:
        run, depth = pending.pop()
        ordered.append((run, depth))
        pending += [(inner, depth + 1) for inner in reversed(below.pop(run["runId"], []))]
    return ordered


def show_run(run: dict[str, Any]) -> None:
    """Prints a run: what it is, what it waits for, and its steps as a tree."""
    console = make_console()
    head = Text.assemble(
        (run["runId"], "bold"), "  ", style_status(run["status"]), f"  {run['workflowId']}"
    )
    tree = Tree(head, guide_style="dim")
    _add_steps(tree, run["steps"])
    for sub_run in run.get("subRuns") or ():
        tree.add(_sub_run_line(sub_run))
    console.print(tree)
    for line in _describe_relations(run):
        console.print(escape(line))
    if run.get("stepsLeftOut"):
        console.print(f"  … and {run['stepsLeftOut']} more steps (--json shows no more either)")
    console.print(
        f"admitted {format_instant(run['admittedAt'])}, "
        f"took {format_span(run['admittedAt'], run['endedAt'])}, {run['events']} events"
    )
    if run["usage"]:
        by_model = run.get("usageByModel") or run["usage"]
        console.print(escape(format_usage(by_model, run.get("costUsd", 0))))
    for reason in run.get("waitsFor") or ():
        console.print(escape(f"waits for: {reason}"))
    for unknown in _list_unknown(run):
        console.print(escape(_describe_unknown(unknown)), style="magenta")
    error = run.get("error")
    if error:
        console.print(escape(f"error: {describe_failure(error)}"), style="red")
    if run["status"] == "completed":
        shown = json.dumps(run.get("output", run.get("outputRef")), ensure_ascii=False)
        console.print(escape(f"output: {shorten(shown, 2_000)}"))


def describe_failure(error: dict[str, Any]) -> str:
    """Returns a recorded error as a sentence."""
    cause = error.get("causeCode") or error.get("code") or "failed"
    text = name_failure(error.get("name"), error.get("message", "no message"), cause)
    return f"{text} ({cause})"


def _list_unknown(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the effects whose outcome is unknown; where the run is held by one, with its step."""
    held: list[dict[str, Any]] = run.get("interrupted") or []
    listed: list[dict[str, Any]] = run.get("unknownEffects") or []
    known = {unknown["callId"] for unknown in held}
    return held + [unknown for unknown in listed if unknown["callId"] not in known]


def _describe_unknown(unknown: dict[str, Any]) -> str:
    place = f" at step {unknown['stepPath']}" if unknown.get("stepPath") else ""
    return (
        f"unknown outcome: {unknown['toolName']} ({unknown['effect']}){place}, key "
        f"{unknown['idempotencyKey']}, dispatched {format_instant(unknown['dispatchedAt'])}"
    )


def format_usage(usage: dict[str, Any], cost_usd: float | None = 0) -> str:
    """Returns requests and tokens in one line, by model if they are; None is an unknown cost."""
    plain = {name: count for name, count in usage.items() if not isinstance(count, dict)}
    parts = [_format_counts(plain)] if plain else []
    for model, counts in usage.items():
        if isinstance(counts, dict):
            parts.append(f"{model}: {_format_counts(counts)}")
    if usage and cost_usd != 0:
        parts.append("cost unknown" if cost_usd is None else f"${cost_usd:,.4f}")
    return "; ".join(parts)


def _format_counts(counts: dict[str, Any]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())


def name_step(path: str) -> str:
    """Returns a step's path as people read it: planning and orchestrating aren't steps."""
    head, separator, rest = path.partition("@")
    return PSEUDO_STEPS.get(head, head) + separator + rest


def _describe_relations(run: dict[str, Any]) -> list[str]:
    """Returns where a run comes from, a line each."""
    lines: list[str] = []
    if run.get("isPlanning"):
        lines.append("is being planned: its steps aren't known yet")
    if run.get("planningUsage"):
        lines.append(f"was planned: {format_usage(run['planningUsage'])}")
    if run.get("parentRunId"):
        place = run.get("parentStepPath")
        at = f", step {name_step(place)}" if place else ""
        lines.append(f"sub-run of {run['parentRunId']}{at}")
    if run.get("outerLoopId"):
        lines.append(f"cycle {run.get('cycleNumber', '?')} of outer loop {run['outerLoopId']}")
    forked = run.get("forkedFrom")
    if forked:
        at = f" at event {forked['atSequence']}" if forked.get("atSequence") else ""
        lines.append(f"forked from {forked['fromRunId']}{at}")
    return lines


def _sub_run_line(sub_run: dict[str, Any]) -> Text:
    status = sub_run.get("status", "running")
    line = Text.assemble(
        (_MARKS.get(status, "·"), STYLES.get(status, "dim")),
        f" {sub_run.get('runId') or sub_run.get('subRunId')} ",
        (sub_run.get("workflowId") or "-", "dim"),
        f" {status}",
    )
    if sub_run.get("stepPath"):
        line.append(f" for step {name_step(sub_run['stepPath'])}", style="dim")
    return line


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
    name, kind = name_step(step["stepId"]), step["uses"]
    line = Text.assemble((_MARKS.get(status, "·"), STYLES.get(status, "dim")), f" {name}")
    if kind != name:
        line.append(f" {kind}", style="dim")
    line.append(f" {status}")
    if step.get("fixAttempt"):
        line.append(f" fix {step['fixAttempt']}", style="yellow")
    if step["attempt"] > 1:
        line.append(f" attempt {step['attempt']}", style="yellow")
    if step["visits"] > 1:
        line.append(f" visit {step['visits']}", style="dim")
    if step.get("chosen"):
        line.append(f" → {step['chosen']}")
    if step.get("subRunId"):
        line.append(f" in sub-run {step['subRunId']}", style="dim")
    session = step.get("session")
    if session:
        if session.get("role") not in (None, "worker"):
            line.append(f" by its {session['role']}", style="dim")
        if session.get("pid"):
            line.append(f" pid {session['pid']}", style="cyan")
        if session["incarnation"] > 1:
            line.append(f" incarnation {session['incarnation']}", style="yellow")
        if session["openCalls"]:
            line.append(f" in {', '.join(session['openCalls'])}", style="dim")
    if step.get("error"):
        line.append(f" {shorten(describe_failure(step['error']), 200)}", style="red")
    return line


def show_blocks(kind: str, blocks: list[dict[str, Any]]) -> None:
    """Prints approvals that are asked for, or effects of unknown outcome."""
    console = make_console()
    if not blocks:
        console.print("no effect is in doubt" if kind == "effect" else "nothing is asked for")
    for block in blocks:
        if kind == "effect":
            console.print(escape(f"{block['runId']} {block['callId']}"), style="bold")
            console.print(escape(f"  {_describe_unknown(block)}: {block['evidence']}"))
            continue
        until = block["expiresAt"]
        expiry = "" if until is None else f", expires {format_instant(until)}"
        console.print(escape(f"{block['runId']} {block['approvalId']}"), style="bold")
        asked = f"asked {format_instant(block['since'])}{expiry}"
        console.print(escape(f"  step {name_step(block['stepPath'])}, {asked}"))
        console.print(escape(f"  {shorten(block['prompt'], PAYLOAD_CHARS_MAX)}"))
        if "data" in block or "dataRef" in block:
            data = json.dumps(block.get("data", block.get("dataRef")), ensure_ascii=False)
            console.print(escape(f"  {shorten(data, 2_000)}"))


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
        if process["pid"] is None:
            continue  # it is being launched: there is nothing to be looked at yet
        by_run.setdefault(process["runId"] or "", []).append(process)
    for run_id in sorted(by_run, key=lambda run_id: (run_id == "", run_id)):
        branch = tree.add(Text(run_id or "ready, without a run yet"))
        for process in by_run[run_id]:
            line = Text.assemble(
                (f"pid {process['pid']}", "cyan"), f" {process['kind']} {process['status']}"
            )
            if process["stepPath"]:
                line.append(f" step {name_step(process['stepPath'])}")
            if process.get("role") not in (None, "worker"):
                line.append(f" ({process['role']})", style="dim")
            if process["incarnation"] > 1:
                line.append(f" incarnation {process['incarnation']}", style="yellow")
            below = branch.add(line)
            for descendant in process.get("descendants", ()):
                below.add(Text(f"pid {descendant['pid']} {descendant['name']}", style="dim"))
    if supervisor.get("others"):
        branch = tree.add(Text("for the supervisor: servers that fork children, new children"))
        for other in supervisor["others"]:
            branch.add(Text(f"pid {other['pid']} {other['name']}", style="dim"))
    make_console().print(tree)


def shorten(text: str, chars_max: int) -> str:
    """Returns the text, cut with a mark if it is longer."""
    text = text.replace("\n", "⏎")
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"
