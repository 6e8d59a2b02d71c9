"""What a message comes to: events to be recorded, and actions for after their commit."""

from dataclasses import dataclass, field

from planaria.protocol.events import Draft

from .kernel_messages import Action


@dataclass(slots=True)
class Decision:
    """Events to be recorded, and actions for after the commit."""

    drafts: list[Draft] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
