"""Moves of this node's queues to other replica groups, while it is the master of their source.

`ha.mover` decides; this executes, repeats what is not answered, and says how far each move is.
"""

from dataclasses import dataclass

from duolog_server.store.moves import Place


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a move is. state: of `ha.mover.State`, or WAITING for its turn.

    queue_id: where the queue lies in this group; name: where it was born. end: of the seal, -1
    before. to: the place that it moves to; None before that is reserved. pause_ms: how long puts
    were held. reason: why it ended or cannot go on, empty if it can.
    """

    topic: str
    queue_id: int
    name: Place
    move: str
    state: str
    target: str
    end: int
    to: Place | None
    began_ms: int
    pause_ms: float
    reason: str


class MoveService:
    """Runs the moves of the queues of this group."""

    async def begin(self, topic: str, queue_id: int, target: str) -> Progress:
        """Move a queue to another replica group; how far that is after 10 s, or once it is over.

        A second call for the same target joins. Raises UnknownTopic, BadRequest, NotMaster, Busy.
        """
        raise NotImplementedError

    async def abort(self, topic: str, queue_id: int) -> Progress:
        """End a move that has not sealed. Raises BadRequest if there is none or it has sealed."""
        raise NotImplementedError

    def progress(self, topic: str = "") -> list[Progress]:
        """The running moves and the last ones that are over, of a topic or of all."""
        return []
