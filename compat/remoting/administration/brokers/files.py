"""The broker's files: entries of its queues, and the upkeep that tools may ask for."""

from duolog_server.compat.remoting.administration.bodies import dumps, subscription_row
from duolog_server.compat.remoting.codec.command import BadRequest, Command
from duolog_server.compat.remoting.codec.fastjson import Value
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.headers import ConsumeQueueRequest, ResumeCheckRequest
from duolog_server.compat.remoting.members import Members
from duolog_server.node.broker import Broker
from duolog_server.node.consuming.longpoll import check_place
from duolog_server.node.deferred.transactionservice import HALF_TOPIC

ENTRIES_MAX = 1024


class Files:
    """Serves requests about files."""

    def __init__(self, broker: Broker, members: Members) -> None:
        self._broker = broker
        self._members = members

    async def entries(self, request: Command) -> Command:
        """QUERY_CONSUME_QUEUE: its entries, without their messages.

        Raises UnknownTopic, NoPermission, BadRequest.
        """
        header = read_header(ConsumeQueueRequest, request.fields)
        key = header.topic, header.queue_id
        await self._broker.log.caught_up()
        check_place(
            key, self._broker.admission.readable_queue(*key).read_queues, max(0, header.index)
        )
        low, high = self._broker.core.store.queue_range(*key)
        if not low <= header.index < high:
            raise BadRequest(
                f"Index {header.index} of ConsumeQueue is not exist: it has [{low}, {high})"
            )
        count = min(max(1, header.count), ENTRIES_MAX, high - header.index)
        table = self._broker.core.store.entries(*key, header.index, count)
        rows: list[Value] = [
            {"eval": False, "physicOffset": offset, "physicSize": size, "tagsCode": code}
            for offset, size, code in table.T.tolist()
        ]
        body: dict[str, object] = {
            "maxQueueIndex": high,
            "minQueueIndex": low,
            "queueData": rows,
        }
        subscription = self._members.reads(header.consumer_group).get(header.topic)
        if subscription is not None:
            body["subscriptionData"] = subscription_row(subscription)
        return request.answer(0, body=dumps(body))

    @staticmethod
    def clean(request: Command) -> Command:
        """CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC: the node does it by itself.

        Files of queues go with the segments that they are about, and with their topics.
        """
        return request.answer(0)

    async def resume_check(self, request: Command) -> Command:
        """RESUME_CHECK_HALF_MESSAGE: the checks of one that waits continue anyway.

        Raises BadMessage, StoreError, BadRequest for one that does not wait any more.
        """
        message_id = read_header(ResumeCheckRequest, request.fields).msg_id
        await self._broker.log.caught_up()
        record = self._broker.core.store.lookups.by_id(message_id)
        halves = self._broker.transactions.halves
        if record.topic != HALF_TOPIC or halves is None or not halves.lies_at(record.queue_offset):
            raise BadRequest(
                "the message does not wait for a decision: it is decided, or was given up and is "
                "in TRANS_CHECK_MAX_TIME_TOPIC"
            )
        return request.answer(0)
