"""The known clients of RocketMQ's API, their telemetry streams, and what they are asked there.

A client is known by its id from its first call on. If it is silent for two minutes, it is gone, and
its leases end. Messages delivered through another node are acknowledged through that node: if the
node stopped, or was restarted, and no call of the client came through it for a minute, what was on
its way to the client is lost, and nobody will acknowledge it. An answer is taken from the client
that was asked, by a number that nobody else can know.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import grpc
from duolog import _errors as sdk
from duolog._nodechannel import uncancelled

from duolog_server.compat.grpc.protocol.codes import OK, Refused
from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.node.api.calls import Replies
from duolog_server.node.core.connected import Consumer, Read
from duolog_server.store.clocks import MonoMs

SILENT_SECONDS = 120.0
CLIENT_ID_MAX = 400  # characters, with the user before them
WAY_SECONDS = 60.0  # the invisible duration that clients see
CLIENTS_MAX = 50_000
PUBLISHED_MAX = 200_000  # topics that clients publish to, those of each client together
READS_BYTES_MAX = 24 << 20  # of what all consumers say that they read, as it is in memory
READ_BYTES = 150  # beside its texts
SWEEP_SECONDS = 1.0


class Stream:
    """One telemetry stream; commands and replies are written one at a time."""

    def __init__(self, commands: Replies[service.TelemetryCommand]) -> None:
        self._commands = commands
        self._lock = asyncio.Lock()
        self.takes_nothing = False  # the last command was not taken, or not yet

    async def write(self, command: service.TelemetryCommand) -> None:
        """Send a command. Raises the error of the stream if it has ended."""
        async with self._lock:
            self.takes_nothing = True
            await self._commands.write(command)
            self.takes_nothing = False


@dataclass(slots=True)
class Client:
    """A known client."""

    client_id: str
    seen: float
    kind: definition.ClientType = definition.CLIENT_TYPE_UNSPECIFIED
    group: str = ""
    language: str = ""
    version: str = ""
    address: str = ""
    hostname: str = ""
    reads: tuple[Read, ...] = ()  # as it last said, at `told_ms` of the wall clock
    told_ms: int = 0
    since: float = 0.0  # when it was first seen
    topics: set[str] = field(default_factory=set)  # topics that it publishes to
    streams: list[Stream] = field(default_factory=list)
    # Processes of nodes that its calls came through, and when last.
    ways: dict[str, float] = field(default_factory=dict)


class Clients:
    """All clients that called recently."""

    def __init__(
        self,
        gone: Callable[[str], None],
        way_gone: Callable[[str, str], None],
        registration: Callable[[str], int],
    ) -> None:
        """gone: called with the id of a client that left or fell silent.

        way_gone: called with the id of a client and a way that its calls no longer come through.
        registration: number of the one that a way's node has in the group; 0 for none.
        """
        self._gone = gone
        self._way_gone = way_gone
        self._registration = registration
        self._registered: dict[str, int] = {}  # by way, when a call last came through it
        self._clients: OrderedDict[str, Client] = OrderedDict()  # the longest silent one first
        self._turn = 0
        self._published = 0
        self._reads_bytes = 0

    def __len__(self) -> int:
        """The number of known clients."""
        return len(self._clients)

    def saw(self, client_id: str, via: str = "") -> Client:
        """Note a call of a client. via: the process that forwarded it."""
        now = time.monotonic()
        client = self._clients.get(client_id)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                self.leave(next(iter(self._clients)))
            client = self._clients[client_id] = Client(client_id, now, since=now)
        else:
            self._clients.move_to_end(client_id)
        client.seen = now
        if via:
            client.ways[via] = now
            self._registered[via] = self._registration(via)
        return client

    def publishes(self, client: Client, topics: set[str]) -> None:
        """Note topics that a client publishes to, unless all clients have too many: then others are
        asked about its half messages.
        """
        new = topics - client.topics
        known = self._clients.get(client.client_id) is client
        if new and known and self._published + len(new) <= PUBLISHED_MAX:
            client.topics |= new
            self._published += len(new)

    def subscribes(self, client: Client, reads: tuple[Read, ...], wall_ms: int) -> None:
        """Note what a consumer reads, unless all of them say too much: then it is not told of."""
        if self._clients.get(client.client_id) is not client:
            return
        self._reads_bytes -= _size_of(client.reads)
        client.reads, client.told_ms = (), 0
        if self._reads_bytes + _size_of(reads) <= READS_BYTES_MAX:
            client.reads, client.told_ms = reads, wall_ms
            self._reads_bytes += _size_of(reads)

    def leave(self, client_id: str) -> None:
        """Remove a client."""
        client = self._clients.pop(client_id, None)
        if client is not None:
            self._published -= len(client.topics)
            self._reads_bytes -= _size_of(client.reads)
            self._gone(client_id)

    def all(self) -> list[Client]:
        """The known clients."""
        return list(self._clients.values())

    def find(self, client_id: str) -> Client | None:
        """A client, if it is known."""
        return self._clients.get(client_id)

    def consumers(self, groups: Collection[str]) -> Iterator[tuple[str, Consumer]]:
        """See Tells."""
        for client in self._clients.values():
            if client.group and client.group in groups:
                yield (
                    client.group,
                    Consumer(
                        client.client_id,
                        client.reads,
                        client.language,
                        client.version,
                        client.hostname,
                        client.address,
                        told_ms=client.told_ms,
                        since_ms=MonoMs(int(client.since * 1000)),
                    ),
                )

    def readers(self, topic: str) -> set[str]:
        """See Tells."""
        clients = self._clients.values()
        return {
            client.group
            for client in clients
            if client.group and any(read.topic == topic for read in client.reads)
        }

    def counts(self) -> tuple[int, int]:
        """See Tells."""
        consumers = sum(bool(client.group) for client in self._clients.values())
        producers = sum(
            client.kind == definition.ClientType.PRODUCER or bool(client.topics)
            for client in self._clients.values()
        )
        return producers, consumers

    def producers(self, topic: str) -> list[Stream]:
        """Streams of clients that publish to a topic, in rotating order."""
        found = [
            stream
            for client in self._clients.values()
            if topic in client.topics
            for stream in client.streams
        ]
        self._turn += 1
        at = self._turn % len(found) if found else 0
        return found[at:] + found[:at]

    async def run(self) -> None:
        """Remove silent clients, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for client_id in self._silent(time.monotonic() - SILENT_SECONDS):
                self.leave(client_id)
            self._drop_ways()

    def _silent(self, before: float) -> list[str]:
        """Clients that were not seen since."""
        silent = takewhile(lambda client: client.seen < before, self._clients.values())
        return [client.client_id for client in silent]

    def _drop_ways(self) -> None:
        """Forget the ways that calls no longer come through.

        A node that registered anew, and passed no call on since, was restarted. One that only lost
        its lease for a while passes on its clients' heartbeats.
        """
        before = time.monotonic() - WAY_SECONDS
        used: set[str] = set()
        # Almost all clients are connected here: ten thousand of them cost a list and no more.
        for client in [client for client in self._clients.values() if client.ways]:
            for via in [via for via, seen in client.ways.items() if seen < before]:
                now = self._registration(via)
                if not now or now != self._registered[via]:
                    del client.ways[via]
                    self._way_gone(client.client_id, via)
            used |= client.ways.keys()
        for via in self._registered.keys() - used:
            del self._registered[via]


def _size_of(reads: tuple[Read, ...]) -> int:
    """Bytes in memory, about."""
    return sum(READ_BYTES + len(read.topic) + len(read.expression) for read in reads)


QUESTIONS_MAX = 1000  # that wait for an answer
_UNREACHED = (grpc.RpcError, grpc.aio.BaseError, RuntimeError)
ANSWERS = ("thread_stack_trace", "verify_message_result")
QUESTIONS = ("print_thread_stack_trace_command", "verify_message_command")


def nonce_of(command: service.TelemetryCommand) -> str:
    """The number of a question, or of its answer; empty for other commands."""
    name = command.WhichOneof("command")
    return str(getattr(command, name).nonce) if name in (*QUESTIONS, *ANSWERS) else ""


class Questions:
    """Questions to clients that wait for an answer."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Client, asyncio.Future[service.TelemetryCommand]]] = {}

    async def ask(
        self, client: Client, command: service.TelemetryCommand, seconds: float
    ) -> service.TelemetryCommand:
        """The answer of a client. The number of the command is set here.

        Raises Refused (NOT_FOUND without a stream, REQUEST_TIMEOUT), NoPermission where the user of
        the client may not have it, Busy.
        """
        if len(self._open) >= QUESTIONS_MAX:
            raise sdk.Busy(f"{QUESTIONS_MAX} clients have been asked and have not answered yet")
        nonce = secrets.token_hex(16)
        name = command.WhichOneof("command")
        assert name in QUESTIONS, "a question"
        getattr(command, name).nonce = nonce
        command.status.CopyFrom(OK)  # Python's client takes no command without it
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[service.TelemetryCommand] = loop.create_future()
        self._open[nonce] = client, answer
        try:
            async with asyncio.timeout(seconds):
                await _tell(client, command)
                return await answer
        except TimeoutError:
            raise Refused(
                Code.REQUEST_TIMEOUT,
                f"client {client.client_id} did not answer within {seconds:.1f} s; not all clients "
                "answer this",
            ) from None
        finally:
            del self._open[nonce]

    def answered(self, client: Client, command: service.TelemetryCommand) -> None:
        """Take a client's answer to any question."""
        known = self._open.get(nonce_of(command))
        if known is not None and known[0].client_id == client.client_id and not known[1].done():
            known[1].set_result(command)


async def _tell(client: Client, command: service.TelemetryCommand) -> None:
    """Write on the newest stream that takes it."""
    for stream in reversed(client.streams):
        try:
            await uncancelled(stream.write(command))
            return
        except _UNREACHED:
            continue
    raise Refused(Code.NOT_FOUND, f"client {client.client_id} has no telemetry stream")
