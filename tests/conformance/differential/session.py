"""A connection to a side: requests as clients send them, and the notes of their answers."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from duolog_server.compat.remoting.calling import place_of
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command, Serialization
from duolog_server.store.record import Record
from tests.compat.remoting.client import LETTERS, Remoting, records
from tests.conformance.differential.seen import Seen

SECONDS = 60.0
HOLD_MS = 500
NO_ANSWER = -1  # as the code of a request that nobody answers
HAS_SUBSCRIPTION, SUSPENDS = 4, 2
BORN_MS = 1_700_000_000_000
GROUP = "g"
Cases = dict[str, dict[str, Any]]  # fields of requests by name


class Session:
    """One connection. address: where to. told: what the other side asked by itself."""

    def __init__(self, address: str, remoting: Remoting, seen: Seen) -> None:
        self._remoting = remoting
        self.address = address
        self.seen = seen
        self.told = remoting.told

    async def ask(
        self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"", **more: Any
    ) -> Command:
        """The answer to a request, of which nothing is noted."""
        try:
            return await self._remoting.ask(code, fields, body, **more)
        except TimeoutError:
            return Command(NO_ANSWER)

    def tell(self, code: int, fields: dict[str, Any]) -> None:
        """Send a request that has no answer."""
        self._remoting.oneway(code, fields)

    async def note(
        self, name: str, code: int, fields: dict[str, Any] | None = None, body: bytes = b""
    ) -> Command:
        """The answer to a request, noted under a name."""
        answer = await self.ask(code, fields, body)
        self.seen.answer(name, answer)
        return answer

    async def topic(self, name: str, queues: int = 4, perm: int = 6) -> str:
        """Make a topic, or alter it."""
        fields = topic_fields(name, queues, perm)
        answer = await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == 0, f"{name}: {answer.code} {answer.remark}"
        return name

    async def group(self, name: str, **more: Any) -> None:
        """Make a consumer group, or alter it."""
        row = {"groupName": name, "retryQueueNums": 1, "retryMaxTimes": 16, **more}
        body = json.dumps(row).encode()
        answer = await self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert answer.code == 0, f"{name}: {answer.code} {answer.remark}"

    async def send(self, topic: str, body: bytes, properties: str = "", **more: Any) -> Command:
        """SEND_MESSAGE_V2, of which nothing is noted."""
        fields = send_fields(topic, properties=properties, **more)
        return await self.ask(RequestCode.SEND_MESSAGE_V2, short(fields), body)

    async def delivered(
        self, topic: str, count: int = 1, queue: int = 0, seconds: float = SECONDS
    ) -> list[Record]:
        """The first messages of a queue, as soon as they are there, or fewer after some time."""
        found: list[Record] = []
        place, end = 0, time.monotonic() + seconds
        while len(found) < count and time.monotonic() < end:
            more = {"sysFlag": HAS_SUBSCRIPTION | SUSPENDS, "suspendTimeoutMillis": HOLD_MS}
            fields = pull_fields(topic, queueId=queue, queueOffset=place, **more)
            answer = await self.ask(RequestCode.PULL_MESSAGE, fields)
            if answer.code == ResponseCode.SUCCESS:
                found += records(answer.body)
                place = int(answer.fields["nextBeginOffset"])
            elif answer.code != ResponseCode.PULL_NOT_FOUND:
                await asyncio.sleep(0.05)  # its topic is not there yet
        return found


@asynccontextmanager
async def session(address: str, seen: Seen) -> AsyncIterator[Session]:
    """A connection to HOST:PORT."""
    reader, writer = await asyncio.open_connection(*place_of(address))
    remoting = Remoting(reader, writer, Serialization.JSON)
    reading = asyncio.create_task(remoting.read())
    try:
        yield Session(address, remoting, seen)
    finally:
        reading.cancel()
        remoting.close()


def send_fields(topic: str, **more: Any) -> dict[str, Any]:
    """Of SEND_MESSAGE. None: without this field."""
    fields = {
        "producerGroup": "p",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": BORN_MS,
        "flag": 5,
        "properties": "",
        "reconsumeTimes": 0,
        "unitMode": "false",
        "batch": "false",
        **more,
    }
    return {name: value for name, value in fields.items() if value is not None}


def short(fields: dict[str, Any]) -> dict[str, Any]:
    """The same with the names of SEND_MESSAGE_V2."""
    return {LETTERS[name]: value for name, value in fields.items()}


def pull_fields(topic: str, **more: Any) -> dict[str, Any]:
    """Of PULL_MESSAGE; the request has the subscription. None: without this field."""
    fields = {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": HAS_SUBSCRIPTION,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 1,
        "expressionType": "TAG",
        **more,
    }
    return {name: value for name, value in fields.items() if value is not None}


def topic_fields(name: str, queues: int, perm: int) -> dict[str, Any]:
    """Of UPDATE_AND_CREATE_TOPIC."""
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": perm,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }


def properties(**pairs: object) -> str:
    """As clients write them."""
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


__all__ = [
    "BORN_MS",
    "GROUP",
    "Cases",
    "Session",
    "properties",
    "pull_fields",
    "send_fields",
    "session",
    "short",
    "topic_fields",
]
