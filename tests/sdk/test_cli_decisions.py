"""The commands that say something to a run: approvals, signals, pauses, effects in doubt."""

import json
from pathlib import Path

import pytest

from .cli_stage import Command, fresh, project, up

__all__ = ["fresh", "project"]  # pytest finds fixtures by their names

FLOWS = """
import os, signal
from planaria import Workflow, approval, call, tool, wait

@tool(effect="read")
def echo(x: object) -> object:
    return x

@tool(effect="once")
def die() -> str:
    os.kill(os.getpid(), signal.SIGKILL)

asking = Workflow("d.asking", tools=[echo], steps=[
    approval("ask", prompt="Ship it?", data={"n": 1}),
    call("last", echo, args={"x": "{{ steps.ask.output.decision }}"}, needs=["ask"]),
])
signalled = Workflow("d.signalled", tools=[echo], steps=[
    wait("paid", signal="payment"),
    call("last", echo, args={"x": "{{ steps.paid.output }}"}, needs=["paid"]),
])
dying = Workflow("d.dying", tools=[die], steps=[call("held", die)])
"""


@pytest.fixture
def decisions(fresh: Command, project: Path) -> Command:
    (project / "decision_flows_cli.py").write_text(FLOWS)
    return fresh


def block(command: Command, name: str, run_id: str = "r") -> None:
    """Runs a workflow until only others can move it on."""
    code, out, err = command(
        "run", f"decision_flows_cli.py:{name}", "--run-id", run_id, "--until-blocked"
    )
    assert (5, "") == (code, out), err


def test_approval_is_listed_shown_and_decided_without_a_supervisor(decisions: Command) -> None:
    block(decisions, "asking")
    (asked,) = decisions.json("approvals")[1]
    assert ("Ship it?", {"n": 1}) == (asked["prompt"], asked["data"])
    assert asked["approvalId"] in decisions.succeed("approvals", "r")
    shown = decisions.succeed("show", "r")
    assert "waits for: a decision for step ask" in shown.replace("\n", " ")
    assert "planaria approve r" in shown.replace("\n", " ")

    out = decisions.succeed("approve", "r", "--by", "ann", "--note", "fine")

    assert "is approved by ann" in out and "approved" == out.splitlines()[-1]
    assert 0 == decisions("approve", "r", asked["approvalId"])[0]
    code, name, message = decisions.error("reject", "r", asked["approvalId"])
    assert (4, "ConflictError") == (code, name) and "ann" in message
    assert [] == decisions.json("approvals")[1]


def test_decision_can_be_recorded_alone(decisions: Command) -> None:
    block(decisions, "asking")

    code, _, err = decisions("reject", "r", "--detach")

    assert 0 == code and "planaria resume r" in err
    assert "running" == decisions.json("show", "r")[1]["status"]
    assert "rejected" == decisions.succeed("resume", "r").strip()


def test_signal_moves_a_wait_on_and_its_id_counts_once(decisions: Command) -> None:
    block(decisions, "signalled")

    given = ["signal", "r", "payment", "--data", '{"eur": 5}', "--id", "p1"]
    assert '"eur": 5' in decisions.succeed(*given)
    assert decisions.json(*given)[1]["isRepeated"]
    assert 4 == decisions("signal", "r", "payment", "--id", "p1")[0]


def test_paused_run_goes_on_when_it_is_let(decisions: Command) -> None:
    with up(decisions.data):
        block(decisions, "signalled")
        assert "planaria unpause r" in decisions.succeed("pause", "r", "--by", "ann")
        decisions.succeed("signal", "r", "payment", "--data", "7")
        assert decisions.json("show", "r")[1]["isPaused"]
        decisions.succeed("unpause", "r")
        assert "7" == decisions.succeed("wait", "r").strip()


def test_effect_in_doubt_is_listed_with_its_evidence_and_resolved(decisions: Command) -> None:
    block(decisions, "dying")
    (lost,) = decisions.json("effects")[1]
    assert ("die", "once", "held") == (lost["toolName"], lost["effect"], lost["stepPath"])
    assert lost["callId"] in decisions.succeed("effects").replace("\n", "")
    assert "planaria resolve r" in decisions.succeed("show", "r").replace("\n", " ")

    for words in ([], ["--succeeded", "1", "--give-up"]):
        assert 2 == decisions("resolve", "r", lost["callId"], *words)[0]
    assert 3 == decisions("resolve", "r", "call_none", "--give-up")[0]
    answer = ["resolve", "r", lost["callId"], "--succeeded", json.dumps("seen")]
    assert "seen" == decisions.succeed(*answer).splitlines()[-1]
    assert decisions.json(*answer)[1]["isRepeated"]
    assert [] == decisions.json("effects")[1]


@pytest.mark.parametrize("patience", ["soon", "-1s", "0"])
def test_patience_that_is_none_is_refused(decisions: Command, patience: str) -> None:
    given = ["run", "decision_flows_cli.py:dying", "--on-interrupted", patience]

    assert 2 == decisions(*given)[0]


def test_run_that_may_fail_ends_by_itself(decisions: Command) -> None:
    given = ["run", "decision_flows_cli.py:dying", "--on-interrupted", "fail", "--run-id", "r"]

    assert 1 == decisions(*given)[0]
    assert "interrupted" == decisions.json("show", "r")[1]["error"]["causeCode"]
