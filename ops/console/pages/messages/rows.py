"""A message in a list."""

from dataclasses import dataclass

from duolog import FoundMessage, Message

from duolog_server.ops.console.masking.seen import LINE_CHARACTERS, Seeing
from duolog_server.ops.console.view.addresses import MESSAGE, address

MORE = "…"


@dataclass(frozen=True, slots=True)
class Row:
    """A message in a list. line: the beginning of its body. group: the replica group it lies in."""

    topic: str
    queue_id: int
    queue_offset: int
    store_time_ms: int
    tags: str
    keys: str
    size: int
    line: str
    group: str = ""

    @property
    def link(self) -> str:
        """The address of the message's page."""
        names = {"topic": self.topic, "queue": self.queue_id, "offset": self.queue_offset}
        return address(MESSAGE, {"group": self.group}, **names)


def message_row(seeing: Seeing, message: Message | FoundMessage, group: str = "") -> Row:
    """A message, in one line, as a viewer sees it. group: the replica group where it lies."""
    seen = seeing.see(message)
    properties = seen.properties
    return Row(
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.store_time_ms,
        _cut(properties.get("TAGS", "")),
        _cut(properties.get("KEYS", "")),
        len(message.body),
        seen.line,
        group,
    )


def _cut(text: str) -> str:
    """A text that may be long, for a cell of a table."""
    return text if len(text) <= LINE_CHARACTERS else text[: LINE_CHARACTERS - 1] + MORE
