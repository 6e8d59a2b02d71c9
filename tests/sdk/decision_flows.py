"""Workflows that wait for people, and effects that are lost, for test_decisions_run.py."""

import os
import signal
from pathlib import Path

from planaria import Workflow, approval, call, current_call, decision, tool, wait


@tool(effect="read")
def echo(x: object) -> object:
    """Returns what it gets."""
    return x


@tool(effect="once")
def mail(ledger: str, to: str) -> str:
    """Notes a mail outside, and dies the first time."""
    with open(ledger, "a") as file:
        file.write(f"{current_call().idempotency_key}\n")
    if len(Path(ledger).read_text().splitlines()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"sent to {to}"


asking = Workflow(
    "w.asking",
    input=dict,
    tools=[echo],
    steps=[
        approval("ask", prompt="Ship {{ input.what }}?", data={"what": "{{ input.what }}"}),
        decision(
            "route",
            cases=[("{{ steps.ask.output.decision == 'approved' }}", "ship")],
            default="drop",
            needs=["ask"],
        ),
        call("ship", echo, args={"x": "shipped"}),
        call("drop", echo, args={"x": "dropped"}),
    ],
)
signalled = Workflow(
    "w.signalled",
    tools=[echo],
    steps=[
        wait("paid", signal="payment"),
        call("done", echo, args={"x": "{{ steps.paid.output }}"}, needs=["paid"]),
    ],
)
timed = Workflow(
    "w.timed",
    tools=[echo],
    steps=[wait("nap", duration="300ms"), call("done", echo, args={"x": 1}, needs=["nap"])],
)
mailing = Workflow(
    "w.mailing",
    input=dict,
    tools=[mail, echo],
    steps=[
        call("send", mail, args={"ledger": "{{ input.ledger }}", "to": "ann"}),
        call("after", echo, args={"x": "{{ steps.send.output }}"}, needs=["send"]),
    ],
)
