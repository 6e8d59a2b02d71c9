"""pydantic-ai's durable surface, with the session's journal behind it.

One capability is given to a run of an unchanged Agent; every model request, tool call, argument
check and tool discovery of that run then goes through `_Backend.execute`. Some of the surface that
this builds on is private (underscore names); test_agent_conformance.py says when it moves.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import anyio
from pydantic_ai import FunctionToolset
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationId,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.exceptions import ModelAPIError, ModelRetry
from pydantic_ai.models import Model
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset, ToolsetTool, WrapperToolset
from pydantic_ai.usage import RunUsage

from planaria.lookups import Reattach
from planaria.protocol.codec import Json
from planaria.protocol.errors import RecordedError

from .agent_codec import (
    RequestLog,
    compact_response,
    decode_outcome,
    dump_untyped,
    encode_args,
    encode_outcome,
    encode_settings,
    label_calls,
)
from .agent_effects import ToolEffects
from .agent_hosted import HostedCall, HostedTool
from .agent_lookups import ToolLookups
from .agent_positions import Positions
from .agent_reserves import estimate_reserve
from .agent_toolsets import CURRENT_UNIT, UNLIMITED_SECONDS, Transports, Unit, give_ids, guard_leaf
from .reattaching import Lookup

Body = Callable[[], Awaitable[Json]]

# A model failure that capabilities such as ModelFallback react to by its class.
_MODEL_API_ERRORS = frozenset({"ModelAPIError", "ModelHTTPError"})


class Journal(Protocol):
    """What a session's journal does for the agent loop; see workers/journal.py."""

    async def call_tool(
        self,
        *,
        position: str,
        caller: str,
        tool_name: str,
        args: Json,
        effect: str,
        details: Mapping[str, Json],
        body: Body,
        lookup: Lookup | None,
        is_local: bool,
    ) -> Json: ...

    async def request_model(
        self,
        *,
        position: str,
        turn: int,
        request: Json,
        settings: Json,
        body: Body,
        reserve: dict[str, Json] | None,
    ) -> Json: ...

    async def operate(self, *, position: str, name: str, body: Body) -> Json: ...

    def warn(self, text: str) -> None: ...

    @property
    def is_budgeted(self) -> bool: ...


class _Codec:
    """JSON_CODEC behind a check of tool results, which it would change without a word."""

    def dump(self, tp: Any, value: Any) -> Any:
        if getattr(value, "kind", None) in ("tool_return", "tool_content_result"):
            value = replace(value, result=dump_untyped(value.result))
        return JSON_CODEC.dump(tp, value)

    def load(self, tp: Any, payload: Any) -> Any:
        return JSON_CODEC.load(tp, payload)


class _Backend(JournalCallableOperationBackend[str]):
    """Sends every operation of the run to the journal, under its logical position."""

    def __init__(self, durability: "Durability") -> None:
        super().__init__(
            agent_name=durability.name,
            default_model_id=durability.default_model_id,
            config=RoleBasedOperationConfig(model="", event="", capability="", tool=""),
        )
        self.parameter_transports = durability.transports
        self._run = durability

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[Any, ...],
        config: str,
    ) -> object:
        if CURRENT_UNIT.get() is not None:
            return await body()
        match operation_id:
            case ModelRequestId():
                return await self._request_model(operation_id, _in_unit(body, _compact), cache_key)
            case ToolsetCallToolId():
                hosted = self._run.hosted.get(cache_key[2].tool_name or cache_key[0])
                if hosted is not None:
                    call = self._call_hosted(hosted, cache_key)
                    return await (_finish(call) if hosted.is_sequential else call)
                return await _finish(self._call_tool(operation_id, body, cache_key))
            case ToolsetValidateToolArgumentsId():
                position = self._run.positions.of_validation(cache_key[2], cache_key[0])
                return await self._operate(position, f"validate.{cache_key[0]}", body)
            case ToolsetGetToolsId(toolset_kind=kind, toolset_id=toolset_id):
                listed = await self._operate(None, f"get_tools.{toolset_id}", body)
                return self._run.strip_timeouts(listed) if kind == "dynamic" else listed
            case ToolsetGetInstructionsId(toolset_id=toolset_id):
                return await self._operate(None, f"get_instructions.{toolset_id}", body)
            case _:
                return await self._operate(None, name, body)

    async def _operate(
        self, position: str | None, name: str, body: Callable[[], Awaitable[object]]
    ) -> Json:
        position = position or self._run.positions.of_operation(name)
        return await self._run.journal.operate(position=position, name=name, body=_in_unit(body))

    async def _request_model(
        self, operation_id: ModelRequestId, body: Body, cache_key: tuple[Any, ...]
    ) -> Json:
        _, messages, settings, parameters, ctx = cache_key
        journal = self._run.journal
        reserve = None
        if journal.is_budgeted:
            reserve = estimate_reserve(ctx.model, messages, settings, parameters)
        try:
            response = await journal.request_model(
                position=self._run.positions.of_model_request(ctx),
                turn=ctx.run_step,
                request=self._run.requests.add(messages),
                settings=encode_settings(settings),
                body=body,
                reserve=reserve,
            )
        except RecordedError as error:
            if error.name in _MODEL_API_ERRORS:
                raise ModelAPIError(operation_id.model_name, error.message) from error
            raise
        return label_calls(response)

    async def _call_tool(
        self,
        operation_id: ToolsetCallToolId,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[Any, ...],
    ) -> Json:
        own_name, args, ctx, tool = cache_key
        tool_name = ctx.tool_name or own_name
        definition = tool.tool_def if isinstance(tool, ToolsetTool) else tool
        names = (tool_name, own_name)
        position, index = self._run.positions.of_tool_call(ctx, tool_name)
        recorded = await self._run.journal.call_tool(
            position=position,
            caller="model",
            tool_name=tool_name,
            args=encode_args(args),
            effect=self._run.effects.of(operation_id.toolset_kind, names, definition),
            details={"turn": ctx.run_step} | ({} if index is None else {"callIndex": index}),
            body=_in_unit(body, encode_outcome),
            lookup=self._run.find_lookup(operation_id.toolset_id, names, tool),
            is_local=self._run.effects.is_local(definition),
        )
        payload, used = decode_outcome(recorded)
        if used is not None:
            ctx.usage.incr(used)
        return payload

    async def _call_hosted(self, tool: HostedTool, cache_key: tuple[Any, ...]) -> Json:
        _, args, ctx, _ = cache_key
        position, index = self._run.positions.of_tool_call(ctx, tool.name)
        call = HostedCall(position, ctx.run_step, index, tool.name, dict(args))
        try:
            payload, _ = decode_outcome(await tool.host(call))
        except ModelRetry as retry:
            return {"kind": "model_retry", "message": retry.message}
        return payload


def _in_unit(
    body: Callable[[], Awaitable[object]],
    encode: Callable[[Json, RunUsage | None], Json] | None = None,
) -> Body:
    async def unit() -> Json:
        state = Unit()
        token = CURRENT_UNIT.set(state)
        try:
            payload = await body()
        finally:
            CURRENT_UNIT.reset(token)
        return payload if encode is None else encode(payload, state.used())

    return unit


def _compact(response: Json, _: RunUsage | None) -> Json:
    return compact_response(response)


async def _finish(call: Awaitable[Json]) -> Json:
    """Awaits a call also when the run is cancelled meanwhile, as it is when a sibling raises.

    Its effect can't be taken back, so its outcome has to be recorded; and the MCP server that it
    talks to must stay open until then (test_raising_tool_waits_for_its_slow_sibling).
    """
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await asyncio.gather(task, return_exceptions=True)
        raise


class Durability(BaseDurabilityCapability[Any]):
    """The capability that makes one run of one session durable; make a new one for each run."""

    engine_spec = DurabilityEngineSpec(
        engine_name="Planaria",
        durable_unit_noun="call",
        durable_container_noun="session",
        codec=_Codec(),
        tool_config_key="planaria",
        # An MCP server is started by the first unit that needs it: a replay starts none.
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
    )

    def __init__(
        self,
        journal: Journal,
        *,
        name: str,
        models: Mapping[str, Model] | None = None,
        effects: Mapping[str, str] | None = None,
        reattach: Mapping[str, Reattach] | None = None,
        extra_toolsets: Sequence[AbstractToolset[Any]] = (),
        hosted: Sequence[HostedTool] = (),
    ) -> None:
        super().__init__(models=models, name=name)
        self.journal = journal
        self.effects = ToolEffects(effects or {}, journal.warn)
        self.lookups = ToolLookups(reattach or {})
        self.transports = Transports(self.effects)
        self.positions = Positions()
        self.requests = RequestLog()
        self.extra_toolsets = tuple(extra_toolsets)
        self.hosted = {tool.name: tool for tool in hosted}

    @property
    def in_durable_context(self) -> bool:
        return True

    def get_durable_operation_backend(self) -> _Backend:
        return _Backend(self)

    def find_lookup(self, toolset_id: str, names: tuple[str, ...], tool: Any) -> Lookup | None:
        """Returns the lookup of a tool, if it has one."""
        return self.lookups.of(names, tool, self._toolsets_by_id.get(toolset_id))

    def strip_timeouts(self, listed: Json) -> Json:
        """Returns discovered tools without the timeouts of those that have an effect."""
        tools = {}
        for name, info in listed["tools"].items():
            definition = info["tool_def"]
            if definition.get("timeout") is not None:
                known = ToolDefinition(name=name, metadata=definition.get("metadata"))
                if self.effects.of("dynamic", (name,), known) != "read":
                    info = {**info, "tool_def": {**definition, "timeout": UNLIMITED_SECONDS}}
            tools[name] = info
        return {**listed, "tools": tools}

    def _bind_models(self, agent: AbstractAgent[Any, Any]) -> None:
        # An agent that was built without a model gets the slot's at run time.
        if agent.model is None and self._extra_models:
            self._default_model_id = None
            self._models_by_id = dict(self._extra_models)
            return
        super()._bind_models(agent)

    def _bind_to_agent(self, agent: AbstractAgent[Any, Any]) -> None:
        give_ids(agent.toolsets)
        super()._bind_to_agent(agent)
        # Toolsets given at run time are not journaled, silently, unless they are registered here.
        for toolset in self.extra_toolsets:
            toolset.visit_and_replace(self._wrap_and_register_leaf)
        self._notice_undeclared()

    def _notice_undeclared(self) -> None:
        undeclared = [
            name
            for toolset in self._toolsets_by_id.values()
            if isinstance(toolset.wrapped, FunctionToolset)
            for name, tool in toolset.wrapped.tools.items()
            if not self.effects.is_declared(name, tool.metadata)
        ]
        self.effects.notice(undeclared)

    def _wrap_other_leaf_toolset(self, ts: AbstractToolset[Any]) -> WrapperToolset[Any] | None:
        # A toolset class of the user's own: its calls are journaled, its list of tools is not.
        if isinstance(ts, ExternalToolset):
            return None
        return self._build_function_toolset(cast("FunctionToolset[Any]", ts))

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        wrapped = super().get_wrapper_toolset(toolset) or toolset
        return wrapped.visit_and_replace(guard_leaf)
