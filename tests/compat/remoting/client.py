"""A client of the remoting protocol, as bare as one can be."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from duolog_server.compat.remoting.calling import Sign
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import ONEWAY, Command, Serialization
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX, FrameReader
from duolog_server.compat.remoting.codec.headers import SHORT_NAMES
from duolog_server.serve.server import Node
from duolog_server.store.commitlog import read_record
from duolog_server.store.record import Record
from tests.known import known

WAIT_SECONDS = 10.0
SENT_ONLY = frozenset(
    (
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    )
)
LETTERS = {name: letter for letter, name in SHORT_NAMES.items()}


class Remoting:
    """One connection. told: requests of the node."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        form: Serialization,
        sign: Sign | None = None,
    ) -> None:
        """sign: adds to a request who sends it."""
        self._reader, self._writer = reader, writer
        self._frames = FrameReader(FRAME_BYTES_MAX, header_bytes_max=FRAME_BYTES_MAX)
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._form = form
        self.sign = sign
        self.told: asyncio.Queue[Command] = asyncio.Queue()
        self.ended = asyncio.Event()

    async def read(self) -> None:
        """Take what the node sends, until it closes."""
        try:
            while data := await self._reader.read(1 << 16):
                self._frames.feed(data)
                while (command := self._frames.next()) is not None:
                    if command.is_response:
                        self._waiting.pop(command.opaque).set_result(command)
                    else:
                        self.told.put_nowait(command)
        except OSError:  # also TLS that is refused
            pass
        self.ended.set()

    def begin(
        self, code: int, fields: dict[str, Any], body: bytes = b"", **more: Any
    ) -> "asyncio.Future[Command]":
        """Send a request; its answer."""
        texts = {name: str(value) for name, value in fields.items()}
        command = Command(code, next(self._numbers), texts, body, serialization=self._form, **more)
        return self.begin_command(command if self.sign is None else self.sign(command))

    def begin_command(self, command: Command) -> "asyncio.Future[Command]":
        """Send a request as it is; its answer."""
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        if not command.is_oneway:
            self._waiting[command.opaque] = future
        self.write_command(command)
        return future

    def write_command(self, command: Command) -> None:
        """Send a command."""
        self._writer.write(command.frame())

    async def ask(
        self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"", **more: Any
    ) -> Command:
        """Send a request and wait for its answer."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.begin(code, fields or {}, body, **more)

    def oneway(self, code: int, fields: dict[str, Any], body: bytes = b"") -> None:
        """Send a request that has no answer."""
        self.begin(code, fields, body, flag=ONEWAY)

    def reply(self, request: Command, code: int = 0, body: bytes = b"", remark: str = "") -> None:
        """Answer a request of the node."""
        self._writer.write(request.answer(code, remark, body=body).frame())

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)

    def address(self) -> str:
        """Its address and port, as the node names it."""
        host, port = self._writer.get_extra_info("sockname")[:2]
        return f"{host}:{port}"

    def close(self) -> None:
        self._writer.close()

    # -- what clients do -----------------------------------------------------------------------

    async def send(
        self, topic: str, body: bytes, properties: str = "", queue_id: int = 0, **more: Any
    ) -> Command:
        """SEND_MESSAGE_V2."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.begin_send(topic, body, properties, queue_id, **more)

    def begin_send(
        self, topic: str, body: bytes, properties: str = "", queue_id: int = 0, **more: Any
    ) -> "asyncio.Future[Command]":
        """The same; its answer."""
        fields = {
            "producerGroup": "p",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 3,
            "queueId": queue_id,
            "sysFlag": 0,
            "bornTimestamp": 1_700_000_000_000,
            "flag": 5,
            "properties": properties,
            "reconsumeTimes": 0,
            **more,
        }
        short = {LETTERS[name]: value for name, value in fields.items()}
        return self.begin(RequestCode.SEND_MESSAGE_V2, short, body)

    async def beat(
        self,
        client_id: str,
        group: str,
        topic: str,
        tags: str = "*",
        version: int = 1,
        **more: Any,
    ) -> Command:
        """HEART_BEAT of a member of a group. more: of the request."""
        row = {"topic": topic, "subString": tags, "subVersion": version, "expressionType": "TAG"}
        data = {"groupName": group, "subscriptionDataSet": [row]}
        body = json.dumps({"clientID": client_id, "consumerDataSet": [data]}).encode()
        return await self.ask(RequestCode.HEART_BEAT, body=body, **more)

    async def produce(self, client_id: str, group: str = "p") -> Command:
        """HEART_BEAT of a producer."""
        body = {"clientID": client_id, "producerDataSet": [{"groupName": group}]}
        return await self.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())

    async def asked(self) -> Command:
        """The next request of the node."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.told.get()

    def pull(
        self, group: str, topic: str, offset: int, wait_ms: int = 0, **more: Any
    ) -> "asyncio.Future[Command]":
        """PULL_MESSAGE of queue 0. more: fields, and the `code` of another request that pulls."""
        code = more.pop("code", RequestCode.PULL_MESSAGE)
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 2,
            "commitOffset": 0,
            "suspendTimeoutMillis": wait_ms,
            "subVersion": 1,
            **more,
        }
        return self.begin(code, fields)

    async def assignment(
        self, client_id: str, group: str, topic: str, strategy: str = "AVG", **more: Any
    ) -> Command:
        """QUERY_ASSIGNMENT."""
        names = {"topic": topic, "consumerGroup": group, "clientId": client_id}
        row = {**names, "strategyName": strategy, "messageModel": "CLUSTERING", **more}
        return await self.ask(RequestCode.QUERY_ASSIGNMENT, {}, json.dumps(row).encode())

    async def set_mode(self, group: str, topic: str, mode: str = "POP") -> Command:
        """SET_MESSAGE_REQUEST_MODE."""
        row = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": 0}
        return await self.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(row).encode())

    async def pop(self, group: str, topic: str, wait_ms: int = 0, **more: Any) -> Command:
        """POP_MESSAGE."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.begin_pop(group, topic, wait_ms, **more)

    def begin_pop(
        self, group: str, topic: str, wait_ms: int = 0, **more: Any
    ) -> "asyncio.Future[Command]":
        """The same; its answer."""
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 60_000,
            "pollTime": wait_ms,
            "bornTime": 1_700_000_000_000,
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": "false",
            **more,
        }
        return self.begin(RequestCode.POP_MESSAGE, fields)

    async def ack(self, group: str, topic: str, receipt: str) -> Command:
        """ACK_MESSAGE."""
        return await self.ask(RequestCode.ACK_MESSAGE, _named(group, topic, receipt))

    async def change(self, group: str, topic: str, receipt: str, invisible_ms: int) -> Command:
        """CHANGE_MESSAGE_INVISIBLETIME."""
        fields = {**_named(group, topic, receipt), "invisibleTime": invisible_ms}
        return await self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)


def _named(group: str, topic: str, receipt: str) -> dict[str, Any]:
    *_, retry, _, queue_id, offset = receipt.split(" ")
    topic = f"%RETRY%{group}_{topic}" if retry == "1" else topic  # as clients do
    names = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
    return {**names, "extraInfo": receipt, "offset": offset}


@dataclass(frozen=True)
class Got:
    """A popped message, and its receipt as the Java client makes it."""

    record: Record
    extra_info: str


def receipts(answer: Command, broker_name: str = "broker-a") -> list[Got]:
    """The messages of an answer to a pop."""
    fields, found = answer.fields, []
    first = _by_queue(fields, "start")
    every = {key: text.split(",") for key, text in _by_queue(fields, "msg").items()}
    for record in records(answer.body):
        key = "1" if record.topic.startswith("%RETRY%") else "0", str(record.queue_id)
        assert every[key].pop(0) == str(record.queue_offset)
        words = [first[key], fields["popTime"], fields["invisibleTime"], fields["reviveQid"]]
        words += [key[0], broker_name, key[1], str(record.queue_offset)]
        found.append(Got(record, " ".join(words)))
    assert not any(every.values())
    return found


def _by_queue(fields: Mapping[str, str], which: str) -> dict[tuple[str, str], str]:
    text = fields.get(f"{which}OffsetInfo", "")
    rows = [one.split(" ") for one in text.split(";") if one]
    return {(mark, queue): offsets for mark, queue, offsets in rows}


def changed(receipt: str, answer: Command) -> str:
    """The receipt that the Java client makes of the answer to a change."""
    words, fields = receipt.split(" "), answer.fields
    words[0] = words[7]
    words[1:4] = fields["popTime"], fields["invisibleTime"], fields["reviveQid"]
    return " ".join(words)


@asynccontextmanager
async def connected(
    node: Node,
    form: Serialization = Serialization.JSON,
    sign: Sign | None = None,
    tls: ssl.SSLContext | None = None,
    port: int = 0,
) -> AsyncIterator[Remoting]:
    """A client of a node. port: another one than the node says."""
    host = node.config.remoting.listen.rpartition(":")[0]
    port = port or known(node.remoting).port
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    made = Remoting(reader, writer, form, sign)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(made.read())
        try:
            yield made
        finally:
            reading.cancel()
            made.close()


def records(body: bytes) -> list[Record]:
    """The records of a pull's answer."""
    memory, at, found = np.frombuffer(body, np.uint8), 0, []
    while at < len(body):
        physical = int.from_bytes(body[at + 28 : at + 36], "big")
        found.append(read_record(memory, at, len(body), physical - at))
        at += int.from_bytes(body[at : at + 4], "big")
    return found
