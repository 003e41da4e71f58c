"""Questions of tools that clients answer: their state, and whether they can process a message.

The node passes them on, and the answers back. A client that does not answer in time is reported.
"""

import asyncio

from duolog import _errors as sdk

from duolog_server.compat.remoting.administration.bodies import dumps
from duolog_server.compat.remoting.codec.bodies import JSON_BYTES_MAX
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import BadRequest, Command
from duolog_server.compat.remoting.codec.fastjson import Key, MessageQueue, Value, loads
from duolog_server.compat.remoting.codec.fields import read_header, write_header
from duolog_server.compat.remoting.codec.headers import (
    ConsumeDirectlyRequest,
    ConsumerStatusRequest,
    RunningInfoRequest,
)
from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.compat.remoting.lookups import message_for
from duolog_server.compat.remoting.members import Members
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.compat.remoting.refusals import REMARK_CHARACTERS_MAX, Refused
from duolog_server.node.broker import Broker
from duolog_server.store.record import parse_message_id

ASK_SECONDS = 10.0  # RocketMQ's
STATUS_SECONDS = 5.0
CLIENTS_MAX = 100  # that are asked for one answer
CODE_MAX = (1 << 15) - 1  # that every form of a header can tell


class Asking:
    """Passes questions on."""

    def __init__(self, broker: Broker, members: Members, sight: Sight) -> None:
        self._broker = broker
        self._sight = sight
        self._members = members

    async def running_info(self, request: Command) -> Command:
        """GET_CONSUMER_RUNNING_INFO. Raises Refused, Busy."""
        header = read_header(RunningInfoRequest, request.fields)
        peer = self._member(header.consumer_group, header.client_id)
        asked = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, fields=write_header(header))
        return await self._passed_on(request, peer, asked)

    async def consume(self, request: Command) -> Command:
        """CONSUME_MESSAGE_DIRECTLY: a client processes a message, whatever its group has done.

        Both the user who asks and that of the client may read it. Raises as `message_for`, Refused,
        Busy.
        """
        header = read_header(ConsumeDirectlyRequest, request.fields)
        _, offset = parse_message_id(header.msg_id)
        record = await message_for(self._sight, self._broker, offset)
        peer = self._member(header.consumer_group, header.client_id, record.topic)
        memory = self._broker.store.log.get_data(record.physical_offset)
        fields = {**write_header(header), "brokerName": self._broker.group}
        code, body = RequestCode.CONSUME_MESSAGE_DIRECTLY, memory[: record.size].tobytes()
        return await self._passed_on(request, peer, Command(code, 0, fields, body))

    async def status(self, request: Command) -> Command:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the offsets that clients have reached.

        Raises Refused where there is no such client.
        """
        header = read_header(ConsumerStatusRequest, request.fields)
        members = {
            member.client_id: peer
            for peer, member in self._members.of(header.group).items()
            if header.client_addr in ("", member.client_id)
            and self._sight.may_consume(member.user, header.group)
        }
        if not members:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group[:255]}]",
            )
        if len(members) > CLIENTS_MAX:
            raise BadRequest(
                f"group {header.group} has {len(members)} clients, at most {CLIENTS_MAX} are "
                "asked at once: name one of them"
            )
        asked = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields=write_header(header))
        async with asyncio.TaskGroup() as tasks:
            answers = {
                client_id: tasks.create_task(self._reached(peer, asked))
                for client_id, peer in members.items()
            }
        table = {client_id: one.result() for client_id, one in answers.items()}
        return request.answer(0, body=dumps({"consumerTable": table}))

    async def _reached(self, peer: Peer, asked: Command) -> dict[Key, Value] | None:
        """The offsets of one client; None where it does not tell them."""
        try:
            answer = await peer.ask(asked, STATUS_SECONDS)
            return None if answer.code else _queue_table(answer.body)
        except (TimeoutError, ConnectionError, sdk.Busy, BadRequest):
            return None

    def _member(self, group: str, client_id: str, topic: str = "") -> Peer:
        """A client whose user may consume, and read a topic. Raises Refused."""
        for peer, member in self._members.of(group).items():
            if member.client_id != client_id or not self._sight.may_consume(member.user, group):
                continue
            if not topic or self._sight.may_get(member.user, topic):
                return peer
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer <{group[:255]}> <{client_id[:255]}> not online",
        )

    async def _passed_on(self, request: Command, peer: Peer, asked: Command) -> Command:
        answer = await self._answer(peer, asked)
        code = answer.code if 0 <= answer.code <= CODE_MAX else ResponseCode.SYSTEM_ERROR
        return request.answer(code, answer.remark[:REMARK_CHARACTERS_MAX], body=answer.body)

    @staticmethod
    async def _answer(peer: Peer, asked: Command) -> Command:
        try:
            return await peer.ask(asked, ASK_SECONDS)
        except TimeoutError:
            raise Refused(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"the client at {peer.name} did not answer within {ASK_SECONDS:g} s",
            ) from None
        except ConnectionError as error:
            raise sdk.Busy(f"the client at {peer.name} cannot be asked: {error}") from None


def _queue_table(body: bytes) -> dict[Key, Value]:
    """The offsets that a GetConsumerStatusBody names. Raises BadRequest."""
    if len(body) > JSON_BYTES_MAX:  # which holds 4,000 queues, and is read at once
        raise BadRequest(f"a client answers {len(body)} bytes, the limit is {JSON_BYTES_MAX}")
    found = loads(body)
    table = found.get("messageQueueTable") if isinstance(found, dict) else None
    rows = table.items() if isinstance(table, dict) else ()
    return {
        key: offset
        for key, offset in rows
        if isinstance(key, MessageQueue) and isinstance(offset, int)
    }
