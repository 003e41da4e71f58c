"""Transactions: decisions on half messages, and the checks that ask their producers for one."""

import struct

from duolog import _errors as sdk

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import NUMBER_MAX, ONEWAY, Command
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.headers import EndTransactionRequest
from duolog_server.compat.remoting.codec.messages import body_crc
from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.compat.remoting.members import Members
from duolog_server.node.broker import Broker
from duolog_server.node.deferred.transactionservice import Check
from duolog_server.store.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    Record,
    RecordHeader,
    encode_properties,
)

_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")
_CRC_AT, _QUEUE_OFFSET_AT, _PHYSICAL_OFFSET_AT = 8, 20, 28
NO_SUCH_HALF = "no such half message"


class Transactions:
    """Decides for producers, and asks them."""

    def __init__(self, broker: Broker, members: Members, sight: Sight) -> None:
        self._broker = broker
        self._sight = sight
        self._transactions = broker.transactions
        self._members = members
        self._numbers = 0

    def start(self) -> None:
        """Be asked for checks."""
        self._transactions.askers.append(self._ask)

    async def end(self, request: Command) -> Command:
        """END_TRANSACTION. Raises NoSuchMessage, BadRequest, Retryable, ResultUnknown."""
        header = read_header(EndTransactionRequest, request.fields)
        origin = header.tran_state_table_offset
        self._broker.admission.check_current()
        record = await self._found(origin)
        if record is not None and record.properties.get("UNIQ_KEY") != header.msg_id:
            raise sdk.BadRequest(f"half message {origin} has another id than the one named")
        if header.commit_or_rollback in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            commit = header.commit_or_rollback == TRANSACTION_COMMIT
            await self._transactions.end([origin], commit, header.producer_group)
        else:
            self._transactions.undecided([origin], header.producer_group)
        return request.answer(0)

    async def _found(self, origin: int) -> Record | None:
        """The half message, None where it is decided and deleted.

        Where there are users, all that this user may not decide is answered alike, there or not.
        Raises NoSuchMessage, Unavailable.
        """
        if not self._sight.is_limited:
            return await self._transactions.find(origin)
        try:
            record = await self._transactions.find(origin)
        except sdk.NoSuchMessage:
            record = None
        if record is None or not self._sight.may_send(_topic_of(record)):
            raise sdk.NoSuchMessage(NO_SUCH_HALF)
        return record

    async def _ask(self, check: Check) -> bool:
        """Send a check to one of the group's producers, in turn; False if none takes it."""
        topic = _topic_of(check.record)
        producers = [
            peer
            for peer, user in self._members.producers(check.group)
            if self._sight.may_decide(user, topic)
        ]
        if not producers:
            return False
        self._numbers = (self._numbers + 1) & NUMBER_MAX
        record = check.record
        unique = record.properties.get("UNIQ_KEY", "")
        fields = {
            "tranStateTableOffset": str(check.origin),
            "commitLogOffset": str(record.physical_offset),
            "msgId": unique,
            "transactionId": unique,
            "offsetMsgId": record.message_id,
        }
        code, body = RequestCode.CHECK_TRANSACTION_STATE, half_bytes(record)
        request = Command(code, self._numbers, fields, body, flag=ONEWAY)
        turn = self._numbers % len(producers)
        # One that takes nothing now must not keep the others from being asked.
        return any(producer.tell(request) for producer in producers[turn:] + producers[:turn])


def _topic_of(record: Record) -> str:
    """The topic of a half message."""
    return record.properties.get("REAL_TOPIC", record.topic)


def half_bytes(record: Record) -> bytes:
    """A half message as a record of its real queue."""
    properties = encode_properties(record.properties).encode()
    queue_id = record.properties.get("REAL_QID", "")
    header = RecordHeader(
        _topic_of(record),
        int(queue_id) if queue_id.isdecimal() else 0,
        record.born_time,
        record.store_time,
        record.born_host,
        record.store_host,
        record.flag,
        record.sysflag,
        record.reconsume_times,
        record.prepared_offset,
    )
    head, topic = bytearray(header.packed()), header.topic.encode()
    length = len(topic).to_bytes(header.topic_length_bytes(), "big")
    rest = b"".join((record.body, length, topic, len(properties).to_bytes(2, "big"), properties))
    _INT.pack_into(head, 0, len(head) + len(rest))
    _INT.pack_into(head, _CRC_AT, body_crc(record.body))
    _LONG.pack_into(head, _QUEUE_OFFSET_AT, record.queue_offset)
    _LONG.pack_into(head, _PHYSICAL_OFFSET_AT, record.physical_offset)
    _INT.pack_into(head, len(head) - _INT.size, len(record.body))
    return bytes(head) + rest
