"""Clients of a data directory: they share supervisors, outlive them, and leave nothing behind."""

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria import Client, Workflow, generate
from planaria.connection import Connection, WaitAbandonedError
from planaria.definition import load_target
from planaria.discovery import find_supervisor, is_held, read_facts, start_supervisor
from planaria.protocol.errors import (
    DataDirectoryError,
    NotFoundError,
    ProtocolError,
    RunFailedError,
    RunNotFoundError,
    SupervisorUnavailableError,
    UsageError,
    WaitTimeoutError,
    WorkflowInvalidError,
)

HERE = Path(__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clients")
    (folder / "pyproject.toml").write_text("")
    return Path(shutil.copy(HERE / "sdk_flows.py", folder / "client_flows.py"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The client of a supervisor that tests share which don't end it."""
    with Client(tmp_path_factory.mktemp("shared") / "data") as client:
        client.ping()
        yield client


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def load(module: Path, name: str) -> Workflow:
    return load_target(f"{module}:{name}")


# -- one supervisor ---------------------------------------------------------------------------


def test_making_a_client_touches_nothing(data: Path) -> None:
    with Client(data):
        pass

    assert not data.exists()


def test_a_client_that_may_not_start_one_says_what_does(data: Path) -> None:
    with (
        Client(data, start_if_missing=False) as client,
        pytest.raises(SupervisorUnavailableError, match="'planaria up' starts one"),
    ):
        client.ping()

    assert not data.exists()


def test_the_supervisor_ends_with_its_last_client(data: Path) -> None:
    first, second = Client(data), Client(data)
    pid = first.ping()["pid"]
    assert pid == second.ping()["pid"]

    first.close()
    still = second.ping()["pid"]
    second.close()

    assert pid == still
    assert (None, False) == (read_facts(data), is_held(data))


def test_a_closed_client_may_be_used_again(data: Path) -> None:
    with Client(data) as client:
        first = client.ping()["pid"]
        client.close()
        client.close()
        second = client.ping()["pid"]

    assert first != second


def test_clients_that_start_at_once_share_one_supervisor(data: Path) -> None:
    pids: list[int] = []
    ready = threading.Barrier(3)

    def ask() -> None:
        with Client(data) as client:
            pids.append(client.ping()["pid"])
            ready.wait(60)  # nobody leaves before all are there

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 3 == len(pids)
    assert 1 == len(set(pids))


def test_a_supervisor_that_is_killed_is_followed_by_another(module: Path, data: Path) -> None:
    with Client(data) as client:
        run_id = client.start(load(module, "plain"), 5)
        os.kill(client.ping()["pid"], signal.SIGKILL)

        assert 10 == client.wait(run_id, timeout=100).output
        assert 2 == client.ping()["epoch"]


def test_the_supervisor_of_a_killed_client_ends_and_its_run_stays_open(
    module: Path, data: Path, tmp_path: Path
) -> None:
    code = (
        "import signal, os\n"
        "from planaria import Client\n"
        "from planaria.definition import load_target\n"
        f"client = Client({str(data)!r})\n"
        f"flow = load_target({f'{module}:waiting'!r})\n"
        f"client.start(flow, {str(tmp_path / 'flag')!r}, run_id='run_a')\n"
        "print(client.ping()['pid'], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "flag").touch()
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert -signal.SIGKILL == ended.returncode, ended.stderr
    wait_for_end(int(ended.stdout))

    assert not is_held(data)
    with Client(data) as client:
        assert "run_a" == client.wait("run_a", timeout=100).output


def test_a_supervisor_that_is_asked_to_stop_ends(data: Path) -> None:
    connection = start_supervisor(data)
    try:
        with Client(data) as client:
            client.stop_supervisor()
            assert connection.wait_end(60)
    finally:
        connection.close()

    assert find_supervisor(data) is None


def test_an_unusable_directory_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with Client(tmp_path / "file") as client, pytest.raises(DataDirectoryError, match="file"):
        client.ping()


# -- requests ---------------------------------------------------------------------------------


def test_the_version_is_what_the_workflow_said_it_would_be(module: Path, shared: Client) -> None:
    workflow = load(module, "plain")

    shown = shared.status(shared.start(workflow, 1))

    assert workflow.version_id == shown["versionId"]
    assert workflow.definition_hash == shown["definitionHash"]


def test_unknown_runs_are_named(shared: Client) -> None:
    for ask in (shared.status, shared.wait, shared.cancel, shared.result):
        with pytest.raises(RunNotFoundError, match="no run 'run_none' in this data directory"):
            ask("run_none")


def test_unknown_operations_are_refused(shared: Client) -> None:
    with pytest.raises(ProtocolError, match="unknown operation 'dance'"):
        shared.ask("dance")


def test_events_have_no_gap_and_end_with_the_run(module: Path, shared: Client) -> None:
    run_id = shared.start(load(module, "plain"), 1)

    events = list(shared.events(run_id, follow=True))

    assert list(range(1, len(events) + 1)) == [event["sequence"] for event in events]
    assert ("RunAdmitted", "RunCompleted") == (events[0]["type"], events[-1]["type"])
    assert events[5:] == list(shared.events(run_id, after=5))


def test_the_result_of_an_open_run_is_not_waited_for(
    module: Path, shared: Client, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    run_id = shared.start(load(module, "waiting"), str(flag))

    with pytest.raises(WaitTimeoutError):
        shared.result(run_id)
    flag.touch()
    shared.wait(run_id, timeout=100)

    assert run_id == shared.result(run_id).output


def test_a_cancelled_run_says_so(module: Path, shared: Client, tmp_path: Path) -> None:
    run_id = shared.start(load(module, "waiting"), str(tmp_path / "never"))

    first = shared.cancel(run_id, reason="enough")
    with pytest.raises(RunFailedError) as got:
        shared.wait(run_id, timeout=100)

    assert "cancelled" == got.value.cause_code
    assert not first["alreadyEnded"]
    assert shared.cancel(run_id)["alreadyEnded"]


def test_labels_and_deadline_stand_in_the_admission(module: Path, shared: Client) -> None:
    run_id = shared.start(load(module, "plain"), 1, labels={"who": "ada"}, timeout=90.0)

    admitted = next(shared.events(run_id))["payload"]

    assert ({"who": "ada"}, 90_000) == (admitted["labels"], admitted["deadlineMs"])


def test_a_joined_run_keeps_its_code_and_the_caller_is_told(
    module: Path, shared: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    copy = Path(shutil.copy(module, tmp_path / "edited_flows.py"))
    flag = tmp_path / "flag"
    workflow = load(copy, "waiting")
    run_id = shared.start(workflow, str(flag))
    assert run_id == shared.start(workflow, str(flag), run_id=run_id)
    assert [] == caplog.messages

    copy.write_text(copy.read_text().replace("current_call().run_id", "'edited'"))
    shared.start(workflow, str(flag), run_id=run_id)

    assert [True] == [f"run {run_id!r} goes on with the code" in m for m in caplog.messages]
    flag.touch()
    assert run_id == shared.wait(run_id, timeout=100).output
    shared.start(workflow, str(flag), run_id=run_id)
    assert 1 == len(caplog.messages)  # what has ended runs no code


@pytest.mark.parametrize("run_id", ["", "a/b", "..", "x" * 200])
def test_run_ids_that_could_be_no_folder_are_refused(
    module: Path, shared: Client, run_id: str
) -> None:
    before = len(shared.runs())

    with pytest.raises(UsageError, match="no legal run id"):
        shared.start(load(module, "plain"), 1, run_id=run_id)

    assert before == len(shared.runs())


def test_waiting_can_be_abandoned(module: Path, shared: Client, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    run_id = shared.start(load(module, "waiting"), str(flag))
    stop = os.eventfd(1)

    try:
        with pytest.raises(WaitAbandonedError):
            shared.wait(run_id, stop_fd=stop)
    finally:
        os.close(stop)
    flag.touch()

    assert run_id == shared.wait(run_id, timeout=100).output


# -- models -----------------------------------------------------------------------------------


def test_a_missing_provider_package_is_named_before_anything_is_admitted(
    shared: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planaria.providers._is_installed", lambda module: False)
    flow = Workflow("openai", models={"m": "openai:gpt-5"}, steps=[
        generate("ask", model="m", prompt="?"),
    ])  # fmt: skip
    before = len(shared.runs())

    with pytest.raises(UsageError, match=r"'openai:gpt-5'.*pip install '.*\[openai\]'"):
        shared.start(flow)

    assert before == len(shared.runs())


def test_a_missing_key_is_named_before_anything_is_admitted(
    shared: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planaria.providers._is_installed", lambda module: True)
    flow = Workflow("deep", models={"m": "deepseek:chat"}, steps=[
        generate("ask", model="m", prompt="?"),
    ])  # fmt: skip
    before = len(shared.runs())

    with pytest.raises(UsageError, match="'m'.*DEEPSEEK_API_KEY is not set"):
        shared.start(flow)

    assert before == len(shared.runs())


def test_a_document_with_findings_is_refused_by_the_supervisor_too(
    module: Path, shared: Client
) -> None:
    workflow = load(module, "plain")
    lock: dict[str, Any] = {**workflow.lock, "tools": {}}

    with pytest.raises(WorkflowInvalidError, match="lwir.unknown_tool"):
        shared.start_document(
            workflow_id="plain",
            definition_hash=workflow.definition_hash,
            lock=lock,
            source={},
            input=1,
        )


# -- the supervisor's side ----------------------------------------------------------------------


def test_a_stopping_supervisor_sends_clients_on(data: Path) -> None:
    with Client(data) as client:
        first = client.ping()["pid"]
        client.stop_supervisor()
        second = client.ask("attach", pid=os.getpid())
        assert second == {"attached": True}
        assert first != client.ping()["pid"]


def test_a_client_of_no_process_is_refused(shared: Client) -> None:
    facts = read_facts(shared.directory)
    assert facts is not None
    connection = Connection(facts["socket"], facts["pid"])
    try:
        with pytest.raises(NotFoundError, match="no process"):
            connection.ask("attach", pid=2**22 + 1)
    finally:
        connection.close()


def wait_for_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([descriptor], [], [], 60)
    finally:
        os.close(descriptor)
    assert ready, f"process {pid} is still there"
