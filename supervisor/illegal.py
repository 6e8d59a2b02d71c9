"""The error of an event that can't come where its run is."""

from planaria.protocol.errors import PlanariaError
from planaria.protocol.events import Event


class IllegalEventError(PlanariaError):
    """A bug of ours, or damage: the fold refuses the event and leaves the run as it was."""

    template = "run {run_id!r}: event {sequence} ({type}) can't come {where}"


def refuse_unless(is_legal: bool, event: Event, where: str) -> None:
    """Raises IllegalEventError if the event isn't legal; `where` ends its sentence."""
    if not is_legal:
        raise IllegalEventError(
            run_id=event.run_id, sequence=event.sequence, type=event.type, where=where
        )
