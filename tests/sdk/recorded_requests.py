"""A client whose supervisor is a list of answers: it records what it is asked."""

from pathlib import Path
from typing import Any

from planaria import Client


class RecordedClient(Client):
    """Answers each operation from `answers`; what was asked stands in `asked`."""

    def __init__(self, directory: Path, **answers: Any) -> None:
        super().__init__(directory, start_if_missing=False)
        self.answers: dict[str, Any] = {"ping": {"pid": 1}, **answers}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(
        self,
        operation: str,
        *,
        timeout: float | None = None,
        stop_fd: int | None = None,
        **arguments: Any,
    ) -> Any:
        self.asked.append((operation, arguments))
        answer = self.answers[operation]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def request(self, operation: str) -> dict[str, Any]:
        """Returns the arguments of the one request of that kind."""
        (arguments,) = [asked for name, asked in self.asked if name == operation]
        return arguments
