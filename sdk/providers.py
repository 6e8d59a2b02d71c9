"""Looks whether the models that a workflow names can be called from here."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from planaria.protocol.errors import UsageError
from planaria.protocol.providers import PROVIDERS, find_missing_keys, provider_of


def find_model_problems(models: Mapping[str, Any], *, keys: bool = True) -> list[dict[str, str]]:
    """Returns {code, path, message} for each slot whose provider's package or key is missing.

    Keys are those of this process; a supervisor that runs already has its own.
    """
    found: list[dict[str, str]] = []
    for slot, model in sorted(models.items()):
        name = model if isinstance(model, str) else None
        provider = PROVIDERS.get(provider_of(name) or "")
        if provider is None:
            continue
        path = f"$.models.{slot}"
        if not _is_installed(provider.module):
            text = (
                f"model {name!r} needs a package that isn't installed: "
                f"pip install 'pydantic-ai-slim[{provider.extra}]'"
            )
            found.append({"code": "model.package_missing", "path": path, "message": text})
        if keys:
            found.extend(
                {"code": "model.key_missing", "path": path, "message": text}
                for text in find_missing_keys({slot: name}, os.environ)
            )
    return found


def check_packages(models: Mapping[str, Any]) -> None:
    """Refuses models whose provider's package is missing.

    Raises:
        UsageError: names each model and what installs its package.
    """
    problems = find_model_problems(models, keys=False)
    if problems:
        raise UsageError(message="; ".join(problem["message"] for problem in problems))


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
