"""LangGraph's part of `scripts/bench core`, run by the peers' own python. Prints JSON.

SqliteSaver with durability="sync": each node's checkpoint is written before the next node begins.
"""

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    """What goes from node to node."""

    n: int
    folder: str


def echo(state: State) -> dict[str, int]:
    """The trivial step body, the same for all peers."""
    return {"n": state["n"] + 1}


def work(state: State) -> dict[str, int]:
    """Notes that it works; the first time it then waits to be killed."""
    path = Path(state["folder"]) / "work"
    is_first = not path.exists()
    with open(path, "a") as file:
        file.write(f"{os.getpid()} {time.monotonic_ns()}\n")
    if is_first:
        time.sleep(60)
    return {"n": 1}


def make_chain(saver: SqliteSaver, node: Any, steps: int) -> Any:
    """Returns the compiled graph of so many nodes, one after another."""
    graph = StateGraph(State)
    for i in range(steps):
        graph.add_node(f"s{i}", node)
        graph.add_edge(START if i == 0 else f"s{i - 1}", f"s{i}")
    graph.add_edge(f"s{steps - 1}", END)
    return graph.compile(checkpointer=saver)


def run_graph(graph: Any, state: State | None, thread: str, steps: int) -> State:
    """Returns the state at the end of a run; None as state: goes on with a run that was killed."""
    config = {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10}
    result: State = graph.invoke(state, config, durability="sync")
    return result


def measure_steps(saver: SqliteSaver, runs: int, steps: int) -> dict[str, float]:
    """Returns how long so many runs of so many steps took, all started at once."""
    graph = make_chain(saver, echo, steps)
    state: State = {"n": 0, "folder": ""}
    run_graph(graph, state, "warm", steps)
    with ThreadPoolExecutor(runs) as pool:
        begin = time.perf_counter()
        futures = [pool.submit(run_graph, graph, state, f"run_{k}", steps) for k in range(runs)]
        outputs = [future.result()["n"] for future in futures]
        seconds = time.perf_counter() - begin
    assert outputs == [steps] * runs, outputs[:3]
    return {"seconds": seconds, "steps": runs * steps}


def main() -> None:
    """Runs what the arguments say and prints the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["steps", "kills"])
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    with SqliteSaver.from_conn_string(str(arguments.directory / "langgraph.sqlite")) as saver:
        if arguments.what == "steps":
            print(json.dumps(measure_steps(saver, arguments.runs, arguments.steps)))
            return
        graph = make_chain(saver, work, 1)
        is_new = not (arguments.directory / "work").exists()
        state: State | None = {"n": 0, "folder": str(arguments.directory)} if is_new else None
        run_graph(graph, state, "killed", 1)
        print(json.dumps({"done": True}))


if __name__ == "__main__":
    main()
