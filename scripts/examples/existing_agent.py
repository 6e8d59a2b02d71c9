"""An ordinary pydantic-ai agent with MCP tools becomes crash-proof without being changed.

The agent is in library_agent.py, its MCP server in library_server.py; neither knows of planaria. It
finds the modules of a package in which a word stands, and for each asks for its outline and files a
finding. Here it is put into a model slot by `AgentWorker(agent, deps=factory, effects={...})`.
Filing counts as `once`: it must not happen twice. Killed with SIGKILL: the agent's process between
two tool calls, after each kind of them, and the supervisor. Every finding is filed once.

    .venv/bin/python scripts/examples/existing_agent.py [FOLDER] [--seed N] [--quick]

FOLDER has the Python files; by default those of the standard library's json.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from disturbance import (
    PATH_VARIABLE,
    Events,
    Example,
    LedgerReader,
    Played,
    Row,
    Watch,
    in_turn,
    of_supervisor,
    read_options,
)
from library_agent import FOLDER_VARIABLE, Desk, researcher
from rich.console import Console

from planaria import AgentWorker, Client, Workflow, generate

MODULES_VARIABLE = "LIBRARY_MODULES"
WORD = "def"
MODULES = 3
MODULES_QUICK = 2


def make_desk() -> Desk:
    """Makes the agent's dependencies, in the process that runs it."""
    return Desk(word=WORD, modules=int(os.environ[MODULES_VARIABLE]))


research = Workflow(
    id="examples.existing_agent",
    output=str,
    models={
        "researcher": AgentWorker(
            researcher,
            deps=make_desk,
            # What the server's annotations say of its tools stands for those not named here.
            effects={"ask_desk": "read", "file_finding": "once"},
        )
    },
    env=[FOLDER_VARIABLE, MODULES_VARIABLE, PATH_VARIABLE],
    steps=[generate("research", model="researcher", prompt="Look around.", output=str)],
)


def main() -> int:
    """Runs the example; returns its exit code."""
    options = read_options(__doc__ or "", str(Path(json.__file__).parent))
    modules = MODULES_QUICK if options.quick else MODULES
    os.environ[MODULES_VARIABLE] = str(modules)
    os.environ[FOLDER_VARIABLE] = os.path.abspath(options.folder)

    def perform(client: Client) -> Any:
        run_id = client.start(research, run_id="research")
        return client.wait(run_id).output

    # Turn 3 is asked after modules were found, 4 after an outline, 5 after a finding was filed.
    blows = [in_turn("researcher", 5)]
    if not options.quick:
        blows = [
            in_turn("researcher", 3),
            in_turn("researcher", 4),
            *blows,
            of_supervisor("between two calls", lambda scene: bool(scene.pids_in("researcher", 6))),
        ]

    def find_rows(played: Played) -> list[Row]:
        filed = [entry.call for entry in played.entries if entry.name == "file_finding"]
        shown = f"{len(filed)} of {modules}"
        return [("findings filed, each once", shown, len(set(filed)) == len(filed) == modules)]

    return Example(perform, blows, find_rows, show, adapt, seed=options.seed).main()


def adapt(events: Events, watch: Watch, ledger: LedgerReader) -> None:
    """Names calls as the server's ledger does, which knows neither sessions nor ids of calls."""
    names = {}
    for event in events["research"]:
        if event["type"] == "harness.tool_call.started":
            asked = event["payload"]
            about = asked["args"].get("module") or asked["args"].get("word") or ""
            names[asked["callId"]] = f"{asked['toolName']} {about}"
    watch.recorded = [replace(one, call=names.get(one.call, one.call)) for one in watch.recorded]
    by_pid = {pid: number for (_, pid), number in watch.incarnations.items()}
    for entry in ledger.entries():
        if entry.kind == "tool":  # its session is the pid of the process that asked the server
            watch.incarnations[entry.session, entry.pid] = by_pid[int(entry.session)]


def show(console: Console, played: Played) -> None:
    """Prints the agent's report."""
    console.print(played.result, markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
