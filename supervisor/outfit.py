"""What a child gets besides its session: environment, folders, limits. Secrets are never logged."""

import os
from typing import Any

from planaria.protocol.codec import canonical_bytes
from planaria.protocol.providers import PROVIDERS, provider_of

from .blobs import BlobStore
from .data_directory import DataDirectory

# What a program needs to run at all; everything else is for a workflow to name with env=[...].
ALLOWED = frozenset(
    "PATH HOME LANG LANGUAGE LC_ALL LC_CTYPE TZ TMPDIR USER LOGNAME SHELL TERM VIRTUAL_ENV "
    "SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY "
    "http_proxy https_proxy no_proxy XDG_RUNTIME_DIR XDG_CACHE_HOME".split()
)


class Outfit:
    """Makes the specs of blank children and completes the sessions that they get."""

    def __init__(
        self, directory: DataDirectory, endpoint: str, planted: dict[str, Any] | None = None
    ) -> None:
        """`planted` are the faults of tests for children; see faults.py."""
        self._directory = directory
        self._endpoint = endpoint
        self._planted = planted or {}
        self._environment = dict(os.environ)

    def base_environment(self) -> dict[str, str]:
        """Returns the variables that every child has."""
        return {name: v for name, v in self._environment.items() if name in ALLOWED}

    def make_spec(self, process_id: str) -> dict[str, Any]:
        """Returns what a blank child is started with."""
        spec: dict[str, Any] = {
            "endpoint": self._endpoint,
            "directory": str(self._directory.root),
            "environment": self.base_environment(),
            "log_path": str(self._directory.runs / f".{process_id}.log"),
            "title": f"planaria {process_id}",
        }
        return {**spec, "trace": self._planted} if self._planted else spec

    def remove_blank_outputs(self) -> None:
        """Removes what processes printed that got no session; the others took theirs along."""
        for path in self._directory.runs.glob(".p*.log"):
            path.unlink(missing_ok=True)

    def equip(self, session: dict[str, Any]) -> None:
        """Adds what must not stand in the log: the environment that the workflow named."""
        names = set(session["source"].get("env", ()))
        for entry in session["models"].values():
            provider = PROVIDERS.get(provider_of(entry.get("model")) or "")
            if provider is not None:
                names.update(provider.variables)
        session["environment"] = {
            name: self._environment[name] for name in sorted(names) if name in self._environment
        }


def put_context_away(session: dict[str, Any], blobs: BlobStore) -> None:
    """Moves a context that is too large for a frame to the blob store."""
    session["contextRef"] = blobs.write(canonical_bytes(session["context"]))
    session["context"] = None
