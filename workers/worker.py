"""The worker: carries one session after another until it is told to stop."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from planaria.blobstore import BlobStore
from planaria.protocol.errors import EXIT_COMMIT_IO, ProtocolError
from planaria.protocol.limits import GRACE_MS
from planaria.protocol.messages import Refused, encode_frame

from .captured_output import CapturedOutput
from .definitions import Definitions
from .errands import do_errand
from .journal import Journal, open_journal
from .link import ANSWER_SECONDS, Link, Sender
from .session import Session, StepValues, find_scratch, read_session
from .steps import Attempt, StepRunner, make_cancellation, make_failure, make_success

EXIT_STOPPED = 0
EXIT_REFUSED = 3
# Less than the grace, after which the supervisor kills: the last events have to get there.
EFFECTS_WAIT_SECONDS = (GRACE_MS - 2_000) / 1_000


class WorkerBlobs(BlobStore):
    """A blob store whose process ends when the disk refuses a value.

    Whether the call that made it is done again is for its effect class to say, as after any other
    death; a failure would be a wrong fact. By its exit code the supervisor looks after the disk.
    """

    def write(self, data: bytes) -> dict[str, Any]:
        """Stores the bytes and returns their reference, or doesn't return."""
        try:
            return super().write(data)
        except OSError as error:
            print(f"planaria: a value can't be stored: {error}", file=sys.stderr, flush=True)
            os._exit(EXIT_COMMIT_IO)


class Worker:
    """What one process does; `ended` has its exit code when there is nothing left to do."""

    def __init__(
        self,
        sender: Sender,
        directory: Path,
        *,
        definitions: Definitions | None = None,
        on_refused: Callable[[Refused], None] | None = None,
        answer_seconds: float = ANSWER_SECONDS,
        effects_wait_seconds: float = EFFECTS_WAIT_SECONDS,
        output: CapturedOutput | None = None,
    ) -> None:
        """`on_refused` has to end the process: another one carries its session already."""
        self.link = Link(
            sender,
            on_deliver=self._deliver,
            on_stop=self._stop,
            on_refused=on_refused or (lambda refused: self._end(EXIT_REFUSED)),
            on_failed=self._fail,
            answer_seconds=answer_seconds,
        )
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.steps = StepRunner(definitions or Definitions(directory / "artifacts" / "modules"))
        self._sender = sender
        self._directory = directory
        self._blobs = WorkerBlobs(directory / "artifacts" / "blobs")
        self._effects_wait_seconds = effects_wait_seconds
        self._output = output or CapturedOutput(directory, "", None)
        self._session: asyncio.Task[None] | None = None
        self._journal: Journal | None = None
        self._stop_reason: str | None = None
        self._put_away: asyncio.Task[None] | None = None

    # -- orders ----------------------------------------------------------------------------

    def _deliver(self, delivered: dict[str, Any]) -> None:
        if "errandId" in delivered:
            self._session = asyncio.get_running_loop().create_task(self._do_errand(delivered))
            self._session.add_done_callback(self._finish)
            return
        if self._session is not None:
            # The commit of the last session's end came just before: its task may be ending still.
            assert self._journal is not None and self._journal.is_settled, "two sessions at once"
            self._session.remove_done_callback(self._finish)
            self._journal.leave()
        self._journal = None
        self._session = asyncio.get_running_loop().create_task(self._carry(delivered))
        self._session.add_done_callback(self._finish)

    def _finish(self, session: asyncio.Task[None]) -> None:
        self._output.end()
        if self._journal is not None:
            self._journal.leave()
        self._session = self._journal = None
        if not session.cancelled() and session.exception() is not None:
            self._fail(session.exception())
        elif self._stop_reason is not None:
            self._end(EXIT_STOPPED)

    def _stop(self, reason: str) -> None:
        if self._session is None:
            self._end(EXIT_STOPPED)
            return
        if reason in ("cancel", "timeout"):
            if self._stop_reason is None:
                self._stop_reason = reason
                if self._journal is None:
                    self._end(EXIT_STOPPED)  # it has reported nothing yet
                    return
                self._journal.cancel()
                self._session.cancel()
        elif reason == "shutdown":
            if self._put_away is None:
                loop = asyncio.get_running_loop()
                self._put_away = loop.create_task(self._shut_down(self._journal))
        else:
            self._stop_reason = self._stop_reason or reason  # after the session, which is ending

    async def _shut_down(self, journal: Journal | None) -> None:
        """Lets what is in flight end and be recorded; the session goes on in another process."""
        if journal is not None:
            journal.close()
            await journal.drain()
            await journal.wait_reported()
        self._end(EXIT_STOPPED)

    def _end(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)

    def _fail(self, error: BaseException | None) -> None:
        if not self.ended.done() and error is not None:
            self.ended.set_exception(error)

    # -- a session -------------------------------------------------------------------------

    async def _carry(self, delivered: dict[str, Any]) -> None:
        session = read_session(delivered, self._blobs)
        scratch = find_scratch(str(self._directory), session)
        journal = await open_journal(session, self.link, self._blobs, scratch)
        self._journal = journal
        if not journal.is_ended:
            await self._carry_out(session, journal)
        await journal.wait_ended()

    async def _do_errand(self, delivered: dict[str, Any]) -> None:
        self._output.begin(delivered["runId"], delivered["errandId"])
        self._outfit(delivered["environment"], delivered["source"])
        modules_directory = self._directory / "artifacts" / "modules"
        done = await do_errand(delivered, modules_directory, self._blobs)
        self._sender.send(encode_frame([done]))

    def _outfit(self, environment: Mapping[str, str], source: Mapping[str, Any]) -> None:
        """Gives the process what its run names: variables, the folder it was admitted from."""
        os.environ.update(environment)
        folder = source.get("cwd")
        if folder is not None and os.path.isdir(folder):
            os.chdir(folder)

    async def _carry_out(self, session: Session, journal: Journal) -> None:
        """Carries out the step and reports its end, after every call of it has been settled."""
        values = StepValues(session, self._blobs)
        attempt = Attempt(session, values, journal, str(self._directory))
        try:
            self._output.begin(session.run_id, session.id)
            self._outfit(session.environment, session.source)
            output = await self.steps.run(attempt)
            end = make_success(session, output, attempt.metadata)
        except asyncio.CancelledError:
            reason = self._stop_reason
            if reason is None:
                raise
            await journal.drain(self._effects_wait_seconds)
            self._output.end()
            journal.end(make_cancellation(session, reason))
            return
        except Exception as error:
            end = make_failure(session, error, attempt.metadata)
        await journal.drain()
        self._output.end()
        try:
            journal.end(end)
        except ProtocolError as error:  # an output that is larger than a blob may be
            journal.end(make_failure(session, error, attempt.metadata))
