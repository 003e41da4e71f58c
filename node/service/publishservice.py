"""Batches of a sink that become visible as a whole, and once: stage, then publish.

Staged requests are stored unchanged in an internal topic. Publishing a numbered batch of a
sink is one metadata record that names its staged requests: the first such record of a number
counts, later ones change nothing. The master then stores these requests in their queues, in order,
and notes its progress; the next master continues from there. Producer id and sequences are derived
from sink and number, so a request whose note was lost is not stored again. Requests that are never
published are deleted with the log's old segments.
"""

import asyncio
import hashlib
from bisect import bisect_left
from collections import Counter

import structlog
from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire
from google.protobuf.message import DecodeError

from duolog_server.node.core.births import since
from duolog_server.node.core.core import Core
from duolog_server.node.core.keyedlocks import KeyedLocks
from duolog_server.node.deferred.outbox import QUEUE as OUTBOX_QUEUE
from duolog_server.node.deferred.outbox import TOPIC as OUTBOX_TOPIC
from duolog_server.node.deferred.outbox import Outbox
from duolog_server.node.engine.log import Outcome
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.replication.roles import Replication
from duolog_server.node.service.requests import is_whole, send_of, without_first
from duolog_server.node.service.sends import Sends
from duolog_server.store.columns import BadProperties, BodyTooLarge, Columns
from duolog_server.store.errors import BadMessage, CorruptRecord, RepeatUnknown, StoreError
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.metadata import SYSTEM_PREFIX, Json
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.reader import Wanted
from duolog_server.store.record import Host, Record, decode_properties
from duolog_server.store.status import WEAK, PutMessageStatus

log = structlog.get_logger("duolog.node")

STAGED_TOPIC = SYSTEM_PREFIX + "STAGED"
QUEUE = 0
SINK_CHARACTERS_MAX = 255
CONTENTS_CHARACTERS_MAX = 8192  # every replica keeps them in memory
STAGED_MAX = 200_000  # in one batch of a sink
TICK_SECONDS = 0.2
PUT_SECONDS = 10.0  # after which the publisher retries, or `run` does
READABLE_SECONDS = 10.0  # within which a stored request becomes readable
PAUSE_SECONDS = 0.02
READ_ROWS, READ_BYTES = 4096, 8 << 20
UNCONFIRMED_MAX = 8  # requests stored ahead of the replicas
_SEQUENCES = 1 << 24  # of one staged request: more messages than a batch may have
_LATER = frozenset(
    (
        PutMessageStatus.SERVICE_NOT_AVAILABLE,
        PutMessageStatus.CREATE_MAPEDFILE_FAILED,
        PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
        PutMessageStatus.QUEUE_MOVED,
    )
)


class _Earlier:
    """The part of a batch that is stored already, for sequences that the table has forgotten.

    Of one request, perhaps only the first messages are stored: a log is truncated between any two
    records.
    """

    def __init__(
        self, core: Core, outbox: Outbox, producer: bytes, published_after: PhyOffset
    ) -> None:
        """producer: id of the batch. published_after: log offset below which there is no copy."""
        self._core = core
        self._outbox = outbox
        self._store = core.store
        self._producer = producer
        self._after = published_after
        self._end = core.store.max_offset  # all copies from earlier attempts are below
        self._found: dict[tuple[str, int], Counter[str]] = {}

    @property
    def readable(self) -> bool:
        """Queues and index contain everything from earlier attempts, as `held` requires."""
        return self._store.dispatched_offset >= self._end

    async def held(self, request: wire.AppendRequest) -> int:
        """The number of leading messages of a part that are in its queue."""
        if self._core.options.message_index_enable:
            was_stored = self._outbox.was_stored
            return bisect_left(
                range(_count(request)),
                True,
                key=lambda k: not was_stored(request.topic, _unique_key(request, k)),
            )
        places = (request.topic, request.queue_id), (OUTBOX_TOPIC, OUTBOX_QUEUE)
        for place in places:
            if place not in self._found:
                # Once for all parts: from here on, they are stored in order.
                self._found[place] = await self._read(*place)
        return max(self._found[place][_part_of(_unique_key(request, 0))] for place in places)

    async def _read(self, topic: str, queue_id: int) -> Counter[str]:
        """The stored messages of each part, read from the queue: there is no index."""
        found: Counter[str] = Counter()
        word = f"UNIQ_KEY\x01{self._producer.hex().upper()}".encode()
        at = self._core.positions.offset_in_log(topic, queue_id, self._after)
        while True:
            result = self._store.get(topic, queue_id, at, Wanted(READ_ROWS, READ_BYTES))
            for _, _, text in result.rows():
                if word in text:
                    properties = decode_properties(text.decode(errors="replace"))
                    found[_part_of(properties.get("UNIQ_KEY", ""))] += 1
            if result.next_offset <= at:
                return found
            at = result.next_offset
            await asyncio.sleep(0)  # others have a turn


class PublishService:
    """Stages and publishes while this node is the master."""

    def __init__(self, core: Core, sends: Sends, replication: Replication, outbox: Outbox) -> None:
        self._core = core
        self._outbox = outbox
        self._sends = sends
        self._replication = replication
        self._turns = KeyedLocks()  # for storing the batches of a sink

    async def run(self) -> None:
        """Finish batches that an earlier master published, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if not self._core.admission.may_store():
                continue
            for sink in [name for name, row in self._sinks.items() if row["staged"]]:
                try:
                    await self._finish(sink)
                except (sdk.DuologError, StoreError) as error:
                    log.warning(
                        "cannot finish publishing a batch yet", sink=sink, reason=str(error)
                    )

    def role_changed(self) -> None:
        """Discard all state that is not in the log."""

    def status(self) -> dict[str, int]:
        """See Part."""
        waiting = sum(len(row["staged"]) for row in self._sinks.values())
        late = {"sink_parts_waiting": waiting} if waiting else {}
        return {"sinks": len(self._sinks), **late}

    def validate(self) -> str:
        """The violated invariant between two events, empty for none: every lock is wanted by a
        call.
        """
        unwanted = self._turns.unwanted()
        if unwanted:
            return f"nobody wants to store for {unwanted}, and it is their turn"
        return ""

    @property
    def _sinks(self) -> dict[str, Json]:
        return self._core.metadata.tables.sinks

    # -- stage ---------------------------------------------------------------------------------

    async def stage(self, sink: str, data: bytes, host: Host, user: str = "") -> int:
        """Store a request invisibly; the number that names it when the batch is published.

        user: whose it is; empty where there are no users.

        Raises BadRequest, NotMaster, Busy, ResultUnknown, and the error with which the request
        itself would be refused. Staging again after an error is safe: requests that are not named
        stay invisible.
        """
        core = self._core
        core.admission.check_master()
        _check_sink(sink)
        staged = self._checked(data, host, user)
        self._sends.charge(Who.at(user, host.address), staged)
        text = f"SINK\x01{sink}\x02COUNT\x01{staged.columns.count}\x02TARGET\x01{staged.topic}"
        columns = Columns.of([data], [text.encode()])
        batch = PutBatch(STAGED_TOPIC, QUEUE, columns, core.times.wall_ms(), host)
        result = await core.log.put_and_wait(batch)
        status = result.status
        if status is PutMessageStatus.MESSAGE_TOO_LARGE:
            raise sdk.MessageTooLarge(result.reason)
        if result.queue_offset < 0:
            raise sdk.Busy(f"{status.value} {result.reason}")
        if status is not PutMessageStatus.PUT_OK:
            raise sdk.ResultUnknown(status.value, status.value if status in WEAK else "")
        return result.queue_offset

    def _checked(self, data: bytes, host: Host, user: str) -> PutBatch:
        """The batch of a valid request, whose topic exists from now on. Raises as `stage`."""
        closed = self._core.admission.closed()
        if closed is not None:
            too_few = closed.status is PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
            raise (sdk.Busy if too_few else sdk.NotMaster)(closed.reason)
        request = _parsed(data)
        if not is_whole(request, request.bodies):
            raise sdk.CorruptBatch("the batch's CRC does not match its bytes")
        try:
            batch = send_of(request, host, request.bodies, None).batch
            batch.columns.check(self._core.options.max_message_size)
        except (BodyTooLarge, BadProperties) as error:
            raise sdk.MessageTooLarge(error.reason) from None
        except StoreError as error:
            raise sdk.BadRequest(str(error)) from None
        self._core.admission.writable_topic(batch.topic, user, queue_id=batch.queue_id)
        return batch

    # -- publish -------------------------------------------------------------------------------

    async def publish(
        self, sink: str, batch: int, staged: list[int], contents: str = "", publisher: str = ""
    ) -> bool:
        """Make a batch visible and wait until it is; True if that number was published before.

        contents: describes what the sink sends; fixed by its first batch. publisher: for `state`.
        Raises BadRequest (also for other contents), NoSuchMessage if a request is not staged, and
        NotMaster, Unavailable or ResultUnknown, after which the call may be repeated.
        """
        self._core.admission.check_current()
        _check_sink(sink)
        if batch < 0 or len(staged) > STAGED_MAX:
            raise sdk.BadRequest(
                f"batch {batch} has {len(staged)} requests, the limit is {STAGED_MAX}"
            )
        if len(contents) > CONTENTS_CHARACTERS_MAX or len(publisher) > SINK_CHARACTERS_MAX:
            raise sdk.BadRequest(
                f"contents has {len(contents)} characters (limit "
                f"{CONTENTS_CHARACTERS_MAX}), publisher {len(publisher)} (limit "
                f"{SINK_CHARACTERS_MAX})"
            )
        await self._finish(sink)
        self._check_contents(sink, contents)
        row = self._sinks.get(sink)
        before = row is not None and row["batch"] >= batch
        if not before:
            change = {
                "op": "publish",
                "sink": sink,
                "batch": batch,
                "staged": staged,
                "contents": contents,
                "publisher": publisher,
                "messages": await self._staged_messages(sink, staged),
            }
            await self._core.metadata.change(change)
            self._check_contents(sink, contents)
            row = self._sinks.get(sink)
            # Of two concurrent calls, the other one may have been first.
            before = row is None or row["batch"] != batch or row["staged"] != staged
        await self._finish(sink)
        if row is not None and row["batch"] == batch and row.get("batchLost"):
            raise _lost(row["batchLost"])  # the first caller to hear of it may be gone
        await self._readable()
        return before

    def state(self, sink: str) -> wire.SinkStateReply:
        """The last batch that a sink published. Raises BadRequest, NotMaster."""
        self._core.admission.check_master()
        self._core.admission.check_knows()
        _check_sink(sink)
        row = self._sinks.get(sink)
        if row is None:
            return wire.SinkStateReply()
        return wire.SinkStateReply(
            known=True,
            batch=row["batch"],
            batches=row.get("batches", 0),
            messages=row.get("messages", 0),
            batch_messages=row.get("batchMessages", 0),
            lost_parts=row.get("lost", 0),
            contents=row.get("contents", ""),
            publisher=row.get("publisher", ""),
        )

    def _check_contents(self, sink: str, contents: str) -> None:
        row = self._sinks.get(sink)
        if row is not None and row.get("contents", "") != contents:
            raise sdk.BadRequest(
                f"sink {sink!r} publishes {_short(row.get('contents', ''))}, not "
                f"{_short(contents)}: use another sink name"
            )

    async def _staged_messages(self, sink: str, staged: list[int]) -> int:
        """The number of messages in staged requests.

        Raises BadRequest if one belongs to another sink, NoSuchMessage if its topic was deleted.
        """
        count = 0
        for offset in staged:
            record = await self._staged(offset)
            if record.properties.get("SINK") != sink:
                raise sdk.BadRequest(f"staged request {offset} belongs to another sink")
            known = record.properties.get("COUNT")  # version 0.1.0 stores no TARGET
            topic = record.properties.get("TARGET") or _parsed(record.body).topic
            if topic not in self._core.metadata.topics or self._is_too_old(record, topic):
                raise sdk.NoSuchMessage(f"staged request {offset}: {_deleted(topic)}")
            count += int(known) if known else _count(_parsed(record.body))
        return count

    def _is_too_old(self, staged: Record, topic: str) -> bool:
        """Whether it was staged for a deleted topic of that name."""
        return staged.physical_offset < since(self._core.metadata.births, topic, "")

    async def _staged(self, offset: int) -> Record:
        """The record of a staged request.

        Raises NoSuchMessage, Unavailable if it cannot be read yet.
        """
        store = self._core.store
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READABLE_SECONDS
        while True:
            low, high = store.queue_range(STAGED_TOPIC, QUEUE)
            if low <= offset < high:
                break
            stored = store.next_offset(STAGED_TOPIC, QUEUE)
            if offset < low or offset >= stored:
                raise sdk.NoSuchMessage(f"staged request {offset} does not exist")
            if loop.time() >= deadline:
                raise sdk.Unavailable(f"staged request {offset} cannot be read yet: try again")
            self._core.log.pump_soon()
            await asyncio.sleep(PAUSE_SECONDS)
        try:
            record = store.record_at(STAGED_TOPIC, QUEUE, QueueOffset(offset))
        except CorruptRecord as error:
            raise sdk.NoSuchMessage(f"staged request {offset} is damaged: {error}") from None
        if record is None:
            raise sdk.NoSuchMessage(f"staged request {offset} no longer exists")
        return record

    async def _readable(self) -> None:
        """Wait until all queues have what is confirmed. Raises Unavailable, NotMaster.

        A full disk may have no room for one queue's next file: others, and the record that the
        batch is stored, become readable first.
        """
        core, loop = self._core, asyncio.get_running_loop()
        end, deadline = core.store.confirm_offset, loop.time() + READABLE_SECONDS
        core.log.pump_soon()
        await asyncio.sleep(0)
        while core.store.dispatched_offset < end:
            core.admission.check_master()  # what another one cuts never becomes readable
            if loop.time() >= deadline:
                raise sdk.Unavailable("the batch is stored, but cannot be read yet: try again")
            await asyncio.sleep(PAUSE_SECONDS)
            core.log.pump_soon()

    async def _finish(self, sink: str) -> None:
        """Store the published requests of a sink that are not stored yet.

        Raises Unavailable, NotMaster.
        """
        row = self._sinks.get(sink)
        if row is None or not row["staged"]:
            return
        async with self._turns.lock(sink):
            row = self._sinks.get(sink)
            if row is not None and row["staged"]:
                await self._store(sink, dict(row))

    async def _store(self, sink: str, row: Json) -> None:
        metadata = self._core.metadata
        producer = hashlib.blake2b(f"{sink}\n{row['batch']}".encode(), digest_size=10).digest()
        waiting: list[Outcome] = []
        lost: list[str] = []
        earlier: _Earlier | None = None
        staged = row["staged"]
        for at in range(row["done"], len(staged)):
            try:
                record = await self._staged(staged[at])
            except sdk.NoSuchMessage as error:  # deleted or damaged since
                lost.append(str(error))
                continue
            request = _parsed(record.body)
            if self._is_too_old(record, request.topic):
                lost.append(f"{request.topic}: {_deleted(request.topic)}")
                continue
            request.producer_id, request.sequence = producer, at * _SEQUENCES
            earlier = earlier or _Earlier(
                self._core, self._outbox, producer, record.physical_offset
            )
            future = await self._put(request, record, lost, earlier)
            if future is not None:
                waiting.append(future)
            if len(waiting) > UNCONFIRMED_MAX:
                await waiting.pop(0)
            note = {"op": "published", "sink": sink, "batch": row["batch"], "done": at + 1}
            if at + 1 < len(staged):
                metadata.note(note)
            self._core.log.pump_soon()
            await asyncio.sleep(0)  # others have a turn
        done = {"op": "published", "sink": sink, "batch": row["batch"], "done": len(staged)}
        await metadata.change({**done, "lost": len(lost)} if lost else done)
        if lost:
            log.error(
                "parts of a published batch are lost", sink=sink, parts=len(lost), reason=lost[0]
            )
            raise _lost(len(lost), f": {lost[0]}")

    async def _put(
        self, request: wire.AppendRequest, staged: Record, lost: list[str], earlier: _Earlier
    ) -> Outcome | None:
        """Store a request in its queue; wait a while if it cannot be stored yet.

        staged: its record. lost: gets the reason if it can never be stored. earlier: the stored
        part of the batch. Raises Busy, NotMaster; noted progress is kept.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PUT_SECONDS
        # An earlier master may have stored it, after it was staged.
        again, end = True, staged.physical_offset
        nonce = self._replication.nonce_at(end)
        while True:
            self._core.admission.check_master()
            repeat_of = self._replication.history.held_from(end, nonce) if again else None
            try:
                send = send_of(request, staged.born_host, request.bodies, repeat_of, accepted=True)
                result, future = self._sends.send(send, None)
                if result.status is PutMessageStatus.PUT_OK:
                    return future
                reason, later = result.reason, result.status in _LATER
            except RepeatUnknown as error:
                if not again:
                    return None  # a later part is stored, so this one is too
                if earlier.readable:
                    held = await earlier.held(request)
                    if held == _count(request):
                        return None
                    request, again = without_first(request, held), False
                    continue
                reason, later = str(error), True
            except (sdk.DuologError, BadMessage) as error:
                reason, later = str(error), isinstance(error, sdk.Retryable)
            if not later:  # its topic was deleted meanwhile, or does not allow writes any more
                lost.append(f"{request.topic}: {reason}")
                return None
            if loop.time() >= deadline:
                raise sdk.Busy(reason)
            await asyncio.sleep(PAUSE_SECONDS)


def _deleted(topic: str) -> str:
    return f"topic {topic!r} was deleted after it was staged"


def _lost(parts: int, reason: str = "") -> sdk.NoSuchMessage:
    return sdk.NoSuchMessage(f"{parts} parts of a published batch are lost{reason}")


def _count(request: wire.AppendRequest) -> int:
    return len(request.body_offsets) // 4 - 1


def _unique_key(request: wire.AppendRequest, k: int) -> str:
    """The unique key of message k of a part."""
    return (request.producer_id + (request.sequence + k).to_bytes(6, "big")).hex().upper()


def _part_of(unique_key: str) -> str:
    """The common prefix of the unique keys of a part: the last three bytes of a sequence count
    messages.
    """
    return unique_key[:-6]


def _check_sink(sink: str) -> None:
    if not 0 < len(sink) <= SINK_CHARACTERS_MAX or not sink.isprintable():
        raise sdk.BadRequest(
            f"a sink's name must have 1 to {SINK_CHARACTERS_MAX} printable characters"
        )


def _short(contents: str) -> str:
    return repr(contents if len(contents) <= 200 else contents[:200] + "...")


def _parsed(data: bytes) -> wire.AppendRequest:
    try:
        return wire.AppendRequest.FromString(data)
    except DecodeError:
        raise sdk.BadRequest("the staged bytes are not an AppendRequest") from None
