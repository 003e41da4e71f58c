"""A producer and a consumer of the classic protocol that may be sent to another broker."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise

from duolog_server.compat.remoting.calling import ANYBODY, Access, Calling, CallRefused, connect
from duolog_server.compat.remoting.codec.codes import RequestCode
from tests.compat.remoting.client import LETTERS, records

TOPIC, GROUP, QUEUES = "T", "g", 4
CREATE_TOPIC = 17
PACE_SECONDS = 0.002  # between two messages
SEND_SECONDS = 3.0  # of a producer that goes on with another message
ONCE_SECONDS = 60.0  # of a message that must be stored, and not twice
AWAY = (CallRefused, OSError, TimeoutError)


async def create_topic(address: str, access: Access = ANYBODY) -> None:
    """As an administrator does."""
    calling = await connect(address, access)
    try:
        await calling.call(
            CREATE_TOPIC,
            {
                "topic": TOPIC,
                "defaultTopic": "TBW102",
                "readQueueNums": str(QUEUES),
                "writeQueueNums": str(QUEUES),
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
        )
    finally:
        calling.close()


async def send(
    calling: Calling,
    body: bytes,
    properties: str = "",
    sysflag: int = 0,
    *,
    seconds: float = ONCE_SECONDS,
) -> None:
    """One message, into the queue that its body chooses. Raises one of AWAY."""
    fields = {
        "producerGroup": "p",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": str(sum(body) % QUEUES),
        "sysFlag": str(sysflag),
        "bornTimestamp": str(int(time.time() * 1000)),
        "flag": "0",
        "properties": properties,
        "reconsumeTimes": "0",
    }
    short = {LETTERS[name]: value for name, value in fields.items()}
    await calling.call(RequestCode.SEND_MESSAGE_V2, short, body, seconds=seconds)


class _Mover:
    """Has a connection to where it was sent last."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._calling: Calling | None = None
        self._to = ""

    async def calling(self) -> Calling:
        if self._calling is None or not self._calling.is_open or self._to != self.address:
            if self._calling is not None:
                self._calling.close()
            self._to = self.address
            self._calling = await connect(self._to)
        return self._calling


class Producer(_Mover):
    """Sends numbered messages. acknowledged: their bodies.

    next_address: where it tries as well when a send fails, as clients do that know several.
    """

    def __init__(self, address: str, size: int) -> None:
        super().__init__(address)
        self.acknowledged: list[bytes] = []
        self.next_address = ""
        self._size = size
        self._acknowledgements: list[tuple[float, str]] = []  # when, and by whom

    def acknowledged_by(self, address: str) -> int:
        """How many messages an address has acknowledged."""
        return sum(by == address for _, by in self._acknowledgements)

    def gaps(self, since: float, longer: float) -> list[tuple[float, float, str]]:
        """Times without an acknowledgement: their begin and end (`monotonic`), and who ended them.

        since: those that ended before do not count. longer: in seconds.
        """
        pairs = pairwise(self._acknowledgements)
        return [
            (begin, end, by)
            for (begin, _), (end, by) in pairs
            if end > since and end - begin > longer
        ]

    async def run(self) -> None:
        number = 0
        while True:
            number += 1  # a message whose fate is not known is not sent again
            body = b"%08d-" % number + b"x" * (number * 37 % self._size)
            try:
                await send(await self.calling(), body, seconds=SEND_SECONDS)
            except AWAY:
                if self.next_address:
                    self.address, self.next_address = self.next_address, self.address
                await asyncio.sleep(0.02)
                continue
            self.acknowledged.append(body)
            self._acknowledgements.append((time.monotonic(), self._to))
            await asyncio.sleep(PACE_SECONDS)


class Consumer(_Mover):
    """Reads all queues, and commits what it read. bodies: how often each came.

    As RocketMQ's consumers do, it asks a broker once where it is, and then knows it by itself.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.bodies: Counter[bytes] = Counter()
        self._places: dict[tuple[str, int], int] = {}

    async def run(self) -> None:
        while True:
            calling = None
            with suppress(*AWAY):
                calling = await self.calling()
                for queue in range(QUEUES):
                    await self._read(calling, queue)
            await asyncio.sleep(0.02 if calling is not None else 0.1)

    async def _read(self, calling: Calling, queue: int) -> None:
        place = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue)}
        known = self._to, queue
        if known not in self._places:
            self._places[known] = await self._committed(calling, place)
        more = {
            "queueOffset": str(self._places[known]),
            "maxMsgNums": "32",
            "sysFlag": "4",  # the subscription is in the request
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        try:
            answer = await calling.call(RequestCode.PULL_MESSAGE, {**place, **more})
        except CallRefused:
            return  # nothing new
        self.bodies.update(record.body for record in records(answer.body))
        self._places[known] = int(answer.fields["nextBeginOffset"])
        committed = {**place, "commitOffset": answer.fields["nextBeginOffset"]}
        await calling.call(RequestCode.UPDATE_CONSUMER_OFFSET, committed)

    @staticmethod
    async def _committed(calling: Calling, place: dict[str, str]) -> int:
        try:
            found = await calling.call(RequestCode.QUERY_CONSUMER_OFFSET, place)
        except CallRefused:
            return 0  # none is committed yet
        return int(found.fields["offset"])
