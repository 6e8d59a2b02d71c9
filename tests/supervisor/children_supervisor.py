"""A supervisor to be killed: starts one child with a grandchild, then waits for ever."""

import os
import select
import sys

from planaria.supervisor.children import Children
from planaria.supervisor.fork_server import Preload

fifo, marker = sys.argv[1:]
children = Children(
    target="child_targets:main",
    marker=marker,
    environment={"PATH": os.environ["PATH"]},
    preloads={"light": Preload(("planaria.supervisor.fork_server",))},
)
children.start()
children.launch("c1", kind="light", token=bytes(32), spec={"do": "grandchild", "say": fifo})
poller = select.poll()
poller.register(children.fds()[0], select.POLLIN)
while True:
    poller.poll()
    children.poll()
