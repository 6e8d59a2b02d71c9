"""planaria: agent workflows as supervised processes that survive kill -9 and never pay twice.

Names are loaded when they are first used: importing this package imports neither zmq nor pydantic.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .authoring import Workflow
    from .calls import CallContext, current_call
    from .client import Client
    from .decisions import Resolution
    from .declarations import Budget, Continue, Done, Planner, Skill
    from .lookups import NeverHappened, Succeeded, Unknown
    from .model_slots import AgentWorker
    from .orchestrators import Orchestrator
    from .results import RunResult
    from .running import arun, run
    from .steps import approval, call, code, decision, generate, parallel, wait
    from .tools import Tool, tool

_PLACES = {
    "AgentWorker": "model_slots",
    "Budget": "declarations",
    "CallContext": "calls",
    "Client": "client",
    "Continue": "declarations",
    "Done": "declarations",
    "NeverHappened": "lookups",
    "Orchestrator": "orchestrators",
    "Planner": "declarations",
    "Resolution": "decisions",
    "RunResult": "results",
    "Skill": "declarations",
    "Succeeded": "lookups",
    "Tool": "tools",
    "Unknown": "lookups",
    "Workflow": "authoring",
    "approval": "steps",
    "arun": "running",
    "call": "steps",
    "code": "steps",
    "current_call": "calls",
    "decision": "steps",
    "generate": "steps",
    "parallel": "steps",
    "run": "running",
    "tool": "tools",
    "wait": "steps",
}
_ERRORS = frozenset(
    "CapabilityDriftError ConflictError DataDirLockedError DataDirectoryError InputSchemaError "
    "IntegrityError InterruptedEffectError NotFoundError PlanariaError ReplayMismatchError "
    "RunBlockedError RunFailedError RunInputMismatchError RunNotFoundError UsageError "
    "UserCodeError ValueRefusedError WaitTimeoutError WorkflowInvalidError".split()
)

__all__ = [
    "AgentWorker",
    "Budget",
    "CallContext",
    "Client",
    "Continue",
    "Done",
    "NeverHappened",
    "Orchestrator",
    "Planner",
    "Resolution",
    "RunResult",
    "Skill",
    "Succeeded",
    "Tool",
    "Unknown",
    "Workflow",
    "approval",
    "arun",
    "call",
    "code",
    "current_call",
    "decision",
    "generate",
    "parallel",
    "run",
    "tool",
    "wait",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _ERRORS:
        return getattr(importlib.import_module("planaria.protocol.errors"), name)
    if name not in _PLACES:
        raise AttributeError(f"module 'planaria' has no attribute {name!r}")
    return getattr(importlib.import_module(f"planaria.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_ERRORS])
