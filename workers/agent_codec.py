"""What of an agent's run goes into the journal, as JSON values, and how it comes back."""

import base64
import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter
from pydantic_ai.messages import (
    MULTI_MODAL_CONTENT_TYPES,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    ToolReturn,
)
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python

from planaria.protocol.codec import Json, canonical_bytes
from planaria.protocol.errors import ValueRefusedError
from planaria.protocol.values import ValueType, check_json

# Marks a recorded result that is no plain value: a retry asked for by the tool, content with
# files, or a call that used tokens of its own.
TAG = "$pydantic_ai"

_FILES = "content_file_digests"  # where pydantic-ai says which maps in a result are files
_TOOL_RETURN = "tool-return"  # the kind of a ToolReturn, which has more than a value
_USAGE: TypeAdapter[RunUsage] = TypeAdapter(RunUsage)
# Message and part fields that are kept in a request: the rest (timestamps, run ids, whatever a
# provider adds) differs between two runs that ask the same.
_MESSAGE_FIELDS = ("kind", "parts", "instructions")
_VOLATILE_PART_FIELDS = frozenset(
    "timestamp tool_call_id id provider_name provider_details provider_response_id "
    "otel_metadata metadata content_file_digests".split()
)
# Part fields whose default is None.
_EMPTY_PART_FIELDS = frozenset("id provider_name provider_details tool_kind citations".split())


def encode_outcome(payload: Json, usage: RunUsage | None) -> Json:
    """Returns what is recorded of a tool call: the plain result wherever that says everything."""
    if usage is None and isinstance(payload, dict) and payload.get("kind") == "tool_return":
        result = payload["result"]
        special = isinstance(result, dict) and (TAG in result or result.get("kind") == _TOOL_RETURN)
        if payload.keys() <= {"kind", "result", _FILES} and not payload.get(_FILES) and not special:
            return result
    tagged: dict[str, Json] = {TAG: payload}
    if usage is not None:
        tagged["usage"] = _USAGE.dump_python(usage, mode="json", exclude_defaults=True)
    return tagged


def decode_outcome(recorded: Json) -> tuple[Json, RunUsage | None]:
    """Returns the payload that pydantic-ai reads, and the usage of agents inside of the call."""
    if isinstance(recorded, dict) and TAG in recorded:
        usage = recorded.get("usage")
        return recorded[TAG], None if usage is None else _USAGE.validate_python(usage)
    payload: dict[str, Json] = {"kind": "tool_return", "result": recorded}
    if isinstance(recorded, dict | list):
        payload[_FILES] = []  # without it, a map that looks like a file would become one
    return payload, None


def dump_usage(usage: RunUsage) -> dict[str, Json]:
    """Returns the usage as a JSON map without what is zero; requests and tokens always stand."""
    dumped: dict[str, Json] = _USAGE.dump_python(usage, mode="json", exclude_defaults=True)
    counts = {
        "requests": usage.requests,
        "tool_calls": usage.tool_calls,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
    }
    return {**dumped, **counts}


def compact_response(response: Json) -> Json:
    """Returns the response without its empty fields, which are most of it: they load as empty."""
    kept = {key: value for key, value in response.items() if value is not None}
    kept["parts"] = [
        {k: v for k, v in part.items() if v is not None or k not in _EMPTY_PART_FIELDS}
        for part in response["parts"]
    ]
    kept["usage"] = {key: value for key, value in response["usage"].items() if value}
    return kept


def label_calls(response: Json) -> Json:
    """Returns the response with tool call ids that are unique in it.

    Providers were seen to give one id twice, or "" to all; pydantic-ai then refuses the whole
    response. Ids are labels only (a call's position is its index), so they may be renamed, and
    since the renamed ones go back to the provider they are consistent there too.
    """
    taken: set[str] = set()
    parts = []
    for index, part in enumerate(response.get("parts", [])):
        if part.get("part_kind") == "tool-call":
            label = part.get("tool_call_id") or "call"
            if label in taken or not part.get("tool_call_id"):
                label = f"{label}_{index}"
            taken.add(label)
            part = {**part, "tool_call_id": label}
        parts.append(part)
    return {**response, "parts": parts}


class RequestLog:
    """Reduces each model request to the messages that were added since the last one."""

    def __init__(self) -> None:
        self._known = 0
        self._last: ModelMessage | None = None
        self._instructions: str | None = None

    def add(self, messages: list[ModelMessage]) -> list[Json]:
        """Returns the new messages as JSON, without what differs between two equal runs."""
        known = self._known
        if len(messages) <= known and messages[-1] is not self._last:
            known = 0  # a history processor cut or replaced what was sent before
        added = messages[known:]
        self._known, self._last = len(messages), messages[-1]
        if known and added and isinstance(added[0], ModelResponse):
            added = added[1:]  # the last response, which stands in the journal already
        dumped = ModelMessagesTypeAdapter.dump_python(added, mode="json")
        return [self._reduce(message) for message in dumped]

    def _reduce(self, message: dict[str, Json]) -> Json:
        kept = {key: message[key] for key in _MESSAGE_FIELDS if message.get(key) is not None}
        kept["parts"] = [
            {k: v for k, v in part.items() if v is not None and k not in _VOLATILE_PART_FIELDS}
            for part in message["parts"]
        ]
        # Instructions stand in every request; the same ones again would only fill the log.
        instructions = kept.get("instructions")
        if instructions is not None and instructions == self._instructions:
            del kept["instructions"]
        self._instructions = instructions or self._instructions
        return kept


def encode_settings(settings: Mapping[str, Any] | None) -> Json:
    """Returns model settings as JSON; an object that has none stands there by its type's name."""
    return to_jsonable_python(dict(settings or {}), fallback=lambda value: type(value).__name__)


def encode_args(args: Mapping[str, Any]) -> Json:
    """Returns validated tool arguments as JSON that is the same in every process."""
    try:
        check_json(args)
    except ValueRefusedError:
        return _stable_json(args)
    return args


def _stable_json(value: Any) -> Json:
    if isinstance(value, enum.Enum):
        return _stable_json(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, BaseModel):
        return _stable_json({name: getattr(value, name) for name in type(value).model_fields})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _stable_json(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): _stable_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_stable_json(item) for item in value]
    if isinstance(value, set | frozenset):
        # A set of texts has another order in every process (hash randomization).
        return sorted((_stable_json(item) for item in value), key=canonical_bytes)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return to_jsonable_python(value, fallback=lambda unknown: type(unknown).__qualname__)


def dump_result(value: Any, annotation: Any = Any) -> Any:
    """Returns a tool's result in its JSON form, or content that pydantic-ai encodes itself.

    pydantic-ai's codec turns NaN into null, and sets, dates and unknown keys into something like
    them, without a word: so a result is checked before the codec sees it.

    Raises:
        ValueRefusedError: the value doesn't come back exactly; names its path.
    """
    if isinstance(value, ToolReturn):
        check_json(value.metadata, path="$.metadata")
        inner = get_args(annotation)[0] if get_origin(annotation) is ToolReturn else Any
        return dataclasses.replace(value, return_value=dump_result(value.return_value, inner))
    if _is_content(value):
        return value
    if annotation is ToolReturn:
        annotation = Any
    return _value_type(annotation).dump(value)


def dump_untyped(value: Any) -> Any:
    """Returns the JSON form of a result whose declared type can't be seen: by the value's own."""
    if isinstance(value, ToolReturn) or _is_content(value):
        return dump_result(value)
    return dump_result(value, type(value) if _is_typed(value) else Any)


def return_annotation(function: Callable[..., Any]) -> Any:
    """Returns what the function declares to return; Any if it declares nothing readable."""
    while isinstance(function, functools.partial):
        function = function.func
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        annotation = get_type_hints(target, include_extras=True).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any  # a name that only a type checker can see
    while get_origin(annotation) is not None and _is_awaitable(get_origin(annotation)):
        annotation = get_args(annotation)[-1]
    return annotation


def _is_awaitable(origin: Any) -> bool:
    return isinstance(origin, type) and hasattr(origin, "__await__")


def _is_typed(value: Any) -> bool:
    return isinstance(value, BaseModel | enum.Enum) or dataclasses.is_dataclass(value)


def _is_content(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(isinstance(item, MULTI_MODAL_CONTENT_TYPES) for item in value)
    return isinstance(value, MULTI_MODAL_CONTENT_TYPES)


@functools.lru_cache(maxsize=256)  # a type adapter costs up to milliseconds; a session has few
def _cached_value_type(annotation: Any) -> ValueType:
    return ValueType(annotation)


def _value_type(annotation: Any) -> ValueType:
    try:
        return _cached_value_type(annotation)
    except TypeError:  # an annotation with an unhashable part
        return ValueType(annotation)
