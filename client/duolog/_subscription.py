"""The stream of batches from a node: one at a time, opened again where it breaks.

One task opens streams, and it ends each one before it opens the next. What it sends the node comes
from the reader's `Prefetch` alone, so that a new stream reads the queues that are read now, and
only this task's writer writes to a stream.
"""

import asyncio
import logging
from collections.abc import Callable

import grpc
import grpc.aio

from duolog._background import together
from duolog._backoff import BackOff
from duolog._connection import Connection
from duolog._errors import DuologError, Retryable, Unavailable, error_of
from duolog._nodechannel import BROKEN, uncancelled
from duolog._prefetch import Command, Prefetch
from duolog.wire import duolog_pb2 as wire

Subscribing = grpc.aio.StreamStreamCall[wire.SubscribeRequest, wire.MessageBatch]

log = logging.getLogger("duolog")


class Subscription:
    """Keeps a reader's prefetch supplied, from whichever node of a replica group answers."""

    def __init__(
        self,
        connection: Connection,
        prefetch: Prefetch,
        first: wire.SubscribeRequest,
        take: Callable[[wire.MessageBatch], None],
        patience: float,
    ) -> None:
        """Not open yet: see `run`.

        connection: of the subscription's own. first: what every stream begins with, but for queues
        and credit. take: hands what arrives to the prefetch. patience: seconds without a stream
        after which the node counts as silent.
        """
        self._connection = connection
        self._prefetch = prefetch
        self._first = first
        self._take = take
        self._patience = patience
        self._silent: Callable[[DuologError | None], None] = lambda _: None
        self._wake = asyncio.Event()  # the prefetch may have a command
        self._room = asyncio.Event()  # the prefetch is not full
        self._connected = False
        self._back_off = BackOff(self._connection.runtime.chance)

    def nudge(self) -> None:
        """The prefetch changed."""
        self._wake.set()
        self._room.set()

    async def run(
        self, hint: Callable[[], str], silent: Callable[[DuologError | None], None]
    ) -> None:
        """Keep a stream open until cancelled. Raises what the node refuses it with.

        hint: the endpoint that is most likely to answer, after a stream broke. silent: called with
        the reason where there was no stream for long, and with None once there is one.
        """
        self._silent = silent
        loop = asyncio.get_running_loop()
        failing_since: float | None = None
        while True:
            if await self._nothing_to_say():
                failing_since = None
            self._connected = False
            try:
                await self._stream()
            except Retryable as failure:
                error = failure
            if self._connected or failing_since is None:
                failing_since = loop.time()
            pause = self._back_off.next()
            if loop.time() + pause >= failing_since + self._patience:
                self._silent(error)
            else:
                log.warning("the subscription broke and is reopened: %s", error)
            await self._connection.rotate(self._connection.moves, hint())
            await asyncio.sleep(pause)

    async def _nothing_to_say(self) -> bool:
        """Wait for a command; whether there was none. A reader without queues misses nothing."""
        waited = not self._prefetch.has_command
        while not self._prefetch.has_command:
            self._silent(None)
            self._wake.clear()
            await self._wake.wait()
        return waited

    async def _stream(self) -> None:
        """One stream, until it ends. Raises Retryable where another one may do."""
        await self._connection.settled()
        try:
            call = self._connection.messages.Subscribe()
        except grpc.aio.UsageError as failure:
            raise Unavailable(str(failure)) from None
        try:
            async with together() as tasks:
                writer = tasks.create_task(self._write(call))
                try:
                    await self._read(call)
                finally:
                    call.cancel()
                    writer.cancel()
        finally:
            self._prefetch.disconnected()

    async def _write(self, call: Subscribing) -> None:
        """Tell the node what the prefetch says; ends with the stream."""
        try:
            request = wire.SubscribeRequest()
            request.CopyFrom(self._first)
            while True:
                self._wake.clear()
                command = self._prefetch.command()
                if command is None:
                    await self._wake.wait()
                    continue
                _fill(request, command)
                await uncancelled(call.write(request))
                self._connected = True
                self._silent(None)
                request = wire.SubscribeRequest()
        except BROKEN as failure:
            log.debug("the subscription broke while writing: %s", failure)  # reading says why
        finally:
            call.cancel()  # a stream that is not written to is not read

    async def _read(self, call: Subscribing) -> None:
        """Take batches off the stream until it ends. Raises the node's reason."""
        try:
            while True:
                while self._prefetch.full:
                    self._room.clear()
                    await self._room.wait()
                reply = await uncancelled(call.read())
                if not isinstance(reply, wire.MessageBatch):
                    raise Unavailable("the node ended the subscription")
                self._back_off.reset()
                self._take(reply)
                if self._prefetch.has_command:
                    self._wake.set()  # the batch was dropped, and its credit came back
        except BROKEN as failure:
            raise self._connection.named(_error_of(failure)) from None


def _fill(request: wire.SubscribeRequest, command: Command) -> None:
    request.credit_bytes = command.credit
    request.subscription = command.number
    for (topic, queue_id), offset in command.add.items():
        request.add.add(topic=topic, queue_id=queue_id, offset=offset)
    for topic, queue_id in command.remove:
        request.remove.add(topic=topic, queue_id=queue_id)


def _error_of(failure: Exception) -> DuologError:
    if isinstance(failure, grpc.RpcError):
        return error_of(failure)
    return failure if isinstance(failure, DuologError) else Unavailable(str(failure))
