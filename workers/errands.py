"""Errands: what a child does without a session. There is one: asking a loop's `supervise`."""

import asyncio
import copy
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from planaria.blobstore import BlobStore
from planaria.declarations import Continue, Done
from planaria.protocol.codec import Json
from planaria.protocol.errors import ValueRefusedError, shorten
from planaria.protocol.messages import ErrandDone
from planaria.protocol.payloads import Ref, load_value, split_payload
from planaria.protocol.values import ValueType, check_json

from .loading import load_definition


async def do_errand(
    delivered: Mapping[str, Any], modules_directory: Path, blobs: BlobStore
) -> ErrandDone:
    """Returns what came of an errand; whatever the user's function raises is an answer too."""
    try:
        supervise: Any = load_definition(delivered["source"], modules_directory)
        state = _make_state(_read_context(delivered, blobs), blobs)
        answer = _describe_answer(await _call(supervise, state))
    except Exception as error:  # user code: anything may come
        described = {"name": type(error).__name__, "message": shorten(str(error))}
        return ErrandDone(delivered["errandId"], None, described)
    except SystemExit as error:
        described = {"name": "SystemExit", "message": f"exit({error.code!r})"}
        return ErrandDone(delivered["errandId"], None, described)
    payload, data = split_payload(answer)
    for blob in data:
        blobs.write(blob)
    return ErrandDone(delivered["errandId"], payload, None)


async def _call(supervise: Callable[[Any], Any], state: dict[str, Any]) -> Any:
    # In a thread: a function that waits must not stop the loop that hears of the supervisor.
    if inspect.iscoroutinefunction(supervise):
        return await supervise(state)
    return await asyncio.to_thread(supervise, state)


def _read_context(delivered: Mapping[str, Any], blobs: BlobStore) -> dict[str, Any]:
    context = delivered["context"]
    if context is None:  # it was too large for a frame
        context = load_value(Ref(delivered["contextRef"]), blobs.read)
    found: dict[str, Any] = context
    return found


def _make_state(context: Mapping[str, Any], blobs: BlobStore) -> dict[str, Any]:
    """Returns what `supervise` is told; a value of its own, that it may change."""
    cycles = []
    for cycle in context["cycles"]:
        wrapped = cycle["output"]
        output = wrapped["v"] if "v" in wrapped else load_value(Ref(wrapped["r"]), blobs.read)
        cycles.append({**cycle, "output": output})
    return {"goal": copy.deepcopy(context["goal"]), "cycles": copy.deepcopy(cycles)}


def _describe_answer(answer: object) -> dict[str, Json]:
    """Returns the answer as the supervisor takes it.

    Raises:
        TypeError: it is neither Done nor Continue.
        ValueRefusedError: the final output can't be recorded exactly.
    """
    if isinstance(answer, Done):
        return {"kind": "done", "output": _dump(answer.final_output)}
    if isinstance(answer, Continue):
        return {"kind": "continue", "promptNote": answer.prompt_note}
    raise TypeError(
        f"supervise returned {type(answer).__name__}; expected Done(final_output) or Continue()"
    )


def _dump(output: object) -> Json:
    try:
        check_json(output)
    except ValueRefusedError:
        return ValueType(type(output)).dump(output)
    return output
