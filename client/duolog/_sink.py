"""A sink: what several processes stage together becomes visible as one, exactly once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from duolog._backoff import BackOff
from duolog._checks import checked_bodies
from duolog._columns import crc32
from duolog._connection import ATTEMPT_SECONDS
from duolog._errors import BadRequest, Busy, ResultUnknown
from duolog._fromwire import described
from duolog._requests import checked_request
from duolog._router import Router
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

T = TypeVar("T")

# What a node takes as one message by default, less its frame.
STAGED_BYTES_MAX = (4 << 20) - (64 << 10)


@dataclass(frozen=True, slots=True)
class SinkState:
    """Published state of a sink."""

    batch: int  # the last number
    batches: int
    messages: int  # in all of them
    batch_messages: int  # in the last one
    lost_parts: int  # staged requests that were published and then could not be stored
    contents: str  # as the first publication told
    publisher: str  # of the last batch


class Sink:
    """Stages batches unseen, and publishes them by number. Made by `Client.sink()`.

    Each number of a sink is published once, by whomever and however often. What lies
    staged and is never published nobody sees; it goes with the log's old segments.
    """

    def __init__(self, router: Router, name: str, group: str, timeout: float) -> None:
        """Not called by users."""
        self.name = name
        self.group = group
        self._router = router
        self._timeout = timeout

    async def stage(
        self,
        topic: str,
        queue_id: int,
        bodies: tuple[bytes, bytes],
        texts: tuple[bytes, bytes],
        born_time: int,
        flag: int = 0,
    ) -> int:
        """Stage messages for a queue, at most STAGED_BYTES_MAX of bodies and texts.

        Args:
            topic: an existing topic, in this sink's replica group.
            queue_id: one of its queues.
            bodies: blob and offsets, as `duolog._columns.pack` makes them.
            texts: property texts in the same way; both empty for none.
            born_time: ms.
            flag: the user's own.

        Returns:
            The number that names it, for `publish`.

        Raises:
            UnknownTopic, BadRequest, MessageTooLarge, Timeout, Unavailable, ResultUnknown: it may
            be staged again.
        """
        for name, columns in (("bodies", bodies), ("texts", texts)):
            if not isinstance(columns, tuple | list) or len(columns) != 2:
                raise BadRequest(
                    f"{name} must be blob and offsets, a pair of bytes, not "
                    f"{type(columns).__name__}"
                )
            checked_bodies(columns)
        batch = checked_request(
            wire.AppendRequest,
            topic=topic,
            queue_id=queue_id,
            bodies=bodies[0],
            body_offsets=bodies[1],
            properties=texts[0],
            property_offsets=texts[1],
            crc32=crc32(*bodies, *texts),
            born_time=born_time,
            flag=flag,
        )
        request = wire.StageRequest(sink=self.name, batch=batch.SerializeToString())
        reply = await self._patiently(lambda stub, left: stub.Stage(request, timeout=left))
        return int(reply.staged)

    async def publish(
        self, batch: int, staged: Sequence[int], contents: str = "", publisher: str = ""
    ) -> bool:
        """Publish a numbered batch and wait until it is visible; whether it was before.

        Args:
            batch: numbers rise; the ones up to the last published are done.
            staged: what `stage` returned, in the order in which to store it.
            contents: what this sink sends, in the words of its user. The first publication settles
                it; one with other words is refused.
            publisher: names who publishes, for `state`.

        Raises:
            BadRequest: the sink publishes other contents.
            NoSuchMessage: something of it is not staged (any more); nothing is published.
            Timeout, Unavailable, ResultUnknown: ask again, with the same number.
        """
        request = checked_request(
            wire.PublishRequest,
            sink=self.name,
            batch=batch,
            staged=staged,
            contents=contents,
            publisher=publisher,
        )
        reply = await self._patiently(
            lambda stub, left: stub.Publish(request, timeout=left), self._timeout
        )
        return bool(reply.before)

    async def state(self) -> SinkState | None:
        """The last published batch, None for none. Raises Timeout, Unavailable."""
        request = wire.SinkStateRequest(sink=self.name)
        reply = await self._patiently(lambda stub, left: stub.SinkState(request, timeout=left))
        if not reply.known:
            return None
        return described(SinkState, reply)

    async def _patiently(
        self,
        make: Callable[[stubs.MessagesStub, float], Awaitable[T]],
        attempt: float = ATTEMPT_SECONDS,
    ) -> T:
        """Call again while the group is busy: as long as too few replicas are in sync, say.

        attempt: seconds for one node, of those that are left.
        """
        loop, connection = asyncio.get_running_loop(), self._router.connection(self.group)
        deadline = loop.time() + self._timeout
        back_off = BackOff(self._router.runtime.chance)
        while True:
            try:
                left = deadline - loop.time()
                return await connection.call(
                    lambda less: make(connection.messages, less), left, attempt=min(attempt, left)
                )
            except (Busy, ResultUnknown):  # both may be asked for twice
                pause = back_off.next(False)
                if loop.time() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
