"""Looks whether the models that a workflow names can be called from here."""

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from planaria.protocol.errors import UsageError
from planaria.protocol.providers import PROVIDERS, find_missing_keys, provider_of

from .runnable import Runnable


def find_model_problems(workflow: Runnable, *, keys: bool = True) -> list[dict[str, str]]:
    """Returns {code, path, message} for each slot whose provider's package or key is missing.

    The slots of workflows that it may start are looked at too. Keys are those of this process; a
    supervisor that runs already has its own.
    """
    found: list[dict[str, str]] = []
    for one in workflow.family():
        inner = "" if one is workflow else f".workflows.{one.id}"
        found += _find_problems(one.models, f"${inner}.models", keys)
    return found


def _find_problems(models: Mapping[str, Any], path: str, keys: bool) -> Iterator[dict[str, str]]:
    for slot, model in sorted(models.items()):
        name = model if isinstance(model, str) else None
        provider = PROVIDERS.get(provider_of(name) or "")
        if provider is None:
            continue
        here = f"{path}.{slot}"
        if not _is_installed(provider.module):
            text = (
                f"model {name!r} needs a package that isn't installed: "
                f"pip install 'pydantic-ai-slim[{provider.extra}]'"
            )
            yield {"code": "model.package_missing", "path": here, "message": text}
        if keys:
            for text in find_missing_keys({slot: name}, os.environ):
                yield {"code": "model.key_missing", "path": here, "message": text}


def check_packages(workflow: Runnable) -> None:
    """Refuses a workflow with models whose provider's package is missing.

    Raises:
        UsageError: names each model and what installs its package.
    """
    problems = find_model_problems(workflow, keys=False)
    if problems:
        raise UsageError(message="; ".join(problem["message"] for problem in problems))


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
