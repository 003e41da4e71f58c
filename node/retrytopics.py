"""Retry and dead-letter topics: where a message goes that its consumer could not do with.

%RETRY%<group>_<topic> holds what a group is to try again, %DLQ%<group> what it has given up. A copy
keeps body, keys, tags and birth; RECONSUMETIMES counts the attempts that failed.
"""

import hashlib
from typing import TYPE_CHECKING

from duolog import _errors as sdk

from node.redirect import stored_again
from store.record import TOPIC_BYTES_MAX, Record
from store.status import PutMessageStatus

if TYPE_CHECKING:
    from node.broker import Broker

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
RETRY_TIMES = 16  # retryMaxTimes


def _named(prefix: str, rest: str) -> str:
    name = prefix + rest
    if len(name) <= TOPIC_BYTES_MAX:
        return name
    return prefix + hashlib.sha256(rest.encode()).hexdigest()


def retry_topic(group: str, topic: str) -> str:
    """Where a group finds a topic's messages again; a retry topic is its own."""
    return topic if topic.startswith(RETRY_PREFIX) else _named(RETRY_PREFIX, f"{group}_{topic}")


def dead_letter_topic(group: str) -> str:
    """Where a group's dead letters are."""
    return _named(DEAD_LETTER_PREFIX, group)


def origin_of(record: Record) -> str:
    """The topic a message was first sent to."""
    return record.properties.get("RETRY_TOPIC", record.topic)


class RetryTopics:
    """Stores messages again."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    async def store_again(self, group: str, topic: str, record: Record) -> None:
        """For one more attempt, or as a dead letter where that was the last.

        topic: the one that holds it. Raises sdk.Unavailable where it was not stored for sure.
        """
        row = self._broker.metadata.tables.groups.get(group, {})
        failed = record.reconsume_times + 1
        if failed > int(row.get("retryMaxTimes", RETRY_TIMES)):
            await self._dead(group, record, failed)
            return
        await self._put(retry_topic(group, topic), record, failed, {"RETRY_TOPIC": record.topic})

    async def to_dead_letters(self, group: str, record: Record) -> None:
        """Give it up at once. Raises as `store_again`."""
        await self._dead(group, record, record.reconsume_times + 1)

    async def _dead(self, group: str, record: Record, failed: int) -> None:
        origin = {"DLQ_ORIGIN_TOPIC": origin_of(record)}
        unique = record.properties.get("UNIQ_KEY")
        if unique:
            origin["DLQ_ORIGIN_MESSAGE_ID"] = unique
        await self._put(dead_letter_topic(group), record, failed, origin)

    async def _put(self, topic: str, record: Record, failed: int, more: dict[str, str]) -> None:
        """more: properties set where the message does not have them yet."""
        broker = self._broker
        if topic not in broker.metadata.topics:
            broker.metadata.auto_create(topic, 1)
        properties = {**more, "ORIGIN_MESSAGE_ID": record.message_id, **record.properties}
        result = await broker.store_batch(stored_again(record, topic, properties, failed))
        if result.status is not PutMessageStatus.PUT_OK:
            raise sdk.Unavailable(f"{topic}: {result.status.value} {result.reason}")
