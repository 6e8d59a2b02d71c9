"""The tool by which an agent reads its skills: texts that are pinned with the definition."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_ai import FunctionToolset, Tool
from pydantic_ai.exceptions import ToolFailed

from planaria.protocol.limits import INLINE_BYTES_MAX

from .agent_effects import METADATA_KEY

SKILL_BYTES_MAX = INLINE_BYTES_MAX  # it is read whole, as a value of an event


def make_skill_tools(
    skills: Sequence[Mapping[str, str]], paths: Mapping[str, str], pin: Path
) -> FunctionToolset[Any]:
    """Returns the toolset with read_skill; `paths` lead to the texts, below the pinned modules."""
    known = {skill["name"]: skill["description"] for skill in skills}

    async def read_skill(name: str) -> str:
        if name not in known:
            raise ToolFailed(f"there is no skill {name!r}; there are: {', '.join(known)}")
        return await asyncio.to_thread(_read, pin, str(paths.get(name, "")), name)

    listed = "\n".join(f"- {name}: {text}" for name, text in known.items())
    tool = Tool(
        read_skill,
        description=f"Returns the text of a skill: how to do something. There are:\n{listed}",
        metadata={METADATA_KEY: {"effect": "read"}},
    )
    return FunctionToolset([tool], id="skills")


def _read(pin: Path, path: str, name: str) -> str:
    root = pin.resolve()
    file = (root / path).resolve()
    if not path or not file.is_relative_to(root) or not file.is_file():
        raise ToolFailed(f"the text of skill {name!r} isn't pinned with the definition")
    with file.open("rb") as opened:
        data = opened.read(SKILL_BYTES_MAX + 1)
    if len(data) > SKILL_BYTES_MAX:
        raise ToolFailed(f"the text of skill {name!r} is larger than {SKILL_BYTES_MAX} bytes")
    return data.decode(errors="replace")
