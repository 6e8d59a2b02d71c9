"""CPU seconds of a process and of its descendants, also of those that end meanwhile."""

import threading

import psutil

LOOK_SECONDS = 0.05  # what a descendant takes after the last look before its end is missed


class CpuWatch:
    """Counts from its making on."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._last: dict[int, float] = {}
        self._look()
        self._begin = dict(self._last)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """Returns the seconds of the process itself and of all its descendants together."""
        self._ended.set()
        self._thread.join()
        self._look()
        spent = {pid: last - self._begin.get(pid, 0.0) for pid, last in self._last.items()}
        own = spent.pop(self._root.pid)
        return {"supervisor": own, "children": sum(spent.values())}

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self._last[process.pid] = times.user + times.system
