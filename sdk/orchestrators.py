"""Orchestrators: agents that decide while they run which workflows to start, and with what."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from planaria.protocol.effects import SUB_RUN_TOOLS
from planaria.protocol.errors import UsageError
from planaria.protocol.limits import ORCHESTRATOR_TURNS_MAX, SUB_RUNS_CONCURRENT
from planaria.protocol.locks import find_large_numbers
from planaria.protocol.lwir_fields import TURNS_MAX

from .compilation import (
    FILE_TOOLS,
    SKILL_TOOLS,
    choose_slot,
    hash_definition,
    make_lock,
    raise_findings,
)
from .declarations import Skill, check_count, check_instructions
from .runnable import Runnable
from .tools import Tool

SUB_RUNS_CONCURRENT_MAX = 1_000


class Orchestrator(Runnable):
    """An agent whose tools are workflows; it runs like one of them.

    `model` is a slot of `models`, or a model itself: a name with its provider, a pydantic-ai Model,
    an Agent or an AgentWorker. `workflows` are those that it may start, each as a run of its own,
    `max_concurrent_sub_runs` of them at once. The rest is as in Workflow.

    Raises:
        WorkflowInvalidError, UsageError: something that can't be part of it.
    """

    def __init__(
        self,
        id: str,
        description: str = "",
        *,
        model: Any,
        workflows: Sequence[Runnable],
        instructions: str = "",
        tools: Sequence[Tool[..., Any]] = (),
        models: Mapping[str, Any] | None = None,
        input: Any = None,
        output: Any = None,
        max_concurrent_sub_runs: int = SUB_RUNS_CONCURRENT,
        max_turns: int = ORCHESTRATOR_TURNS_MAX,
        memory: Sequence[str] = (),
        skills: Sequence[Skill] = (),
        env: Sequence[str] = (),
        include: Sequence[str] = (),
    ) -> None:
        self._declare(id, input, output)
        check_instructions(instructions, f"orchestrator {id!r}")
        what = f"of orchestrator {id!r}"
        check_count(
            max_concurrent_sub_runs, f"max_concurrent_sub_runs {what}", 1, SUB_RUNS_CONCURRENT_MAX
        )
        check_count(max_turns, f"max_turns {what}", 1, TURNS_MAX)
        slot, slots = choose_slot("orchestrator", model, models or {})
        own = SUB_RUN_TOOLS | (FILE_TOOLS if memory else frozenset())
        self._set_up(
            id,
            tools=tools,
            models=slots,
            workflows=workflows,
            memory=memory,
            skills=skills,
            env=env,
            include=include,
            reserved=own | (SKILL_TOOLS if skills else frozenset()),
        )
        if not self.workflows:
            raise UsageError(
                message=f"orchestrator {id!r} has no workflows: name those that it may start"
            )
        self.description = description
        self._config = {
            "model": slot,
            "instructions": instructions,
            "maxConcurrentSubRuns": max_concurrent_sub_runs,
            "maxTurns": max_turns,
        }
        found = find_large_numbers(self._define(description))
        if found:
            raise_findings(id, found)

    def parts(self) -> dict[str, Any]:
        """Returns the arguments that make the same one again."""
        return {
            "id": self.id,
            "description": self.description,
            "model": self._config["model"],
            "instructions": self._config["instructions"],
            "max_concurrent_sub_runs": self._config["maxConcurrentSubRuns"],
            "max_turns": self._config["maxTurns"],
            **self._shared_parts(),
        }

    @cached_property
    def lock(self) -> dict[str, Any]:
        """The agent, the definition and the descriptors of all that it may use."""
        definition = self._define(self.description)
        head = {"orchestrator": self._config, "definition": definition}
        return make_lock(self, head, definition["permissions"])

    @cached_property
    def definition_hash(self) -> str:
        """The hash of what the definition is."""
        return hash_definition(self, orchestrator=self._config)
