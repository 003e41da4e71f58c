"""Delayed messages of a master: pages of them, and the recall of one.

Rules: a page looks at EXAMINED_MAX messages at most, in slices, and LOOKS_MAX times at what is due
next. Where many were recalled, or few are of the topic that is asked for, it is short, and says
where the next one begins.
"""

from collections.abc import Callable

from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.api.waiting.duetimes import Due, bounds, due_of, next_due
from duolog_server.node.broker import Broker
from duolog_server.node.core.births import is_too_old
from duolog_server.node.core.slices import Slices
from duolog_server.node.deferred.delayservice import RecallHandle
from duolog_server.store.errors import StoreError
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.record import Record

LIMIT, LIMIT_MAX = 100, 1000
AT_ONCE = 250  # messages between two looks at what is due
EXAMINED_MAX = 2000
LOOKS_MAX = 64  # of which some find recalled messages only


def limit_of(limit: int) -> int:
    """How many rows a page has at most. Raises BadRequest."""
    if limit > LIMIT_MAX:
        raise sdk.BadRequest(f"limit is {limit}; it must be 0 to {LIMIT_MAX}")
    return limit or LIMIT


class Delayed:
    """The delayed messages of this node, while it is the master."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.core.store

    async def page(
        self, request: wire.ListDelayedRequest, sees: Callable[[str], bool]
    ) -> wire.ListDelayedReply:
        """A page. sees: whether the caller may know of a topic.

        Raises BadRequest, NotMaster, Unavailable.
        """
        self._broker.admission.check_current()
        after, limit, slices = due_of(request.after), limit_of(request.limit), Slices()
        waiting, first, last = bounds(self._broker.delays, self._store)
        reply = wire.ListDelayedReply(
            group=self._broker.group, waiting=waiting, first_due_time=first, last_due_time=last
        )
        for _ in range(LOOKS_MAX):
            await slices.turn()
            part = next_due(self._broker.delays, self._store, after, AT_ONCE)
            async for due in slices.each(part.rows):
                self._add(reply, due, request.topic, sees)
                after = due
                if len(reply.messages) == limit or reply.examined == EXAMINED_MAX:
                    reply.next = self._next(due)
                    return reply
            if part.reached is None:
                return reply
            after = part.reached
            self._broker.admission.check_current()
        reply.next = after.to_text()
        return reply

    def _next(self, due: Due) -> str:
        """The end of a page, if anything follows it."""
        part = next_due(self._broker.delays, self._store, due, 1)
        return due.to_text() if part.rows or part.reached is not None else ""

    def _add(
        self, reply: wire.ListDelayedReply, due: Due, topic: str, sees: Callable[[str], bool]
    ) -> None:
        """Look at a message, and add it if it is one of those that are asked for."""
        reply.examined += 1
        waits_in, queue_id, offset = due.place
        record = self._record(waits_in, queue_id, offset)
        if record is None:  # damaged, or deleted by retention
            return
        properties = record.properties
        goes_to = properties.get("REAL_TOPIC", "")
        if (topic and goes_to != topic) or not sees(goes_to):
            return
        if is_too_old(self._broker.metadata.births, record, goes_to):
            return  # its topic was deleted: it will be dropped
        reply.messages.add(
            topic=goes_to,
            due_time=due.time_ms,
            level=due.level,
            waits_in=waits_in,
            queue_id=queue_id,
            queue_offset=offset,
            store_time=record.store_time,
            size=len(record.body),
            unique_key=properties.get("UNIQ_KEY", ""),
            keys=properties.get("KEYS", ""),
            tags=properties.get("TAGS", ""),
        )

    def _record(self, topic: str, queue_id: int, offset: int) -> Record | None:
        try:
            return self._store.record_at(topic, queue_id, QueueOffset(offset))
        except StoreError:
            return None

    async def recall(self, request: wire.RecallDelayedRequest) -> None:
        """Recall a timed message. Raises NoSuchMessage where it does not wait, NotMaster, Busy,
        ResultUnknown, Unavailable.
        """
        handle = RecallHandle(
            self._broker.group, request.topic, request.queue_offset, request.unique_key
        )
        await self._broker.delays.recall(request.topic, handle)
