"""What a fork changes, checked before it is asked for."""

from collections.abc import Mapping
from typing import Any

from planaria.protocol.errors import UsageError, describe_type
from planaria.protocol.schemas import check_schema

from .compilation import make_schema
from .model_slots import check_slot


def check_models(models: Mapping[str, Any]) -> dict[str, str]:
    """Returns other models by slot; only names can stand in a slot anew.

    Raises:
        UsageError: something else, or a name without its provider.
    """
    for slot, name in models.items():
        if not isinstance(name, str):
            raise UsageError(
                message=f"model slot {slot!r} of a fork is given {describe_type(name)}; expected "
                "a name such as 'anthropic:claude-haiku-4-5'. An object comes with the code of a "
                "definition"
            )
        check_slot(slot, name)
    return dict(models)


def describe_schema(run_id: str, declared: Any) -> dict[str, Any]:
    """Returns the JSON Schema that a fork's output has to fit; `declared` may be a type too.

    Raises:
        UsageError: it is no schema; names the path.
    """
    schema = make_schema(run_id, "output", declared)[0] or {}
    findings = list(check_schema(schema, "$"))
    if findings:
        listed = "; ".join(f"{f.path}: {f.message}" for f in findings)
        raise UsageError(message=f"the output schema of a fork of {run_id!r}: {listed}")
    return schema
