"""The client: where producers, consumers and administration come from."""

import os
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from duolog._access import Access
from duolog._admin import Admin, status_of, topics_at
from duolog._background import close_after, close_all
from duolog._batcher import BUFFER_BYTES, Buffering
from duolog._busypoll import MICROSECONDS_MAX
from duolog._checks import (
    INT32_MAX,
    UINT32_MAX,
    checked_body,
    checked_flag,
    checked_number,
    checked_text,
    checked_texts,
    checked_whole,
)
from duolog._connection import ATTEMPT_SECONDS
from duolog._consumer import Consumer
from duolog._descriptions import NodeStatus, TopicDescription
from duolog._errors import BadRequest
from duolog._login import login_of
from duolog._membership import Clustering, Consumption, OffsetFile
from duolog._message import Batch, check_crc
from duolog._producer import Producer
from duolog._router import Router
from duolog._runtime import MACHINE, Runtime
from duolog._sending import SendOptions
from duolog._sink import Sink
from duolog._start import Start
from duolog._tls import Tls, tls_of
from duolog._topics import TopicCache
from duolog._transactions import Checker, ProducerGroup, Transactions
from duolog._version import __version__
from duolog.wire import duolog_pb2 as wire

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from duolog._spans import Spans

AT_ONCE = 1.0  # seconds
WAIT_SECONDS_MAX = 86400.0  # of a pull
TOPICS_SECONDS = 5.0  # a node that takes longer is asked again


def parse_endpoints(endpoints: str | Sequence[str]) -> tuple[str, ...]:
    """`host:port,host:port` or a sequence of them. Raises BadRequest."""
    words = endpoints.split(",") if isinstance(endpoints, str) else endpoints
    found = tuple(
        word for each in checked_texts("endpoints", words, empty=True) if (word := each.strip())
    )
    if not found:
        raise BadRequest("no endpoints given: expected HOST:PORT[,HOST:PORT...]")
    for endpoint in found:
        host, separator, port = endpoint.rpartition(":")
        known = separator and host and "/" not in host
        if not known or not port.isdecimal() or not 0 < int(port) < 65536:
            raise BadRequest(f"endpoint {endpoint!r} is not HOST:PORT")
    return found


class Client:
    """A connection to duolog.

        async with Client("127.0.0.1:8081") as client:
            async with client.producer() as producer:
                await producer.send("greetings", b"hello", tags="en")

    It finds the other nodes of the cluster by itself, and follows masters.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        user: str = "",
        password: str = "",
        tls: Tls | bool | None = None,
        timeout: float = 10.0,
        busy_poll_us: int = 0,
        tracer_provider: "TracerProvider | None" = None,
        runtime: Runtime = MACHINE,
    ) -> None:
        """Connect lazily.

        Args:
            endpoints: `host:port,host:port,...`, or a sequence of `host:port`.
            user: who calls nodes that have users; its password is sent with every call, and can
                be read on the way unless TLS is used.
            password: the user's.
            tls: connect with TLS; True: to nodes that the system's authorities vouch for.
            timeout: seconds that a call may take altogether, where it is not given one itself.
            busy_poll_us: how long the event loop looks for the answer to a single message before
                it sleeps, in µs; 250 is a good value. A program that sends one message after the
                other waits a third less for each, and keeps a core busy meanwhile. 0: not at all.
            tracer_provider: takes spans of what the client does; by default OpenTelemetry's
                global one, if the program has set it before.
            runtime: what the client runs on; a simulation gives its own.
        """
        _check_timeout(timeout)
        checked_number("busy_poll_us", busy_poll_us, 0, MICROSECONDS_MAX)
        self._endpoints = parse_endpoints(endpoints)
        login, secured = login_of(user, password), tls_of(tls)
        if secured is not None:
            runtime = secured.over(runtime)
        if login is not None:
            runtime = replace(runtime, login=login)
        if busy_poll_us:
            runtime = replace(runtime, busy_poll_us=busy_poll_us)
        spans = spans_of(tracer_provider, __version__)
        if spans is not None:
            runtime = replace(runtime, spans=spans)
        self._router = Router(self._endpoints, runtime)
        self._topics = TopicCache(self._router)
        self._timeout = timeout
        self._producers: list[Producer] = []
        self._consumers: list[Consumer] = []
        self._transactions: list[Transactions] = []
        self.admin = Admin(self._router, timeout)
        self.access = Access(self._router, timeout)

    def producer(
        self,
        *,
        timeout: float | None = None,
        linger: float = 0.0,
        buffer_bytes: int = BUFFER_BYTES,
        producer_id: bytes | None = None,
        accept_weak: bool = False,
    ) -> Producer:
        """A producer.

        Args:
            timeout: seconds of one send, retries included.
            linger: seconds to wait for further messages before a batch goes out.
            buffer_bytes: of messages that are posted and not answered, at most.
            producer_id: 10 bytes; only where sequences are kept by the caller.
            accept_weak: take for sent what the master stored and could not confirm, so that it
                may be lost with the master: the receipt's `status` is FLUSH_DISK_TIMEOUT,
                FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE then. Without it, a send is repeated
                until it is confirmed, and raises ResultUnknown where that is not in time.
        """
        if producer_id is not None:
            producer_id = checked_body("producer_id", producer_id)
            if len(producer_id) != 10:
                raise BadRequest(f"a producer id must have 10 bytes, not {len(producer_id)}")
        checked_flag("accept_weak", accept_weak)
        options = SendOptions(producer_id, accept_weak)
        return self.make_producer(timeout, Buffering(linger, buffer_bytes), options)

    def make_producer(
        self, timeout: float | None, buffering: Buffering, options: SendOptions
    ) -> Producer:
        """Not called by users: `producer`, that may take messages from other threads."""
        self._router.check_process()
        checked_number("buffer_bytes", buffering.bytes, 1)
        checked_number("linger", buffering.linger, 0)
        _check_timeout(timeout)
        made = Producer(self._router, self._topics, timeout or self._timeout, buffering, options)
        self._producers = [one for one in self._producers if not one.ended]
        self._producers.append(made)
        return made

    def transactions(
        self,
        group: str,
        checker: Checker | None = None,
        *,
        immunity: float = 0.0,
        timeout: float | None = None,
        accept_weak: bool = False,
    ) -> Transactions:
        """Transactions of a group of producers.

            async with client.transactions("orders", check) as transactions:
                async with transactions.begin("paid", b"order 7"):
                    ...  # the local part: an exception rolls back

        Args:
            group: its members answer for each other's transactions.
            checker: async, asked about an undecided message: True commits, False rolls
                back, None leaves it for later. It is asked about up to 16 messages side by side.
            immunity: seconds before that is asked; the node's default where 0.
            timeout: seconds of one call, retries included.
            accept_weak: as for `producer`, of half messages and of decisions.
        """
        _check_timeout(timeout)
        seconds = timeout or self._timeout
        members = ProducerGroup(group, checker, immunity, accept_weak)
        producer = self.producer(timeout=seconds, accept_weak=accept_weak)
        made = Transactions(self._router, producer, members, seconds)
        self._transactions.append(made)
        return made

    def consumer(
        self,
        group: str,
        topics: str | Sequence[str],
        *,
        tags: str | Sequence[str] = (),
        sql: str = "",
        start: Start = Start.EARLIEST,
        commit_interval: float = 5.0,
        session: float = 10.0,
        mode: str = "clustering",
        rebalance: str = "AVG",
        rooms: Sequence[str] = (),
        queues: Sequence[tuple[str, int]] = (),
        offsets_file: str | os.PathLike[str] | None = None,
    ) -> Consumer:
        """A member of a consumer group.

        Args:
            group: members of one group share the queues.
            topics: what to read.
            tags: only messages with one of these tags; a str is one.
            sql: only messages whose properties fulfil this SQL92 expression.
            start: where a group without a committed offset begins.
            commit_interval: seconds between commits of what was consumed.
            session: seconds of silence after which the group reassigns this member's queues.
            mode: "clustering", or "broadcasting": every member reads all queues.
            rebalance: how the group shares the queues, the same for all its members: AVG,
                AVG_BY_CIRCLE, CONSISTENT_HASH, CONFIG, MACHINE_ROOM or MACHINE_ROOM_NEARBY.
            rooms: for the last two: where this member stands; a queue's room is what its replica
                group's name has before `@`.
            queues: for CONFIG: the queues this member reads, as (topic, queue id).
            offsets_file: where a consumer that broadcasts keeps its offsets; without one it begins
                at `start` each time.
        """
        self._router.check_process()
        if mode not in ("clustering", "broadcasting"):
            raise BadRequest(f"mode must be 'clustering' or 'broadcasting', not {mode!r}")
        shares = mode == "clustering"
        if shares and offsets_file is not None:
            raise BadRequest(
                "offsets_file is for mode='broadcasting': a clustering group's offsets are "
                "kept by the node"
            )
        consumption = Consumption(
            group=group,
            tags=_tags(tags),
            sql=sql,
            start=start,
            commit_interval=commit_interval,
            session=session,
            timeout=self._timeout,
            broadcasting=not shares,
        )
        made = Consumer(
            self._router,
            self._topics,
            checked_texts("topics", topics),
            consumption,
            Clustering(
                checked_text("rebalance", rebalance, empty=True),
                checked_texts("rooms", rooms, empty=True),
                _queues(queues),
            )
            if shares
            else OffsetFile(offsets_file),
        )
        self._consumers = [one for one in self._consumers if not one.closed]
        self._consumers.append(made)
        return made

    async def pull(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int = 0,
        max_bytes: int = 0,
        wait: float = 0.0,
        tags: str | Sequence[str] = (),
        sql: str = "",
        group: str | None = None,
    ) -> Batch:
        """One batch of a queue, without a group; waits up to `wait` seconds for a message.

        Any node of the queue's replica group may answer. group: that replica group, where the topic
        lies in several.
        """
        request = wire.PullRequest(
            topic=checked_text("topic", topic),
            queue_id=checked_whole("queue_id", queue_id, 0, INT32_MAX),
            queue_offset=checked_whole("queue_offset", queue_offset),
            max_messages=checked_whole("max_messages", max_messages, 0, UINT32_MAX),
            max_bytes=checked_whole("max_bytes", max_bytes, 0, UINT32_MAX),
            wait_ms=int(checked_number("wait", wait, 0, WAIT_SECONDS_MAX) * 1000),
            tags=_tags(tags),
            sql=checked_text("sql", sql or "", empty=True),
        )
        if group is not None:
            checked_text("group", group)
        replica_group, _ = await self._topics.slot(topic, queue_id, group, self._timeout)
        return Batch(await self.fetch(request, replica_group), replica_group)

    async def fetch(
        self, request: wire.PullRequest, group: str, *, from_slaves: bool = False
    ) -> wire.MessageBatch:
        """One batch as received, after checks, for programs that use its columns directly.

        from_slaves: ask the master only where no slave answers. Raises CorruptBatch, and what
        `pull` raises.
        """
        await self._router.groups(self._timeout)
        router = self._router
        connection = router.slaves(group) if from_slaves else router.connection(group)
        wait = request.wait_ms / 1000
        reply: wire.MessageBatch = await connection.call(
            lambda left: connection.messages.Pull(request, timeout=left),
            self._timeout + wait,
            attempt=wait + ATTEMPT_SECONDS,
        )
        check_crc(reply)
        return reply

    async def replicas(self, group: str) -> list[str]:
        """Endpoints of the nodes of a replica group."""
        checked_text("group", group)
        await self._router.groups(self._timeout)
        return self._router.replicas(group)

    async def status_of(self, endpoint: str) -> NodeStatus | None:
        """One node's status, None if it does not answer at once."""
        self._router.check_process()
        (endpoint,) = parse_endpoints([endpoint])
        return await status_of(endpoint, AT_ONCE, self._router.runtime)

    async def topics_at(self, endpoint: str, names: Sequence[str]) -> list[TopicDescription]:
        """Topics as one node has them; none for no endpoint, or one that does not answer soon."""
        self._router.check_process()
        names = checked_texts("names", names, empty=True)
        if not endpoint:
            return []
        (endpoint,) = parse_endpoints([endpoint])
        return await topics_at(endpoint, names, TOPICS_SECONDS, self._router.runtime)

    async def sink(self, name: str, group: str | None = None) -> Sink:
        """A sink: publishes batches atomically, exactly once.

        group: the replica group it writes to; follows from its name where not given.
        """
        checked_text("name", name)
        if group is not None:
            checked_text("group", group)
        groups = await self._router.groups(self._timeout)
        if group is None:
            group = groups[zlib.crc32(name.encode()) % len(groups)]
        self._router.connection(group)
        return Sink(self._router, name, group, self._timeout)

    async def close(self) -> None:
        """Close everything that was made from this client. May be called again.

        What cannot be closed keeps nothing else open; the first error is raised.
        """
        await close_all(
            [consumer.close for consumer in self._consumers],
            [made.close for made in self._transactions],
            [producer.close for producer in self._producers],
            [self._topics.close],
            [self._router.close],
        )

    async def __aenter__(self) -> "Client":
        """Use it in `async with`."""
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        """Close."""
        await close_after(kind, self.close)


def _tags(tags: str | Sequence[str]) -> tuple[str, ...]:
    """Tags to choose messages by; an empty one chooses messages without a tag."""
    return checked_texts("tags", tags or (), empty=True)


def _queues(queues: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Queues by topic and queue id. Raises BadRequest."""
    if isinstance(queues, str | bytes) or not isinstance(queues, Iterable):
        raise BadRequest(f"queues must be a sequence of pairs, not {type(queues).__name__}")
    found = []
    for queue in queues:
        if not isinstance(queue, tuple | list) or len(queue) != 2:
            raise BadRequest(f"one of queues is {queue!r}; it must be (topic, queue id)")
        topic, queue_id = queue
        checked_text("a topic of queues", topic)
        found.append((topic, checked_whole("a queue id of queues", queue_id, 0, INT32_MAX)))
    return tuple(found)


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not checked_number("timeout", timeout) > 0:
        raise BadRequest(f"timeout is {timeout} s; it must be above 0")


def runtime_of(client: Client) -> Runtime:
    """A client's runtime, to ask single nodes as the same user."""
    return client._router.runtime


def spans_of(provider: "TracerProvider | None", version: str) -> "Spans | None":
    """Makes a client's spans; None if tracing is off: nothing is loaded for it then.

    provider: None for the program's own (`opentelemetry.trace.set_tracer_provider`). A program that
    has one has loaded OpenTelemetry's API itself: its absence needs no import to be noticed.
    """
    if provider is None:
        api = sys.modules.get("opentelemetry.trace")
        if api is None:
            return None
        provider = api.get_tracer_provider()
    from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider

    if provider is None or isinstance(provider, NoOpTracerProvider | ProxyTracerProvider):
        return None
    from duolog._spans import Spans

    return Spans(provider, version)
