"""Half messages of a master: pages of those that nobody decided on, and an operator's decision.

Rules: the order is that of the queue where they are, so that those checked last come last: one that
is checked between two pages is on both. A page looks at EXAMINED_MAX places of the queue at most.
"""

from collections.abc import Callable

from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.api.waiting.delayed import limit_of
from duolog_server.node.broker import Broker
from duolog_server.node.core.slices import Slices
from duolog_server.node.deferred.halfmessages import Half, HalfMessages
from duolog_server.node.deferred.transactionservice import GROUP, HALF_TOPIC, QUEUE
from duolog_server.node.runtime.numerals import number_of
from duolog_server.store.errors import StoreError
from duolog_server.store.offsets import QueueOffset

EXAMINED_MAX = 200_000
AT_ONCE = 2000  # places of the queue, between two turns of others
OFFSET_MAX = (1 << 63) - 1

Sees = Callable[[str], bool]


class Halves:
    """The half messages of this node, while it is the master."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def page(self, request: wire.ListHalvesRequest, sees: Sees) -> wire.ListHalvesReply:
        """A page. sees: whether the caller may know of a topic.

        Raises BadRequest, NotMaster, Unavailable, NoSuchMessage.
        """
        self._broker.admission.check_current()
        halves = self._known()
        reply = wire.ListHalvesReply(
            group=self._broker.group,
            waiting=len(halves),
            checks_max=self._broker.transactions.checks_max,
        )
        if request.HasField("half"):
            half = halves.get(request.half)
            if half is None or not self._add(reply, half, request.topic, sees):
                raise sdk.NoSuchMessage(f"no half message {request.half} waits for a decision")
            return reply
        await self._fill(reply, request, sees, halves)
        return reply

    async def _fill(
        self,
        reply: wire.ListHalvesReply,
        request: wire.ListHalvesRequest,
        sees: Sees,
        halves: HalfMessages,
    ) -> None:
        """The rows of a page, in slices."""
        limit, begin = limit_of(request.limit), self._begin(request.after)
        end = self._broker.core.store.next_offset(HALF_TOPIC, QUEUE)
        stop, slices = min(end, begin + EXAMINED_MAX), Slices()
        async for part in slices.parts(range(begin, stop), AT_ONCE):
            self._check_same(halves)
            for offset in filter(halves.lies_at, part):
                half = halves.get(halves.origin_at(offset))
                assert half is not None, "it lies there"
                self._add(reply, half, request.topic, sees)
                if len(reply.messages) == limit:
                    reply.next = str(offset) if offset + 1 < end else ""
                    return
                await slices.turn()  # a row is a read
                self._check_same(halves)
        reply.next = str(stop - 1) if stop < end else ""

    def _check_same(self, halves: HalfMessages) -> None:
        """Raise Unavailable where the half messages were read anew in others' turn."""
        if halves is not self._broker.transactions.halves:
            raise sdk.Unavailable("the master changed during the call")

    def _known(self) -> HalfMessages:
        halves = self._broker.transactions.halves
        if halves is None:
            raise sdk.Unavailable("the half messages are being read from the log: try again")
        return halves

    def _begin(self, after: str) -> int:
        """The first place that a page looks at. Raises BadRequest."""
        core = self._broker.core
        noted = core.metadata.tables.committed(GROUP, HALF_TOPIC, QUEUE)
        low = max(int(core.store.queue_range(HALF_TOPIC, QUEUE)[0]), noted)
        if not after:
            return low
        place = number_of(after, OFFSET_MAX)
        if place is None:
            raise sdk.BadRequest(f"{after[:80]!r} is not the end of a page of half messages")
        return max(low, place + 1)

    def _add(self, reply: wire.ListHalvesReply, half: Half, topic: str, sees: Sees) -> bool:
        """Add a half message if it is one of those that are asked for."""
        if (topic and half.topic != topic) or not sees(half.topic):
            return False
        if self._broker.transactions.is_too_old(half):
            return False  # its topic was deleted: it will be dropped
        times = self._broker.core.times
        row = reply.messages.add(
            topic=half.topic,
            producer_group=half.group,
            half=half.origin,
            queue_offset=half.offset,
            store_time=half.stored_ms,
            checks=half.checks,
            next_check_time=times.wall_ms() + half.check_ms - times.mono_ms(),
        )
        try:
            place = QueueOffset(half.offset)
            record = self._broker.core.store.record_at(HALF_TOPIC, QUEUE, place)
        except StoreError:
            return True
        if record is not None:  # it is readable already
            row.size = len(record.body)
            row.unique_key = record.properties.get("UNIQ_KEY", "")
            row.keys = record.properties.get("KEYS", "")
            row.tags = record.properties.get("TAGS", "")
        return True

    async def decide(self, request: wire.DecideHalfRequest) -> None:
        """Commit a half message, or roll it back. Raises as `TransactionService.end`."""
        await self._broker.transactions.end([request.half], request.commit, request.group)
