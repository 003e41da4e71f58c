"""Dead letters: messages whose last attempt failed, shown and sent again."""

from duolog import Client, Message, Start, TopicDescription, UnknownTopic
from duolog._message import DEAD_LETTER_PREFIX

REDELIVER_SECONDS = 2.0  # if nothing arrives for this long, all dead letters were sent
# Properties that a message got on its way to the dead letters.
WORDS = frozenset(
    (
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "ORIGIN_MESSAGE_ID",
        "RETRY_TOPIC",
        "UNIQ_KEY",
        "__CRC32#",
    )
)


async def dead_letters(client: Client, group: str, count: int) -> list[Message]:
    """The oldest dead letters of a group, at most so many.

    Raises UnknownTopic where no message of the group ever became one.
    """
    found: list[Message] = []
    for part in await _parts_of(client, group):
        topic = part.topic
        offset = await client.admin.offset_at_time(topic, 0, Start.EARLIEST, group=part.group)
        found += await client.pull(topic, 0, offset, max_messages=count, group=part.group)
    return sorted(found, key=lambda letter: letter.store_time_ms)[:count]


async def _parts_of(client: Client, group: str) -> list[TopicDescription]:
    """The topic of a group's dead letters, by replica group. Raises UnknownTopic."""
    parts = await client.admin.topics([DEAD_LETTER_PREFIX + group], system=True)
    if not parts:
        raise UnknownTopic(f"no message of group {group!r} ever became a dead letter")
    return parts


async def redeliver(client: Client, group: str, count: int) -> int:
    """Send a group's dead letters to their original topics again, each once; how many were.

    Redelivery has a consumer group of its own: its offsets tell what was sent again. count: at most
    so many. Raises UnknownTopic where no message of the group ever became one.
    """
    letters, sent = (await _parts_of(client, group))[0].topic, 0
    async with (
        client.producer() as producer,
        client.consumer(f"redelivery-of-{group}", letters) as consumer,
    ):
        while sent < count and (message := await consumer.get(REDELIVER_SECONDS)):
            kept = {name: text for name, text in message.properties.items() if name not in WORDS}
            keys = kept.pop("KEYS", "").split()
            tags = kept.pop("TAGS", None)
            topic = message.properties["DLQ_ORIGIN_TOPIC"]
            await producer.send(topic, message.body, keys=keys, tags=tags, properties=kept)
            sent += 1
    return sent


__all__ = ["dead_letters", "redeliver"]
