"""Places of messages, as links and commands have them."""

from dataclasses import dataclass

from duolog import BadRequest, Message

from duolog_server.node.runtime.numerals import number_of

QUEUE_ID_MAX, OFFSET_MAX = (1 << 31) - 1, (1 << 63) - 1


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The position of a message. replica_group: the one that holds it."""

    replica_group: str
    queue_id: int
    offset: int

    @property
    def queue(self) -> tuple[str, int]:
        """Replica group and queue id."""
        return self.replica_group, self.queue_id

    def __str__(self) -> str:
        """The position as links and commands write it."""
        return f"{self.replica_group}/{self.queue_id}/{self.offset}"

    @staticmethod
    def of(message: Message) -> "Place":
        """The position at which a message was read."""
        return Place(message.group, message.queue_id, message.queue_offset)


def place_of(text: str) -> Place:
    """Read a place. Raises BadRequest."""
    words = text.rsplit("/", 2)
    if len(words) == 3:
        queue_id, offset = number_of(words[1], QUEUE_ID_MAX), number_of(words[2], OFFSET_MAX)
        if queue_id is not None and offset is not None:
            return Place(words[0], queue_id, offset)
    raise BadRequest(f"{text[:80]!r} is not a place of the form REPLICA-GROUP/QUEUE/OFFSET")
