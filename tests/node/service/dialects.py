"""A client of each protocol: the operations of the service, as methods of the same names.

Each returns something false where the operation is refused.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import duolog
import grpc
import grpc.aio
from duolog._columns import pack
from duolog._frameschannel import FramesChannel
from duolog.wire import duolog_pb2 as wire

from duolog_server.compat.grpc.protocol.stubs import admin, definition, service
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.node.broker import Broker
from duolog_server.serve.server import Node
from duolog_server.store.record import TRANSACTION_COMMIT, encode_properties
from tests.compat.grpc.administration.api import AdminApi, as_admin
from tests.compat.grpc.api import Api, message, resource
from tests.compat.grpc.users import PASSWORD, as_user
from tests.compat.remoting.client import Remoting, connected, receipts, records
from tests.compat.remoting.guarding.asked import signs
from tests.node.api.test_messages import append, append_request
from tests.node.replicas import broker_of

BODY = b"x" * 10
GROUP, PRODUCERS = "known", "p"
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
DIALECTS = ("gRPC", "frames", "rocketmq", "remoting")
_NUMBERS = count()


def fresh_id() -> str:
    """A unique key."""
    return f"01{next(_NUMBERS):032X}"


class Native:
    """The native API."""

    def __init__(self, broker: Broker, client: duolog.Client) -> None:
        self._broker = broker
        self._client = client
        self._seed = client._router.seed

    async def send(self, topic: str = "T", delay: int = 0, count: int = 1, **more: Any) -> bool:
        due = self._broker.times.wall_ms() + 1000 * delay if delay else 0
        text = [
            encode_properties({"traceparent": TRACE, "KEYS": "k", "UNIQ_KEY": fresh_id()}).encode()
            for _ in range(count)
        ]
        properties, offsets = pack(text)
        request = append_request(
            [BODY] * count,
            topic=topic,
            deliver_time=due,
            properties=properties,
            property_offsets=offsets,
            **more,
        )
        self.reply = await append(self._client, request)
        return bool(self.reply.status == wire.PUT_OK)

    async def half(self) -> Any:
        sent = await self.send(transaction_group=PRODUCERS, immunity_seconds=600)
        return [self.reply.queue_offset] if sent else None

    async def decide(self, half: list[int]) -> bool:
        request = wire.EndTransactionsRequest(group=PRODUCERS, halves=half, commit=True)
        return await self._done(lambda left: self._seed.messages.EndTransactions(request))

    async def pull(self, group: str = GROUP) -> int:
        """Subscribe: a pull names no group."""
        call = self._seed.messages.Subscribe(timeout=10)
        queue = wire.QueueOffset(topic="T")
        await call.write(wire.SubscribeRequest(add=[queue], group=group, credit_bytes=1 << 20))
        try:
            batch = await call.read()
            return len(batch.bodies) // len(BODY) if isinstance(batch, wire.MessageBatch) else 0
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
                raise
            return 0
        finally:
            call.cancel()

    async def commit(self, topic: str = "T", queue: int = 0, offset: int = 1) -> bool:
        place = wire.QueueOffset(topic=topic, queue_id=queue, offset=offset)
        # One that may go back is a change by an operator, whatever program sends it.
        request = wire.CommitRequest(group=GROUP, offsets=[place], forward=True)
        return await self._done(lambda left: self._seed.groups.Commit(request, timeout=left))

    async def query(self, topic: str = "T") -> bool:
        request = wire.FindRequest(topic=topic, key="k")
        return await self._done(lambda left: self._seed.messages.Find(request, timeout=left))

    async def _done(self, call: Any) -> bool:
        try:
            await self._seed.call(call, 10)
        except duolog.DuologError:
            return False
        return True


class Rocketmq:
    """RocketMQ's API over gRPC."""

    def __init__(self, broker: Broker, api: Api, admins: AdminApi) -> None:
        self._broker = broker
        self._api = api
        self._admin = admins

    async def send(self, topic: str = "T", delay: int = 0, count: int = 1, **more: Any) -> bool:
        if delay:
            more["delivery_ms"] = self._broker.times.wall_ms() + 1000 * delay
        messages = [
            message(BODY, topic, keys=["k"], properties={"traceparent": TRACE}, **more)
            for _ in range(count)
        ]
        self.sent, (self.message, *_) = await self._api.send(*messages), messages
        return bool(self.sent.status.code == 20000)

    async def half(self) -> Any:
        if not await self.send(message_type=definition.MessageType.TRANSACTION):
            return None
        return self.sent.entries[0].transaction_id, self.message.system_properties.message_id

    async def decide(self, half: tuple[str, str]) -> bool:
        request = service.EndTransactionRequest(
            topic=resource("T"),
            transaction_id=half[0],
            message_id=half[1],
            resolution=definition.TransactionResolution.COMMIT,
        )
        return bool((await self._api.call("EndTransaction", request)).status.code == 20000)

    async def pull(self, group: str = GROUP) -> int:
        request = service.PullMessageRequest(
            group=resource(group),
            message_queue=definition.MessageQueue(topic=resource("T"), id=0),
            batch_size=32,
            filter_expression=definition.FilterExpression(expression="*"),
        )
        call = self._api.stub.PullMessage(request, timeout=10, metadata=self._api.metadata)
        return sum([reply.WhichOneof("content") == "message" async for reply in call])

    async def commit(self, topic: str = "T", queue: int = 0, offset: int = 1) -> bool:
        where = definition.MessageQueue(topic=resource(topic), id=queue)
        request = service.UpdateOffsetRequest(
            group=resource(GROUP), message_queue=where, offset=offset
        )
        return bool((await self._api.call("UpdateOffset", request)).status.code == 20000)

    async def query(self, topic: str = "T") -> bool:
        request = admin.ListMessageRequest(topic=resource(topic), message_key="k")
        return await self._admin.code("QueryMessage", request) == 20000

    async def receive(self, group: str = GROUP) -> list[str]:
        return (await self._api.receive(group)).handles

    async def ack(self, handles: list[str]) -> bool:
        return bool((await self._api.ack(GROUP, *handles)).status.code == 20000)

    async def change(self, handles: list[str]) -> bool:
        changed = [await self._api.change(GROUP, handle, 30_000) for handle in handles]
        return all(reply.status.code == 20000 for reply in changed)


class OverRemoting:
    """The remoting protocol."""

    def __init__(self, client: Remoting) -> None:
        self._client = client

    async def send(
        self, topic: str = "T", delay: int = 0, count: int = 1, half: str = "", **more: Any
    ) -> bool:
        properties = {"traceparent": TRACE, "KEYS": "k", "UNIQ_KEY": half or fresh_id()}
        if delay:
            properties["TIMER_DELAY_SEC"] = str(delay)
        if half:
            properties |= {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
        text, body = encode_properties(properties), BODY
        if count > 1:
            body = count * _in_batch(text.encode())
            text, more = "", {"batch": "true"}
        self.answer = await self._client.send(topic, body, text, **more)
        return self.answer.code == 0

    async def half(self) -> Any:
        unique = fresh_id()
        if not await self.send(half=unique):
            return None
        return int(self.answer.fields["queueOffset"]), unique

    async def decide(self, half: tuple[int, str]) -> bool:
        fields = {
            "producerGroup": PRODUCERS,
            "tranStateTableOffset": half[0],
            "commitLogOffset": 0,
            "commitOrRollback": TRANSACTION_COMMIT,
            "msgId": half[1],
        }
        return (await self._client.ask(RequestCode.END_TRANSACTION, fields)).code == 0

    async def pull(self, group: str = GROUP) -> int:
        whole: dict[str, Any] = {"sysFlag": 4, "subscription": "*", "expressionType": "TAG"}
        return len(records((await self._client.pull(group, "T", 0, **whole)).body))

    async def receive(self, group: str = GROUP) -> list[str]:
        found = await self._client.pop(group, "T", maxMsgNums=1)
        return [one.extra_info for one in receipts(found)]

    async def ack(self, handles: list[str]) -> bool:
        return all([(await self._client.ack(GROUP, "T", one)).code == 0 for one in handles])

    async def change(self, handles: list[str]) -> bool:
        changed = [await self._client.change(GROUP, "T", one, 30_000) for one in handles]
        return all(answer.code == 0 for answer in changed)

    async def commit(self, topic: str = "T", queue: int = 0, offset: int = 1) -> bool:
        place = {"consumerGroup": GROUP, "topic": topic, "queueId": queue}
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        return (await self._client.ask(code, {**place, "commitOffset": offset})).code == 0

    async def query(self, topic: str = "T") -> bool:
        times = {"beginTimestamp": 0, "endTimestamp": 1 << 50}
        how = {"topic": topic, "key": "k", "maxNum": 32, **times}
        return (await self._client.ask(RequestCode.QUERY_MESSAGE, how)).code == 0


def _in_batch(properties: bytes) -> bytes:
    """A message of a batch: size, magic, CRC, flag, body, properties."""
    rest = len(BODY).to_bytes(4) + BODY + len(properties).to_bytes(2) + properties
    return (16 + len(rest)).to_bytes(4) + bytes(12) + rest


def client_of(node: Node, user: str = "") -> duolog.Client:
    """The SDK's client. user: who calls, where there are users."""
    password = PASSWORD.format(user) if user else ""
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=10, user=user, password=password)


Dialect = Native | Rocketmq | OverRemoting


@asynccontextmanager
async def dialect_of(node: Node, name: str, user: str = "") -> AsyncIterator[Dialect]:
    """A client of one protocol. user: who calls, where there are users.

    The SDK's client goes by DUOLOG_TRANSPORT.
    """
    broker = broker_of(node)
    if name == "rocketmq":
        api = as_user(node, user) if user else Api(node)
        admins = as_admin(node, user) if user else AdminApi(node)
        yield Rocketmq(broker, api, admins)
        await api.close()
        await admins.close()
    elif name == "remoting":
        async with connected(node, sign=signs(user) if user else None) as one:
            yield OverRemoting(one)
    else:
        async with client_of(node, user) as client:
            seed = client._router.seed
            await seed.settled(10)
            assert isinstance(seed.channel, FramesChannel) == (name == "frames")
            yield Native(broker, client)
