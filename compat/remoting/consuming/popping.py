"""POP: messages with leases, for clients of RocketMQ 5 whose group reads a topic in this mode."""

import asyncio

import numpy as np
from duolog._message import RETRY_PREFIX

from duolog_server.compat.remoting.codec.bodies import TAG
from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import BadRequest, Command
from duolog_server.compat.remoting.codec.fields import read_header, write_header
from duolog_server.compat.remoting.codec.headers import (
    AckMessageRequest,
    ChangeInvisibleTimeRequest,
    ChangeInvisibleTimeResponse,
    PopMessageRequest,
    PopMessageResponse,
)
from duolog_server.compat.remoting.consuming.offsets import Offsets
from duolog_server.compat.remoting.consuming.pulling import filter_of, records_at
from duolog_server.compat.remoting.members import Members
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.compat.remoting.receipts import (
    Receipt,
    new_serial,
    offset_infos,
    order_counts,
    origin_topic,
    read_acks,
    read_receipt,
)
from duolog_server.node.broker import Broker
from duolog_server.node.identity.access.gate import name_of_caller
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.pop.popservice import Handle, Popped, PopRequest
from duolog_server.store.grouptopics import retry_topic
from duolog_server.store.record import put_reconsume_times

MESSAGES_MAX = 32  # RocketMQ's
BYTES_MAX = 4 << 20  # of records in one answer; a message that is begun is whole
INVISIBLE_MS_MAX = 12 * 3600 * 1000
# RocketMQ's client acknowledges a message that fails with this number of attempts or more before it
# (its maxReconsumeTimes) and is hours old: it would be no dead letter.
GIVES_UP_AT = 16
INIT_MAX = 1  # a group that has no offset begins at the end


class Popping:
    """Delivers messages, and handles their acknowledgements."""

    def __init__(self, broker: Broker, members: Members, offsets: Offsets) -> None:
        self._broker = broker
        self._core = broker.core
        self._pop = broker.pop
        self._members = members
        self._offsets = offsets

    async def pop(self, peer: Peer, request: Command) -> Command:
        """POP_MESSAGE. Raises what refusals know."""
        header = read_header(PopMessageRequest, request.fields)
        self._core.admission.check_current()
        await self._broker.log.caught_up()
        self._check(header)
        group, topic, serial = header.consumer_group, header.topic, new_serial()
        client = self._members.client(peer)
        wanted = PopRequest(
            group,
            topic,
            header.queue_id,
            min(header.max_msg_nums, MESSAGES_MAX),
            header.invisible_time,
            client.client_id if client is not None else peer.name,
            filter_of(header.exp_type.upper() or TAG, header.exp),
            attempt_id=header.attempt_id,
            serial=serial,
            bytes_max=BYTES_MAX,
        )
        await self._broker.receives.admit(group)
        await self._offsets.begin_to_pop(group, topic, header.init_mode == INIT_MAX)
        who = Who.at(name_of_caller(), peer.host.address)
        untaken = self._broker.untaken
        await untaken.some_room(who.address)
        wait_ms = max(0, min(header.poll_time, self._broker.limits.poll_ms_max))
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        untaken.take(who.address, 0)  # its messages are counted when there are any
        found = await self._broker.receives.receive(wanted, deadline, who)
        body = self._records(group, found)
        if not header.order:  # which counts attempts beside the records
            body = _not_given_up(body, found)
        untaken.take(who.address, len(body))
        peer.after_answer(lambda: untaken.give(who.address, len(body)))
        code = ResponseCode.SUCCESS if found else ResponseCode.POLLING_TIMEOUT
        remark = "FOUND" if found else "no new message"
        return request.answer(code, remark, write_header(self._answer(header, found, serial)), body)

    def _check(self, header: PopMessageRequest) -> None:
        """Raise BadRequest, UnknownTopic, NoPermission, NotMaster."""
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        config = self._core.admission.readable_queue(topic, max(-1, queue_id))
        if topic.startswith(RETRY_PREFIX):
            raise BadRequest(f"{topic} is not read by POP: pop the topic whose retries it has")
        if queue_id >= config.read_queues:
            raise BadRequest(f"{topic} has queues 0..{config.read_queues - 1}, not {queue_id}")
        if header.max_msg_nums < 1:
            raise BadRequest(f"the field maxMsgNums is {header.max_msg_nums}")
        _check_invisible(header.invisible_time)
        row = self._core.metadata.tables.groups.get(group, {})
        if header.order and not row.get("consumeMessageOrderly"):
            raise BadRequest(
                f"group {group!r} does not consume in order: set its consumeMessageOrderly, for "
                f"example with duolog group set {group} --orderly"
            )

    def _records(self, group: str, found: list[Popped]) -> bytes:
        """The records as they are in the log. Raises CorruptRecord for a segment that is gone."""
        places = np.array([(one.physical, one.size) for one in found], np.int64).reshape(-1, 2)
        try:
            return records_at(self._broker.store.log, places[:, 0], places[:, 1])
        except BaseException:
            for popped in found:
                self._pop.give_back(group, popped.handle)
            raise

    def _answer(
        self, header: PopMessageRequest, found: list[Popped], serial: int
    ) -> PopMessageResponse:
        handles = [popped.handle for popped in found]
        first, every = offset_infos((one.topic, one.queue_id, one.offset) for one in handles)
        counts = order_counts(
            (one.handle.queue_id, one.handle.offset, one.attempt - 1)
            for one in (found if header.order else ())
        )
        now, invisible = self._core.times.wall_ms(), header.invisible_time
        return PopMessageResponse(now, invisible, serial, 0, first, every, counts)

    # -- acknowledgements ----------------------------------------------------------------------

    def ack(self, request: Command) -> Command:
        """ACK_MESSAGE. Raises BadRequest, NotMaster."""
        header = read_header(AckMessageRequest, request.fields)
        self._core.admission.check_current()
        group, receipt = header.consumer_group, read_receipt(header.extra_info)
        handle = self._handle(group, header.topic, receipt)
        if handle is None or not self._pop.ack(group, handle):
            return _no_lease(request, 1)
        return request.answer(0)

    def ack_batch(self, request: Command) -> Command:
        """BATCH_ACK_MESSAGE. Raises BadRequest, NotMaster."""
        batches = read_acks(request.body)
        self._core.admission.check_current()
        stale = 0
        for acks in batches:
            for receipt in acks.receipts:
                handle = self._handle(acks.group, acks.topic, receipt)
                stale += handle is None or not self._pop.ack(acks.group, handle)
        return _no_lease(request, stale) if stale else request.answer(0)

    def change(self, request: Command) -> Command:
        """CHANGE_MESSAGE_INVISIBLETIME. Raises BadRequest, NotMaster."""
        header = read_header(ChangeInvisibleTimeRequest, request.fields)
        self._core.admission.check_current()
        _check_invisible(header.invisible_time)
        group, serial = header.consumer_group, new_serial()
        handle = self._handle(group, header.topic, read_receipt(header.extra_info))
        invisible = header.invisible_time
        if handle is None or not self._pop.change_invisible(
            group, handle, invisible, serial=serial
        ):
            return _no_lease(request, 1, write_header(ChangeInvisibleTimeResponse()))
        now = self._core.times.wall_ms()
        made = ChangeInvisibleTimeResponse(now, invisible, serial)
        return request.answer(0, fields=write_header(made))

    def _handle(self, group: str, topic: str, receipt: Receipt) -> Handle | None:
        """The delivery that a receipt names; None where it is of another replica group."""
        if receipt.broker_name != self._broker.group:
            return None
        topic = origin_topic(group, topic)
        read = retry_topic(group, topic) if receipt.is_retry else topic
        return Handle(read, receipt.queue_id, receipt.offset, receipt.serial)


def _not_given_up(body: bytes, found: list[Popped]) -> bytes:
    """Records with fewer attempts than those at which clients give messages up."""
    if not any(popped.attempt > GIVES_UP_AT for popped in found):
        return body
    records, at = bytearray(body), 0
    for popped in found:
        if popped.attempt > GIVES_UP_AT:
            put_reconsume_times(records, at, at + popped.size, GIVES_UP_AT - 1)
        at += popped.size
    return bytes(records)


def _check_invisible(invisible_ms: int) -> None:
    if not 1 <= invisible_ms <= INVISIBLE_MS_MAX:
        raise BadRequest(
            f"the field invisibleTime is {invisible_ms} ms, it must be 1 to {INVISIBLE_MS_MAX} ms"
        )


def _no_lease(request: Command, count: int, fields: dict[str, str] | None = None) -> Command:
    remark = (
        f"{count} receipts have expired, or were acknowledged or replaced: these messages are "
        "delivered again, or another consumer has them"
    )
    return request.answer(ResponseCode.NO_MESSAGE, remark, fields or {})
