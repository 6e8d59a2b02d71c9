"""Shows a run while it goes on: a table that changes in a terminal, plain lines elsewhere."""

from types import TracebackType
from typing import Protocol

from kills import Kill
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree
from watch import SessionView, Watch

KILLS_SHOWN = 6
REFRESHES_PER_SECOND = 8


class View(Protocol):
    """What shows a run; `update` is called after each event."""

    def __enter__(self) -> "View": ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def update(self, event: dict[str, object]) -> None: ...
    def tell(self, kill: Kill) -> None: ...


def open_view(console: Console, watch: Watch) -> View:
    """Returns the view that fits where the output goes."""
    return TerminalView(console, watch) if console.is_terminal else PlainView(console, watch)


class PlainView:
    """One line for each kill, each session that goes on in a new process, each file."""

    def __init__(self, console: Console, watch: Watch) -> None:
        self._console = console
        self._watch = watch

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def update(self, event: dict[str, object]) -> None:
        """Writes a line if the event is worth one."""
        watch = self._watch
        if event["type"] == "harness.session.resumed":
            session = watch.sessions[str(event["sessionId"])]
            self._write(
                f"  {session.path} goes on in pid {session.pid}, incarnation "
                f"{session.incarnation}: {session.recorded} calls replayed"
            )
        elif event["type"] == "ParallelBranchCompleted":
            done = len(watch.done_files)
            self._write(f"  {watch.done_files[-1]} is done ({done} of {watch.files})")

    def tell(self, kill: Kill) -> None:
        """Writes a line about a kill."""
        self._write(describe_kill(kill))

    def _write(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class TerminalView:
    """The running steps as a tree with their processes, and the latest kills below."""

    def __init__(self, console: Console, watch: Watch) -> None:
        self._watch = watch
        self._kills: list[Kill] = []
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
        )

    def __enter__(self) -> "TerminalView":
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def update(self, event: dict[str, object]) -> None:
        """Leaves it to the next refresh."""

    def tell(self, kill: Kill) -> None:
        """Adds a kill to those that are shown."""
        self._kills.append(kill)

    def _render(self) -> RenderableType:
        watch = self._watch
        supervisors = sum(kill.kind == "supervisor" for kill in self._kills)
        head = (
            f"{len(watch.done_files)} of {watch.files} files done, {watch.visits} visits, "
            f"{watch.events} events. Calls: {len(watch.recorded)} live, {watch.replayed} replayed. "
            f"Killed: child {len(self._kills) - supervisors} times, supervisor {supervisors} times"
        )
        latest = [Text(describe_kill(kill), style="red") for kill in self._kills[-KILLS_SHOWN:]]
        return Group(Text(head, style="bold"), render_tree(watch.living()), *latest)


def render_tree(living: list[SessionView]) -> RenderableType:
    """Returns the running steps by file, each with its process and its calls."""
    by_file: dict[str, list[SessionView]] = {}
    for session in living:
        file, _, _ = session.path.rpartition("].")
        by_file.setdefault(file.partition("[")[2], []).append(session)
    tree = Tree("running" if living else "no process of the run lives", guide_style="dim")
    for file, sessions in sorted(by_file.items()):
        branch = tree.add(Text(file)) if file else tree
        table = Table.grid(padding=(0, 2))
        for session in sessions:
            table.add_row(
                Text(session.path.rpartition("].")[2], style="cyan"),
                f"pid {session.pid}",
                Text(
                    f"incarnation {session.incarnation}",
                    style="yellow" if session.incarnation > 1 else "",
                ),
                f"{session.replayed} replayed, {session.recorded} recorded",
                Text(session.open_call, style="dim"),
            )
        branch.add(table)
    return tree


def describe_kill(kill: Kill) -> str:
    """Returns a kill as a sentence."""
    if kill.kind == "supervisor":
        return f"kill -9 {kill.pid}: the supervisor, at event {kill.event}"
    where = "inside of a call" if kill.was_in_call else "between calls"
    return f"kill -9 {kill.pid}: {kill.path}, {where}, at event {kill.event}"
