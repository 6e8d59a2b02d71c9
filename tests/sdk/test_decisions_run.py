"""Approvals, signals, pauses and lost effects by real processes, through the client."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from run_stage import PATIENCE_SECONDS, Stage, open_stage

from planaria import (
    Client,
    ConflictError,
    InterruptedEffectError,
    Resolution,
    RunBlockedError,
    RunFailedError,
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory, "decision_flows") as opened:
        yield opened


def block(stage: Stage, run_id: str) -> list[dict[str, object]]:
    with pytest.raises(RunBlockedError) as got:
        stage.client.wait(run_id, timeout=PATIENCE_SECONDS, until_blocked=True)
    found: list[dict[str, object]] = got.value.fields["blocks"]
    return found


@pytest.mark.parametrize(("decision", "output"), [("approve", "shipped"), ("reject", "dropped")])
def test_person_decides_and_the_run_goes_on(stage: Stage, decision: str, output: str) -> None:
    run_id = stage.client.start(stage.get("asking"), {"what": decision})
    (asked,) = block(stage, run_id)
    assert (asked["prompt"], asked["data"]) == (f"Ship {decision}?", {"what": decision})
    assert stage.client.blocks(run_id) == [asked]
    (reason,) = stage.client.status(run_id)["waitsFor"]
    assert f"planaria approve {run_id} {asked['approvalId']}" in reason

    decide = getattr(stage.client, decision)
    answer = decide(run_id, asked["approvalId"], by="ann")
    again = decide(run_id, asked["approvalId"], by="bob")

    assert answer == again and answer["by"] == "ann"
    assert stage.client.wait(run_id, timeout=PATIENCE_SECONDS).output == output
    with pytest.raises(ConflictError, match="ann"):
        getattr(stage.client, "reject" if decision == "approve" else "approve")(
            run_id, asked["approvalId"]
        )


def test_signal_brings_its_data_also_when_it_comes_first(stage: Stage) -> None:
    run_id = stage.client.start(stage.get("signalled"))
    stage.client.signal(run_id, "payment", {"eur": 5}, signal_id="p1")
    stage.client.signal(run_id, "payment", {"eur": 5}, signal_id="p1")

    assert stage.client.wait(run_id, timeout=PATIENCE_SECONDS).output == {"eur": 5}


def test_wait_for_a_time_needs_nobody(stage: Stage) -> None:
    assert stage.run("timed").output == 1


def test_paused_run_is_blocked_until_it_is_let_go_on(stage: Stage) -> None:
    run_id = stage.client.start(stage.get("signalled"))
    stage.client.pause(run_id, by="ann")
    stage.client.signal(run_id, "payment", 1)

    assert {found["kind"] for found in block(stage, run_id)} == {"pause"}
    stage.client.unpause(run_id)
    assert stage.client.wait(run_id, timeout=PATIENCE_SECONDS).output == 1


@pytest.mark.parametrize(
    ("answer", "mails", "output"),
    [
        (Resolution.succeeded("seen"), 1, "seen"),
        (Resolution.never_happened(), 2, "sent to ann"),
        (Resolution.failed("bounced"), 1, None),
        (Resolution.given_up(), 1, None),
    ],
)
def test_lost_mail_waits_for_an_answer_and_is_not_sent_by_itself(
    stage: Stage, tmp_path: Path, answer: Resolution, mails: int, output: str | None
) -> None:
    ledger = tmp_path / "ledger"
    run_id = stage.client.start(stage.get("mailing"), {"ledger": str(ledger)})
    with pytest.raises(InterruptedEffectError) as got:
        stage.client.wait(run_id, timeout=PATIENCE_SECONDS)
    number = got.value.fields["call_id"]
    assert ledger.read_text().splitlines() == [got.value.fields["idempotency_key"]]

    stage.client.resolve(run_id, {number: answer}, by="ann")

    if output is not None:
        assert stage.client.wait(run_id, timeout=PATIENCE_SECONDS).output == output
    else:
        with pytest.raises(RunFailedError) as failed:
            stage.client.wait(run_id, timeout=PATIENCE_SECONDS)
        cause = "interrupted" if answer.kind == "given_up" else "step_failed"
        assert failed.value.cause_code == cause
    keys = ledger.read_text().splitlines()
    assert len(keys) == mails and len(set(keys)) == 1


def test_run_may_fail_by_itself_instead(stage: Stage, tmp_path: Path) -> None:
    more = {"ledger": str(tmp_path / "ledger")}
    with pytest.raises(RunFailedError) as failed:
        stage.run("mailing", more, on_interrupted="fail")
    assert failed.value.cause_code == "interrupted"


def test_decision_outlives_the_supervisor(stage: Stage, tmp_path: Path) -> None:
    with Client(tmp_path / "other") as client:
        run_id = client.start(stage.get("asking"), {"what": "it"})
        with pytest.raises(RunBlockedError) as got:
            client.wait(run_id, timeout=PATIENCE_SECONDS, until_blocked=True)
    with Client(tmp_path / "other") as client:
        client.approve(run_id, got.value.fields["blocks"][0]["approvalId"])
    with Client(tmp_path / "other") as client:
        assert client.wait(run_id, timeout=PATIENCE_SECONDS).output == "shipped"
