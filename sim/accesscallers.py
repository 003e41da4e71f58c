"""Callers of nodes that have users: they send, read, and ask what they may do.

They give tokens, passwords or certificates, also old ones and those of deleted users, and call
masters and slaves.
"""

import asyncio
from typing import Any

import grpc.aio
from duolog import _errors as sdk
from duolog._columns import crc32, pack
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from sim.accessadmins import AccessAdmins
from sim.accesscalls import CALL_SECONDS, TOPICS, AccessCalls
from sim.channels import Caller
from sim.credentials import ROOT, USERS
from sim.node import WALL_MS
from sim.nodeusers import FIRST

ADDRESSES = ("10.0.0.1", "10.0.0.2")
FEEDER = "10.0.0.3"
OF_CALLERS = "User:nobody"  # a quota that callers try to set


class AccessCallers:
    """All callers. batches: how many arrived by subscriptions."""

    def __init__(self, calls: AccessCalls, admins: AccessAdmins) -> None:
        self._calls = calls
        self._admins = admins
        self._chance = calls.chance
        self.batches = 0
        self._ends: dict[str, int] = {}  # of topics, as nodes last told them

    async def call(self, address: str) -> None:
        """Make random calls, as one user or another."""
        await self._calls.until_ready()
        chance = self._chance
        while True:
            caller = self._caller(address)
            topic, how = chance.choice(TOPICS), chance.random()
            try:
                if how < 0.25:
                    action = chance.choice(("Pub", "Sub"))
                    test = wire.TestAccessRequest(action=action, resource=f"Topic:{topic}")
                    await self._calls.ask(stubs.AccessStub, "TestAccess", test, caller)
                elif how < 0.45:
                    await self._pull(topic, caller, address)
                elif how < 0.97 or self._calls.draining:
                    await self._send(topic, caller)
                else:
                    await self._admins.change_quota(OF_CALLERS, caller)
            except sdk.DuologError:
                pass
            await self._calls.pause(30)

    async def feed(self) -> None:
        """Send on, so that readers have something to wait for."""
        await self._calls.until_ready()
        while not self._calls.draining:
            caller = Caller(certificate=ROOT, address=FEEDER)
            await self._send(self._chance.choice(TOPICS), caller)
            await self._calls.pause(20)

    async def _pull(self, topic: str, caller: Caller, address: str) -> None:
        """Wait for a message, in half of the calls as a user who may read the topic."""
        if self._chance.random() < 0.5:
            name, topic = self._reader()
            caller = self._calls.credentials.caller(name, self._chance, address)
        pull = wire.PullRequest(topic=topic, max_messages=1, wait_ms=400)
        pull.queue_offset = self._ends.get(topic, 0)
        await self._calls.ask(stubs.MessagesStub, "Pull", pull, caller)

    async def listen(self) -> None:
        """Subscribe to one topic after the other, for as long as one may."""
        await self._calls.until_ready()
        while True:
            name, topic = self._reader()
            queue = wire.QueueOffset(topic=topic, offset=self._ends.get(topic, 0))
            first = wire.SubscribeRequest(add=[queue], credit_bytes=1 << 20, batch_bytes=100)
            caller = self._calls.credentials.caller(name, self._chance, ADDRESSES[1])
            channel = self._calls.channel(caller, self._chance.random() < 0.5)
            stream = stubs.MessagesStub(channel).Subscribe()  # type: ignore[arg-type]
            try:
                await stream.write(first)
                async with asyncio.timeout(self._chance.uniform(0.3, 2.0)):
                    await self._take_batches(stream)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                pass
            finally:
                stream.cancel()
            await self._calls.pause(50)

    async def _take_batches(self, stream: Any) -> None:
        while (batch := await stream.read()) is not grpc.aio.EOF:
            self.batches += bool(batch.count)
            self._ends[batch.topic] = max(batch.max_offset, self._ends.get(batch.topic, 0))

    def _reader(self) -> tuple[str, str]:
        """A user and a topic that it may read; any user and topic if none may."""
        said = self._calls.watch.log.at(len(self._calls.watch.log))
        every = [(name, topic) for name in USERS for topic in TOPICS]
        some = [one for one in every if said.allows(one[0], f"Topic:{one[1]}", ("Sub",))]
        return self._chance.choice(some or every)

    def _caller(self, address: str) -> Caller:
        """One of the users, root, or the first user, which counts only before there are others."""
        chance, who = self._chance, self._chance.random()
        if who < 0.04:
            return Caller(certificate=FIRST, address=address)
        name = ROOT if who < 0.25 else chance.choice(USERS)
        return self._calls.credentials.caller(name, chance, address)

    async def _send(self, topic: str, caller: Caller) -> None:
        """Send some batches in one stream; it continues although some are refused."""
        stream = stubs.MessagesStub(self._calls.channel(caller, True)).Append()  # type: ignore[arg-type]
        try:
            for _ in range(self._chance.randint(1, 10)):
                await stream.write(_batch(topic, self._chance.randint(1, 3)))
                async with asyncio.timeout(CALL_SECONDS):
                    reply: Any = await stream.read()
                if reply is grpc.aio.EOF:
                    return
                if reply.status == wire.THROTTLED and self._chance.random() < 0.7:
                    await asyncio.sleep(min(reply.retry_after_ms + 3, 400) / 1000)
                else:
                    await self._calls.pause(10)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            pass
        finally:
            stream.cancel()


def _batch(topic: str, count: int) -> wire.AppendRequest:
    """A batch of so many messages."""
    bodies, texts = pack([b"for whom it may concern"] * count), pack([b""] * count)
    return wire.AppendRequest(
        topic=topic,
        bodies=bodies[0],
        body_offsets=bodies[1],
        property_offsets=texts[1],
        crc32=crc32(*bodies, *texts),
        born_time=WALL_MS,
    )
