"""Places of messages, as commands are given them: REPLICA-GROUP/QUEUE/OFFSET."""

from typing import TYPE_CHECKING

from duolog_server.ops.cli.output import fail

if TYPE_CHECKING:
    from duolog_server.ops.inspection.messages.places import Place

PLACE = "REPLICA-GROUP/QUEUE/OFFSET"


def read_place(text: str, hint: str) -> "Place":
    """Read a place; it fails the command where the text is none. hint: a command that has some."""
    from duolog import BadRequest

    from duolog_server.ops.inspection.messages.places import place_of

    try:
        return place_of(text)
    except BadRequest as error:
        fail(str(error), hint)
