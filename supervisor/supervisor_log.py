"""The log file of a supervisor that has no terminal: bounded, in its data directory."""

import logging
import logging.handlers
import sys
from pathlib import Path

from planaria.protocol.directories import SUPERVISOR_LOG_NAME

from .data_directory import DataDirectory

LOG_BYTES_MAX = 4 << 20  # of the file, and of the one before it
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def log_to_directory(root: Path) -> None:
    """Sends the log of this process to the directory's file as soon as the directory is ours."""
    handler = _DirectoryHandler(DataDirectory(root))
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _DirectoryHandler(logging.handlers.RotatingFileHandler):
    """Writes nothing into a directory that may yet turn out to be someone else's."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        super().__init__(
            directory.root / SUPERVISOR_LOG_NAME,
            maxBytes=LOG_BYTES_MAX,
            backupCount=1,
            encoding="utf-8",
            delay=True,
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record: to stderr until there is an event log."""
        if self.stream is None and not self._directory.database.exists():
            sys.stderr.write(self.format(record) + "\n")
        else:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Gives up on a record that can't be written, on a full disk: the events tell more."""
