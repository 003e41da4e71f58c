"""Retry and dead-letter topics: where messages go that a consumer could not process.

A copy in one of them keeps body, keys, tags, born time and born host. Its reconsume times count the
failed attempts. `store.grouptopics` has their names.

One name may be that of several: %RETRY%a_b_c is for a group a and a topic b_c, for a_b and c, and
for what members of a_b_c sent back. So each copy says which topic it comes from.
"""

from dataclasses import dataclass, replace

import numpy as np
from duolog import _errors as sdk
from duolog._message import RETRY_PREFIX

from duolog_server.node.core.births import ORIGIN, is_too_old
from duolog_server.node.core.core import Core
from duolog_server.node.deferred.delayservice import DelayService
from duolog_server.node.deferred.redirect import stored_again
from duolog_server.store.grouptopics import dead_letter_topic, group_retry_topic, retry_topic
from duolog_server.store.metadata import PRIORITY
from duolog_server.store.names import TOPIC_BYTES_MAX
from duolog_server.store.reader import GetResult
from duolog_server.store.record import (
    PROPERTIES_BYTES_MAX,
    Record,
    decode_properties,
    room_for,
)
from duolog_server.store.status import WEAK, PutMessageStatus

RETRY_TIMES = 16  # retryMaxTimes
RECONSUME_TIMES_MAX = (1 << 31) - 1  # that a record has room for
# Bytes of what a copy gets where it waits for a delay level.
WAITING_BYTES = room_for({"DELAY": 10, "REAL_TOPIC": TOPIC_BYTES_MAX, "REAL_QID": 10})
FIRST_LEVEL = 3  # the ladder begins at the third delay level: 10 s


def origin_of(record: Record) -> str:
    """The topic a message was first sent to."""
    return record.properties.get(ORIGIN, record.topic)


def copies_from(topic: str, retry: str, result: GetResult) -> GetResult:
    """Drop copies of another group and topic from what was read in a retry topic.

    Two groups share it where its name may be divided into the one pair or the other. Copies that
    RocketMQ stored by POP do not say where they come from, or name a topic of long before: they
    are anybody's.
    """
    own = [_is_from(topic, retry, text) for _, _, text in result.rows()]
    return result.chosen(np.fromiter(own, np.uint8, result.count))


def _is_from(topic: str, retry: str, text: bytes) -> bool:
    origin = decode_properties(text.decode(errors="replace")).get(ORIGIN, topic)
    return origin == topic or not retry.endswith(f"_{origin}")


def _attempts_of(record: Record) -> int:
    """The failed attempts, with this one. A log copied from elsewhere may have any number."""
    return min(record.reconsume_times + 1, RECONSUME_TIMES_MAX)


@dataclass(frozen=True, slots=True)
class Again:
    """Where a copy goes. level: of a delay before; 0 for none."""

    topic: str
    queue_id: int = 0
    level: int = 0


class RetryTopics:
    """Stores messages again."""

    def __init__(self, core: Core, delays: DelayService) -> None:
        self._core = core
        self._delays = delays

    async def store_again(
        self, group: str, topic: str, record: Record, *, counts: bool = True
    ) -> None:
        """Store a message for one more attempt, or as a dead letter after the last.

        topic: the one that holds it now. counts: whether the last delivery was an attempt. Raises
        Unavailable if it was not stored, ResultUnknown if it is and may be lost with this node.
        """
        if self._is_too_old(group, record):
            return
        row = self._core.metadata.tables.groups.get(group, {})
        failed = _attempts_of(record) if counts else record.reconsume_times
        if counts and failed > int(row.get("retryMaxTimes", RETRY_TIMES)):
            await self._dead(group, record, failed)
            return
        again = Again(retry_topic(group, topic), self._queue_of_copy(topic, record))
        if not topic.startswith(RETRY_PREFIX):  # of an earlier copy, it counts no more
            record = replace(record, properties={**record.properties, ORIGIN: topic})
        await self._put(again, record, failed, {ORIGIN: record.topic})

    def _queue_of_copy(self, topic: str, record: Record) -> int:
        """The queue of a message's copy: that of its priority, which a copy of a copy keeps."""
        config = self._core.metadata.topics.get(topic)
        if topic.startswith(RETRY_PREFIX) or (config and config.message_type == PRIORITY):
            return record.queue_id
        return 0

    async def send_back(self, group: str, record: Record, level: int, max_attempts: int) -> str:
        """Store a message for one more attempt after a delay; the topic that holds it now.

        RocketMQ: CONSUMER_SEND_MSG_BACK. level: 0 for the next one by attempts; negative gives the
        message up. max_attempts: 0 for the group's. Raises as `store_again`, BadRequest for a level
        that does not exist, NoSuchMessage for a message that was there before its topic or group.
        """
        self._check_age(group, record)
        row = self._core.metadata.tables.groups.get(group, {})
        failed = _attempts_of(record)
        if level < 0 or failed > (max_attempts or int(row.get("retryMaxTimes", RETRY_TIMES))):
            await self._dead(group, record, failed)
            return dead_letter_topic(group)
        again = Again(group_retry_topic(group), level=level or FIRST_LEVEL + failed - 1)
        await self._put(again, record, failed, {ORIGIN: record.topic})
        return again.topic

    async def to_dead_letters(self, group: str, record: Record) -> None:
        """Store a message as a dead letter at once. Raises as `send_back`."""
        self._check_age(group, record)
        await self._dead(group, record, _attempts_of(record))

    def _is_too_old(self, group: str, record: Record) -> bool:
        """Whether it was left by another topic or group of the same name, that was deleted."""
        return is_too_old(self._core.metadata.births, record, record.topic, group)

    def _check_age(self, group: str, record: Record) -> None:
        if self._is_too_old(group, record):
            raise sdk.NoSuchMessage(
                f"the message at {record.topic}/{record.queue_id} {record.queue_offset} is older "
                f"than its topic or group {group}, which was deleted and made again"
            )

    async def _dead(self, group: str, record: Record, failed: int) -> None:
        self._core.metadata.check_not_deleting(group)
        origin = {"DLQ_ORIGIN_TOPIC": origin_of(record)}
        unique = record.properties.get("UNIQ_KEY")
        if unique:
            origin["DLQ_ORIGIN_MESSAGE_ID"] = unique
        await self._put(Again(dead_letter_topic(group)), record, failed, origin)
        self._core.traffic.dead.add((origin_of(record), group), 1, len(record.body))

    async def _put(self, again: Again, record: Record, failed: int, more: dict[str, str]) -> None:
        """more: properties set where the message does not have them yet."""
        topic, level = again.topic, again.level
        self._core.metadata.make_internal(topic, again.queue_id + 1)
        properties = {**more, "ORIGIN_MESSAGE_ID": record.message_id, **record.properties}
        room = PROPERTIES_BYTES_MAX - (WAITING_BYTES if level else 0)
        batch = stored_again(record, topic, properties, failed, room)
        batch = replace(batch, queue_id=again.queue_id)
        if level and batch.columns.longest_properties <= room:
            batch = self._delays.at_level(batch, level)
        # Else a record has no room for where it waits: it is delivered again at once.
        result = await self._core.log.put_and_wait(batch)
        if result.status in WEAK:  # a repeat would store it once more
            raise sdk.ResultUnknown(f"{topic}: {result.status.value}", result.status.value)
        if result.status is not PutMessageStatus.PUT_OK:
            raise sdk.Unavailable(f"{topic}: {result.status.value} {result.reason}")
