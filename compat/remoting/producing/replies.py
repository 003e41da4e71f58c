"""Replies to requests: pushed to the client that asked, and stored as messages.

A client that asks (`producer.request`) names itself in a property of its message. The reply is sent
to a broker that has the topic of replies, and pushed from there to that client, as far as it is
connected to it. As in RocketMQ, the sender gets the result of the push; a reply that cannot be
stored is no error.
"""

from collections.abc import Coroutine
from dataclasses import replace

from duolog import _errors as sdk

from duolog_server.compat.remoting.answers import Held
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.fields import write_header
from duolog_server.compat.remoting.codec.headers import SendRequest, read_send
from duolog_server.compat.remoting.codec.messages import END, properties_text, property_of
from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.compat.remoting.members import Members
from duolog_server.compat.remoting.port.dispatcher import Begun, Peer
from duolog_server.compat.remoting.producing.sending import REGION, Sending
from duolog_server.compat.remoting.refusals import refusal
from duolog_server.node.broker import Broker

PUSH_SECONDS = 10.0  # RocketMQ's
HELD_BYTES_MAX = 64 << 20  # of replies whose clients have not answered
_STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
_CODES = {
    RequestCode.SEND_REPLY_MESSAGE: RequestCode.SEND_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2: RequestCode.SEND_MESSAGE_V2,
}


class Replies:
    """Brings replies to the clients that wait for them."""

    def __init__(
        self, broker: Broker, members: Members, sending: Sending, sight: Sight, stores: bool
    ) -> None:
        """stores: whether replies are stored as well (store_reply_message_enable)."""
        self._broker = broker
        self._sight = sight
        self._members = members
        self._sending = sending
        self._stores = stores
        full = f"replies of {HELD_BYTES_MAX} bytes wait for their clients to read them"
        self._held = Held(HELD_BYTES_MAX, full)

    async def reply(self, peer: Peer, request: Command) -> Command:
        """SEND_REPLY_MESSAGE, SEND_REPLY_MESSAGE_V2. Raises BadRequest, Busy, Throttled."""
        header = read_send(request.code, request.fields)
        with self._held.request(request.size):
            begun = self._stored(peer, request, header)
            try:
                problem = await self._push(peer, request, header)
                stored = await self._where(begun)
            finally:
                if isinstance(begun, Coroutine):
                    begun.close()
        if stored is not None:
            where = stored
        elif problem:
            where = dict(REGION)
        else:  # a client reads these fields of every answer
            queue_id = str(max(0, header.queue_id))
            where = {"msgId": "0", "queueId": queue_id, "queueOffset": "0", **REGION}
        code = ResponseCode.SYSTEM_ERROR if problem else ResponseCode.SUCCESS
        return request.answer(code, problem, where)

    async def _push(self, peer: Peer, request: Command, header: SendRequest) -> str:
        """Give it to the client that asked; why that did not work, empty where it did."""
        text = properties_text(header.properties)
        client_id = property_of(text, b"REPLY_TO_CLIENT")
        if client_id is None:
            return "reply message properties[REPLY_TO_CLIENT] is null"
        found = self._members.producer(client_id)
        if found is None or not self._sight.is_current(found[1]):
            return f"push reply message fail, channel of <{client_id[:255]}> not found."
        try:
            pushed = self._pushed(peer, request.body, header, text)
            answer = await found[0].ask(pushed, PUSH_SECONDS)
        except OSError:  # its connection ended, or it does not answer: TimeoutError is one
            return f"push reply message to {client_id[:255]}fail."  # in RocketMQ's words
        return f"push reply message to {client_id[:255]}fail." if answer.code else ""

    def _pushed(self, peer: Peer, body: bytes, header: SendRequest, text: bytes) -> Command:
        now, host = self._broker.times.wall_ms(), self._sending.host
        pushed_at = b"PUSH_REPLY_TIME\x01%d" % now
        properties = (END.join((text, pushed_at)) + END).decode()
        fields = write_header(replace(header, properties=properties))
        del fields["batch"], fields["maxReconsumeTimes"]  # which a pushed reply does not have
        fields["bornHost"], fields["storeHost"] = peer.name, f"{host.address}:{host.port}"
        fields["storeTimestamp"] = str(now)
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        return Command(code, fields=fields, body=body)

    def _stored(self, peer: Peer, request: Command, header: SendRequest) -> Begun | None:
        """Begin to store it as a message of its topic; None where it is not.

        What is over a quota is not pushed either. Raises Throttled.
        """
        if not self._stores:
            self._sending.charge(peer, header.topic, request.size, 1)
            return None
        try:
            return self._sending.send(
                peer, replace(request, code=_CODES[RequestCode(request.code)])
            )
        except sdk.Throttled:
            raise
        except Exception as error:
            _check_refused(error)
            return None

    async def _where(self, begun: Begun | None) -> dict[str, str] | None:
        """Fields of the reply's position; None if it is not stored."""
        if begun is None:
            return None
        try:
            answer = begun if isinstance(begun, Command) else await begun
        except Exception as error:
            _check_refused(error)
            return None
        return dict(answer.fields) if answer.code in _STORED else None


def _check_refused(error: Exception) -> None:
    """Raise an error, unless it only says that the reply cannot be stored."""
    if refusal(error) is None:
        raise error
