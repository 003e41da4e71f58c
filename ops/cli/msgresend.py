"""`duolog msg resend`: a message is sent again, unchanged."""

from typing import Annotated

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls
from duolog_server.ops.cli.msg import app, receipt_facts
from duolog_server.ops.inspection.messages.trace import place_text


@calls(app)
def resend(
    topic: str,
    queue: Annotated[int, typer.Argument(min=0, max=output.INT_MAX, help="Queue of the message.")],
    offset: Annotated[int, typer.Argument(min=0, max=output.LONG_MAX, help="Its queue offset.")],
    to_queue: Annotated[
        int | None,
        typer.Option(min=0, max=output.INT_MAX, help="Queue to send to; default: its own."),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(min=0, max=output.INT_MAX, help="Deliver after this many seconds."),
    ] = None,
    replica_group: Annotated[
        str | None, typer.Option(help="Replica group of the message, of several.")
    ] = None,
) -> None:
    """Send a message of a queue to its topic again, as a new message.

    It has the same body, keys, tag and user properties, and a unique key of its own.
    """
    from dataclasses import replace

    from duolog import Client, Receipt

    from duolog_server.ops.inspection.messages.sending import (
        NOT_SENT_AGAIN,
        copy_of,
        is_users,
        message_at,
        send,
    )

    if not is_users(topic):
        output.fail(NOT_SENT_AGAIN.format(topic=topic), "duolog group redeliver GROUP")

    async def work(client: Client) -> Receipt:
        draft = copy_of(await message_at(client, topic, queue, offset, replica_group))
        to = draft.queue_id if to_queue is None else to_queue
        return await send(client, replace(draft, queue_id=to, delay_seconds=delay))

    receipt = asked(work)
    if output.wants_json():
        output.print_json(receipt_facts(receipt))
        return
    place = place_text(receipt.topic, receipt.queue_id, receipt.queue_offset)
    output.say(
        f"stored as {place if not delay else 'a delayed message'}; unique key {receipt.unique_key}"
    )
