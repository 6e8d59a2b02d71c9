"""What the steps of the benchmark do, for planaria: the module that its children import."""

import os
import time
from pathlib import Path
from typing import Any

from planaria.protocol.values import ValueType


class _Tool:
    """A tool of class `read`."""

    effect = "read"
    is_async = False
    description = ""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.name = function.__name__
        self.returns = ValueType(None)

    def load_arguments(self, args: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments as they are."""
        return dict(args)


def echo(n: int) -> dict[str, int]:
    """The trivial step body, the same for all peers."""
    return {"n": n}


def work(n: int, folder: str) -> dict[str, int]:
    """Notes that it works; the first time in each step it then waits to be killed."""
    is_first = not (Path(folder) / f"work-{n}").exists()
    with open(Path(folder) / f"work-{n}", "a") as file:
        file.write(f"{os.getpid()} {time.monotonic_ns()}\n")
    if is_first:
        time.sleep(60)
    return {"n": n}


class _Definition:
    tools = {function.__name__: _Tool(function) for function in (echo, work)}
    models: dict[str, Any] = {}


flow = _Definition()
