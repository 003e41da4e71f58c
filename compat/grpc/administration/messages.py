"""Messages looked up, and sent by an operator."""

import asyncio
import secrets
from collections.abc import Iterable

from duolog import _errors as sdk

from duolog_server.compat.grpc.administration.serving import Caller
from duolog_server.compat.grpc.protocol.codes import OK, Refused
from duolog_server.compat.grpc.protocol.messages import TRANSACTION, found, kind_of, ms_of
from duolog_server.compat.grpc.protocol.names import topic_of
from duolog_server.compat.grpc.protocol.stubs import Code, Message, admin
from duolog_server.compat.grpc.relay.calls import time_left
from duolog_server.compat.grpc.sending import Sender
from duolog_server.node.broker import Broker
from duolog_server.node.service.lookups import Lookups
from duolog_server.node.wirecodec import record_to_wire
from duolog_server.store.errors import BadMessage
from duolog_server.store.record import Record, parse_message_id

MESSAGES_MAX = 32  # of an answer, as of Messages/Find
SEND_SECONDS = 3.0
_UNSERVED = {
    "subscription": "messages are looked up by id and by key: read the topic to choose among them",
    "lite_topic": "the messages of a lite topic are not listed here: subscribe to it",
}


class Messages:
    """Serves calls about messages, on the master of this replica group."""

    def __init__(self, broker: Broker, lookups: Lookups, sender: Sender) -> None:
        self._broker = broker
        self._lookups = lookups
        self._sender = sender

    async def query(self, request: admin.ListMessageRequest) -> admin.ListMessageResponse:
        """QueryMessage. Raises as Messages/Find, Refused."""
        topic, by = topic_of(request.topic), request.WhichOneof("search_key")
        if by in _UNSERVED:
            raise Refused(Code.UNSUPPORTED, _UNSERVED[by])
        if by is None:
            raise Refused(Code.BAD_REQUEST, "say which messages (message_id or message_key)")
        if request.scroll_id or request.page_num > 1:
            raise Refused(
                Code.BAD_REQUEST,
                f"an answer is one page of at most {MESSAGES_MAX} messages: narrow the time range",
            )
        if not 0 <= request.max_message_nums <= MESSAGES_MAX:
            raise Refused(
                Code.BAD_REQUEST,
                f"max_message_nums is {request.max_message_nums}; it must be 1 to {MESSAGES_MAX}, "
                f"or 0 for {MESSAGES_MAX}",
            )
        if request.broker_name not in ("", self._broker.group):
            raise Refused(Code.MESSAGE_NOT_FOUND, f"no broker {request.broker_name[:255]!r} here")
        await self._broker.log.caught_up()
        if by == "message_id":
            rows = [by_id(self._lookups, topic, request.message_id)]
        else:
            begin_ms = ms_of(request.begin_timestamp, "begin_timestamp")
            end_ms, most = ms_of(request.end_timestamp, "end_timestamp"), request.max_message_nums
            rows = self._lookups.by_key(topic, request.message_key, most, begin_ms, end_ms)
        if request.HasField("queue_id"):
            rows = [row for row in rows if row.queue_id == request.queue_id]
        messages = [found(record_to_wire(row), request.topic) for row in rows]
        return admin.ListMessageResponse(status=OK, messages=messages)

    async def send(
        self, caller: Caller, request: admin.AdminSendMessageRequest
    ) -> admin.AdminSendMessageResponse:
        """AdminSendMessage. Raises as SendMessage, Refused."""
        topic = topic_of(request.topic)
        message = self._message(request)
        if kind_of(message.system_properties) == TRANSACTION:
            raise Refused(
                Code.BAD_REQUEST, "a half message needs a producer that decides: use SendMessage"
            )
        seconds = time_left(caller, SEND_SECONDS, SEND_SECONDS)
        deadline = asyncio.get_running_loop().time() + seconds
        (entry,) = await self._sender.send(topic, [message], caller.host, deadline)
        return admin.AdminSendMessageResponse(status=entry.status, message_id=entry.message_id)

    def _message(self, request: admin.AdminSendMessageRequest) -> Message:
        """The message, with a time where it has none."""
        message = Message(
            topic=request.topic,
            body=request.body,
            user_properties=request.user_properties,
            system_properties=request.system_properties,
        )
        system = message.system_properties
        if request.HasField("tag"):
            system.tag = request.tag
        if request.HasField("key") and request.key not in system.keys:
            system.keys.append(request.key)
        if not system.HasField("born_timestamp"):
            system.born_timestamp.FromMilliseconds(self._broker.times.wall_ms())
        return message


def identify(request: admin.AdminSendMessageRequest) -> None:
    """Give the message an id where it has none."""
    if not request.system_properties.message_id:
        request.system_properties.message_id = f"01{secrets.token_hex(16).upper()}"


def by_id(lookups: Lookups, topic: str, given: str) -> Record:
    """The message with an id: the one that its producer gave it, or that of its place in the log.

    Raises as Lookups.
    """
    try:
        return lookups.by_unique_key(topic, given)
    except sdk.NoSuchMessage as error:
        unknown = sdk.NoSuchMessage(f"{topic} has no message with the id {given[:255]!r}")
        try:
            parse_message_id(given)
        except BadMessage:
            raise unknown from error
    record = lookups.by_id(given)
    if record.topic != topic:
        raise unknown
    return record


def joined_messages(replies: Iterable[admin.ListMessageResponse]) -> admin.ListMessageResponse:
    """A Join: all of them, the oldest first, as many as one answer has."""
    rows = [row for reply in replies for row in reply.messages]
    rows.sort(key=lambda row: row.system_properties.store_timestamp.ToMilliseconds())
    return admin.ListMessageResponse(status=OK, messages=rows[:MESSAGES_MAX])
