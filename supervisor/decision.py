"""What a message comes to: events to be recorded, and actions for after their commit."""

from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.events import Draft

from .kernel_messages import Action
from .outer_loop import LoopState
from .system_state import Errand


@dataclass(slots=True)
class Decision:
    """`files` are manifests (loop id, bytes) that have to be written before the commit, `notes`
    events of the system's own run (type, payload); `loops` and `errands` are kept in memory.
    """

    drafts: list[Draft] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    loops: list[LoopState] = field(default_factory=list)
    errands: list[Errand] = field(default_factory=list)
