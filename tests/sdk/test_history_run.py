"""Retry, fork and replay, end to end: what is done again, and what never is."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from planaria import Client, ConflictError, NotFoundError, run
from planaria.discovery import is_held, read_facts

from .cli_stage import Command
from .run_stage import Stage, open_stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory, "history_flows") as stage:
        yield stage


@pytest.fixture
def command(stage: Stage, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(stage.data, capfd)


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    return {"ledger": str(tmp_path / "ledger"), "flag": str(tmp_path / "flag"), "n": 1}


def read_lines(job: dict[str, Any]) -> list[str]:
    return Path(job["ledger"]).read_text().splitlines()


def mend(job: dict[str, Any]) -> None:
    Path(job["flag"]).touch()


def sequence_of(stage: Stage, run_id: str, event_type: str, number: int = 0) -> int:
    """Returns the sequence of a run's n-th event of a type."""
    return int(stage.events(run_id, event_type)[number]["sequence"])


# -- retry ----------------------------------------------------------------------------------


def test_retry_goes_on_at_the_failed_step(
    stage: Stage, command: Command, job: dict[str, Any]
) -> None:
    error = stage.fail("stepwise", job)
    assert ("step_failed", "look") == (error.cause_code, error.failed_step_path)
    failed_at = stage.events(error.run_id)[-1]["sequence"]
    mend(job)

    words = ["retry", error.run_id, "--reason", "the file is there", "--by", "ann"]
    code, document = command.json(*words)

    assert (0, ["put 1", "done"]) == (code, document["output"])
    assert ["pay 1", "put 1"] == read_lines(job)
    [reopened] = stage.payloads(error.run_id, "RunReopened")
    assert {"by": "ann", "reason": "the file is there", "fromSequence": failed_at} == reopened
    attempts = [
        (started["stepId"], started["attempt"])
        for started in stage.payloads(error.run_id, "StepAttemptStarted")
    ]
    assert [("pay", 1), ("put", 1), ("look", 1), ("look", 2), ("close", 1)] == attempts
    assert 1 == len(stage.events(error.run_id, "RunCompleted"))
    code, name, message = command.error("retry", error.run_id)
    assert (4, "ConflictError") == (code, name)
    assert "it has completed; 'planaria fork' makes another run of it" in message


def test_retry_may_fail_again_and_again(
    stage: Stage, command: Command, job: dict[str, Any]
) -> None:
    error = stage.fail("stepwise", job)
    for _ in range(2):
        code, name, message = command.error("retry", error.run_id)
        assert (1, "RunFailedError") == (code, name)
        assert "there is no flag" in message

    # `error` asks twice.
    assert 4 == len(stage.events(error.run_id, "RunReopened"))
    assert 5 == len(stage.events(error.run_id, "RunFailed"))
    assert ["pay 1", "put 1"] == read_lines(job)


def test_detached_retry_is_waited_for_later(
    stage: Stage, command: Command, job: dict[str, Any]
) -> None:
    run_ids = [stage.fail("stepwise", job).run_id for _ in range(2)]
    mend(job)

    assert f"{run_ids[0]}\n" == command.succeed("retry", run_ids[0], "--detach")
    code, document = command.json("retry", run_ids[1], "--detach")
    assert (0, run_ids[1]) == (code, document["runId"])
    for run_id in run_ids:
        assert ["put 1", "done"] == command.json("wait", run_id)[1]["output"]


def test_retry_inside_of_a_step_performs_no_effect_again(
    stage: Stage, command: Command, job: dict[str, Any]
) -> None:
    error = stage.fail("inside", job)
    assert ["pay 1", "put 2"] == read_lines(job)
    mend(job)

    code, document = command.json("retry", error.run_id)

    assert (0, ["paid 1", "put 2", "looked"]) == (code, document["output"])
    assert ["pay 1", "put 2"] == read_lines(job)


def test_sub_run_is_retried_by_its_own_id_or_through_its_parent(
    stage: Stage, command: Command, job: dict[str, Any]
) -> None:
    error = stage.fail("caller", job)
    [asked] = stage.payloads(error.run_id, "SubRunRequested")
    mend(job)

    code, document = command.json("retry", asked["subRunId"])
    assert (0, ["put 1", "done"]) == (code, document["output"])
    assert "failed" == stage.client.status(error.run_id)["status"]
    assert ["pay 1", "put 1"] == read_lines(job)
    code, document = command.json("retry", error.run_id)
    assert (0, ["put 1", "done"]) == (code, document["output"])
    first, second = stage.payloads(error.run_id, "SubRunRequested")
    assert first["subRunId"] != second["subRunId"]


# -- fork -----------------------------------------------------------------------------------


def test_fork_behind_an_effect_does_not_perform_it_again(
    stage: Stage, command: Command, job: dict[str, Any]
) -> None:
    error = stage.fail("stepwise", job)
    at = sequence_of(stage, error.run_id, "StepCompleted")  # of pay
    mend(job)

    code, document = command.json("fork", error.run_id, "--at", str(at), "--by", "ann")

    assert (0, ["put 1", "done"]) == (code, document["output"])
    assert ["pay 1", "put 1", "put 1"] == read_lines(job)
    run_id = document["runId"]
    [forked] = stage.payloads(run_id, "RunForked")
    assert (error.run_id, at, "ann") == (
        forked["fromRunId"],
        forked["atSequence"],
        forked["by"],
    )
    shown = command.json("show", run_id)[1]
    assert ["pay", "put", "look", "close"] == [step["stepId"] for step in shown["steps"]]
    assert "failed" == stage.client.status(error.run_id)["status"]  # the first stays as it is


def test_fork_of_all_there_is_takes_over_what_a_step_has_done(
    stage: Stage, command: Command, job: dict[str, Any]
) -> None:
    """Effects of class idempotent and once, inside of a step that failed later."""
    error = stage.fail("inside", job)
    mend(job)

    code, document = command.json("fork", error.run_id, "--run-id", "forked_inside")

    assert (0, "forked_inside") == (code, document["runId"])
    assert ["paid 1", "put 2", "looked"] == document["output"]
    assert ["pay 1", "put 2"] == read_lines(job)
    taken = command.error("fork", error.run_id, "--run-id", "forked_inside")
    assert (4, "ConflictError") == taken[:2]
    # At its beginning there is nothing to be taken over.
    at = sequence_of(stage, error.run_id, "RunStarted")
    again = command.json("fork", error.run_id, "--at", str(at))[1]
    assert ["paid 1", "put 2", "looked"] == again["output"]
    assert ["pay 1", "put 2"] * 2 == read_lines(job)


def test_fork_where_an_effect_is_in_flight_is_refused(
    stage: Stage, command: Command, job: dict[str, Any]
) -> None:
    error = stage.fail("stepwise", job)
    at = sequence_of(stage, error.run_id, "harness.tool_call.started")

    code, name, message = command.error("fork", error.run_id, "--at", str(at))

    assert (4, "ConflictError") == (code, name)
    assert "pay is in flight there" in message


def test_fork_with_another_input_uses_it_for_what_follows(
    stage: Stage, command: Command, job: dict[str, Any]
) -> None:
    error = stage.fail("stepwise", job)
    at = sequence_of(stage, error.run_id, "StepCompleted")
    mend(job)
    given = json.dumps({**job, "n": 7})

    code, document = command.json("fork", error.run_id, "--at", str(at), "--input", given)

    assert (0, ["put 7", "done"]) == (code, document["output"])
    assert ["pay 1", "put 1", "put 7"] == read_lines(job)
    code, name, message = command.error("fork", error.run_id, "--input", '{"n": 7}')
    assert (2, "InputSchemaError") == (code, name)
    assert "ledger" in message


def test_fork_changes_model_instructions_and_output_schema(
    stage: Stage, command: Command, tmp_path: Path
) -> None:
    run_id = stage.run("asking", "hello").run_id
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "string", "minLength": 2}')
    at = str(sequence_of(stage, run_id, "RunStarted"))

    code, document = command.json(
        *["fork", run_id, "--at", at, "--model", "w=test", "--instructions", "Be long."],
        *["--output-schema", str(schema)],
    )

    assert 0 == code, document
    assert isinstance(document["output"], str)
    [forked] = stage.payloads(document["runId"], "RunForked")
    assert {
        "models": {"w": "test"},
        "instructions": "Be long.",
        "outputSchema": json.loads(schema.read_text()),
    } == forked["changes"]
    [called] = stage.payloads(document["runId"], "harness.model.called")
    assert "Be long." in json.dumps(called) and "Be brief." not in json.dumps(called)
    shown = [stage.client.status(name) for name in (run_id, document["runId"])]
    assert shown[0]["versionId"] != shown[1]["versionId"]


def test_fork_whose_output_does_not_fit_the_new_schema_fails(
    stage: Stage, command: Command, tmp_path: Path
) -> None:
    run_id = stage.run("small", 4).run_id
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "string"}')

    code, document = command.json("fork", run_id, "--output-schema", str(schema))

    error = document["error"]
    assert (1, "RunFailedError", "step_schema_error") == (
        code,
        error["class"],
        error["cause_code"],
    )
    assert "expected string" in error["message"]


def test_client_forks_and_retries_as_the_command_does(stage: Stage, job: dict[str, Any]) -> None:
    error = stage.fail("inside", job)
    mend(job)

    made = stage.client.fork(error.run_id, output_schema=list[str])
    assert ["paid 1", "put 2", "looked"] == stage.client.wait(made, timeout=60).output
    stage.client.retry(error.run_id, reason="again")
    assert ["paid 1", "put 2", "looked"] == stage.client.wait(error.run_id, timeout=60).output
    assert ["pay 1", "put 2"] == read_lines(job)
    with pytest.raises(ConflictError):
        stage.client.retry(error.run_id)


# -- replay ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one small run that has ended, and no supervisor."""
    data = tmp_path_factory.mktemp("finished") / "data"
    run(stage.get("small"), 21, run_id="small", data_dir=data)
    return data


def read_files(data: Path) -> dict[Path, bytes]:
    """Returns every file but SQLite's: a WAL that is there and empty, and its shared memory."""
    return {
        path: path.read_bytes()
        for path in data.rglob("*")
        if path.is_file()
        and not path.name.endswith("-shm")
        and not (path.name.endswith("-wal") and path.stat().st_size == 0)
    }


def test_replay_shows_a_run_at_every_event_and_changes_nothing(finished: Path) -> None:
    before = read_files(finished)
    client = Client(finished, start_if_missing=False)

    last = client.replay("small")
    with ThreadPoolExecutor(2) as threads:  # each look is a process of its own
        places = range(1, last["events"] + 1)
        shown = list(threads.map(lambda at: client.replay("small", at=at), places))
    assert list(range(1, last["events"] + 1)) == [run["events"] for run in shown]
    assert [run["events"] for run in shown] == [run["atSequence"] for run in shown]
    order = ["admitted", "running", "completed"]
    ranks = [order.index(run["status"]) for run in shown]
    assert sorted(ranks) == ranks and {0, 1, 2} >= set(ranks)
    assert last == shown[-1]
    assert (42, "completed") == (last["output"], last["status"])
    assert not any("output" in run for run in shown[:-1])
    with pytest.raises(NotFoundError, match=f"has no event {last['events'] + 1}"):
        client.replay("small", at=last["events"] + 1)
    assert read_facts(finished) is None and not is_held(finished)
    assert before == read_files(finished)


def test_replay_is_a_command_with_and_without_a_supervisor(
    stage: Stage, finished: Path, command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    offline = Command(finished, capfd)
    code, document = offline.json("replay", "small", "--at", "2")
    assert (0, 2) == (code, document["events"])
    assert "small" in offline.succeed("replay", "small")

    run_id = stage.run("small", 4).run_id
    code, document = command.json("replay", run_id)
    shown = stage.client.status(run_id)
    assert (0, shown) == (code, {name: document[name] for name in shown})


# -- what can't be --------------------------------------------------------------------------


def test_what_is_not_there_or_no_json_has_its_own_code(
    stage: Stage, command: Command, tmp_path: Path
) -> None:
    run_id = stage.run("small", 4).run_id
    torn = tmp_path / "torn.json"
    torn.write_text('{"type": ')
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"type": "number", "pattern": "x"}')
    expected: list[tuple[list[str], int, str]] = [
        (["replay", "nobody"], 3, "RunNotFoundError"),
        (["retry", "nobody"], 3, "RunNotFoundError"),
        (["fork", "nobody"], 3, "RunNotFoundError"),
        (["replay", run_id, "--at", "9999"], 3, "NotFoundError"),
        (["fork", run_id, "--at", "9999"], 4, "ConflictError"),
        (["fork", run_id, "--model", "slow=test"], 2, "UsageError"),
        (["fork", run_id, "--model", "w=nonsense"], 2, "UsageError"),
        (["fork", run_id, "--instructions", "none here"], 2, "UsageError"),
        (["fork", run_id, "--input", "{"], 2, "UsageError"),
        (["fork", run_id, "--input", '"x"'], 2, "InputSchemaError"),
        (["fork", run_id, "--output-schema", str(torn)], 2, "UsageError"),
        (["fork", run_id, "--output-schema", str(wrong)], 2, "UsageError"),
        (["fork", run_id, "--run-id", "../x"], 2, "InvalidIdError"),
        (["retry", run_id], 4, "ConflictError"),
    ]
    before = stage.client.count_runs()

    got = [(words, *command.error(*words)[:2]) for words, _, _ in expected]

    assert expected == got
    assert before == stage.client.count_runs()
    for words in (["replay", run_id, "--at", "0"], ["fork", run_id, "--at", "-1"]):
        assert 2 == command.json(*words)[0]
