"""The manifests of outer loops on the disk: read when one is asked for, written around commits."""

import logging
from collections.abc import Callable

from planaria.protocol.errors import PlanariaError
from planaria.protocol.ids import check_id
from planaria.protocol.outer_loops import dump_manifest, parse_manifest

from .data_directory import DataDirectory, replace_file
from .library import BlobLibrary
from .outer_loop import DONE, ENDED, EXHAUSTED, LoopState, load_loop
from .system_state import SystemState

LOOPS_KEPT_MAX = 128  # ended ones in memory; of an earlier one the file is read

logger = logging.getLogger(__name__)


class LoopFiles:
    """The files in `outer-loops/`, and the loops in memory that they were read into."""

    def __init__(
        self,
        directory: DataDirectory,
        system: SystemState,
        library: BlobLibrary,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        """`trace` is told "manifest_written" when a new file is complete and has no name yet."""
        self._folder = directory.outer_loops
        self._system = system
        self._library = library
        self._trace = trace

    def load(self, loop_id: str) -> LoopState | None:
        """Returns a loop, read from its manifest and its runs' events if it isn't in memory.

        Raises:
            RunFailedError: code `outer_loop_manifest_corrupt`.
        """
        loop = self._system.loops.get(loop_id)
        if loop is not None:
            return loop
        try:
            data = (self._folder / f"{check_id(loop_id, 'outer loop id')}.json").read_bytes()
        except FileNotFoundError:
            return None
        manifest = parse_manifest(loop_id, data)
        loop = self._system.loops[loop_id] = load_loop(manifest, self._library)
        if len(loop.cycles) != len(manifest["cycles"]):
            # It was cut behind OuterLoopCycleCompleted: the event is what counts.
            self.write(loop_id, dump_manifest(loop.manifest()))
        return loop

    def load_open(self) -> list[str]:
        """Reads every manifest, and returns the loops that are to be driven on.

        A damaged one strands no other: it is refused when somebody asks for it. What a killed
        supervisor had not given its name yet is removed: the events say it again.
        """
        for draft in self._folder.glob(".*.json.*"):
            draft.unlink(missing_ok=True)
        found = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                loop = self.load(path.stem)
            except (PlanariaError, OSError) as error:
                logger.error("outer loop %s can't go on and is left as it is: %s", path.stem, error)
                continue
            if loop is not None and loop.phase in (DONE, EXHAUSTED):
                del self._system.loops[loop.id]
            elif loop is not None:
                found.append(loop.id)
        return found

    def write(self, loop_id: str, data: bytes | None = None) -> None:
        """Writes a manifest: the given bytes, or those of the loop as it is in memory."""
        if data is None:
            data = dump_manifest(self._system.loops[loop_id].manifest())
        replace_file(self._folder / f"{loop_id}.json", data, self._note)

    def evict(self, waited_for: set[str]) -> None:
        """Drops ended loops from memory that nobody waits for, the oldest first."""
        ended = [
            loop.id
            for loop in self._system.loops.values()
            if loop.phase in ENDED and loop.id not in waited_for
        ]
        for loop_id in ended[: max(0, len(ended) - LOOPS_KEPT_MAX)]:
            del self._system.loops[loop_id]

    def _note(self, point: str) -> None:
        if self._trace is not None:
            self._trace("manifest_written")
