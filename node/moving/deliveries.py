"""Batches that go from a place that is sealed to the one that follows it, and what comes back."""

import ipaddress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.store.columns import Columns
from duolog_server.store.errors import BadMessage
from duolog_server.store.idempotence import Run
from duolog_server.store.kernels.encode import FIELDS
from duolog_server.store.kernels.jit import EMPTY_I64, U8, U32
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.moves import Place
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.record import Host, decode_properties, uniq_key
from duolog_server.store.status import WEAK, PutMessageStatus

UNKNOWN = PutMessageStatus.UNKNOWN_ERROR
# The target has not stored it, and may store it in a moment: see `Passing`.
NOT_STORED = frozenset(
    (
        PutMessageStatus.SERVICE_NOT_AVAILABLE,
        PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
        PutMessageStatus.CREATE_MAPEDFILE_FAILED,
        PutMessageStatus.QUEUE_MOVED,
    )
)


@dataclass(slots=True)  # not frozen: it is filled in when its outcome is known
class PassedOn(PutResult):
    """The result of a put that another node may store. Before its outcome is known, it says
    nothing but PUT_OK.

    store_host: of the other node, which has the log offsets; None where this one stored it.
    remoting_host: where clients of the remoting protocol reach that, if they do. stored_at: where
    its queue continues; None: not known, or it did not move.
    """

    store_host: Host | None = None
    remoting_host: Host | None = None
    stored_at: Place | None = None

    @property
    def is_doubtful(self) -> bool:
        """Whether it may be stored by another node, or be lost there."""
        is_here = self.store_host is None and self.queue_offset >= 0
        return not is_here and (self.status is UNKNOWN or self.status in WEAK)

    def take(self, result: PutResult) -> None:
        """What became of it here."""
        self.status, self.reason = result.status, result.reason
        self.queue_offset, self.physical_offset = result.queue_offset, result.physical_offset
        self.end_offset, self.store_time = result.end_offset, result.store_time
        self.count, self.duplicates = result.count, result.duplicates
        self.places = result.places

    def take_answer(self, answer: wire.Delivered, rest: PutBatch, to: Place) -> None:
        """What became of it elsewhere. rest: the part of it that was sent there. to: that place.

        Raises BadMessage for what is no answer.
        """
        if len(answer.places) % 8:
            raise BadMessage(f"{len(answer.places)} bytes of log offsets")
        self.status, self.reason = status_of(answer), answer.reason
        self.queue_offset = QueueOffset(answer.queue_offset)
        self.physical_offset = PhyOffset(answer.physical_offset)
        self.store_time, self.count = answer.store_time, answer.count
        self.places = np.frombuffer(answer.places, "<i8") if answer.places else EMPTY_I64
        self.store_host = host_of(answer.store_host)
        self.remoting_host = host_of(answer.remoting_host) if answer.remoting_host else None
        on = answer.stored_at
        self.stored_at = Place(on.group, on.queue_id) if answer.HasField("stored_at") else to
        at = rest.sequence
        for known in answer.known:
            end = at + known.count
            run = Run(at, end, rest.topic, rest.queue_id, known.queue_offset)
            self.duplicates += (run,)
            at = end


class NoPlace(PutResult):
    """Not stored: the place that it was sent to continues no such queue, and so it is lost."""

    __slots__ = ()


def delivery_of(batch: PutBatch, to: Place) -> wire.Delivery:
    """A batch of a sealed queue, on its way to the place that follows."""
    columns = batch.columns
    delivery = wire.Delivery(
        topic=batch.topic,
        queue_id=to.queue_id,
        from_queue=batch.queue_id,
        bodies=columns.bodies.tobytes(),
        body_offsets=_wire_offsets(columns.body_offsets),
        properties=columns.properties.tobytes(),
        property_offsets=_wire_offsets(columns.property_offsets),
        born_time=batch.born_time,
        born_host=batch.born_host.endpoint,
        flag=batch.flag,
        sysflag=batch.sysflag,
        reconsume_times=batch.reconsume_times,
        prepared_offset=batch.prepared_offset,
        producer=batch.producer,
        sequence=batch.sequence,
        placed=batch.placed,
    )
    if batch.fields is not None:
        delivery.fields = batch.fields.astype("<i8").tobytes()
    if batch.expect_offset is not None:
        delivery.expect_offset = batch.expect_offset
    return delivery


def batch_of(delivery: wire.Delivery) -> PutBatch:
    """The batch of a delivery. Raises BadMessage for one that fits no batch."""
    offsets = delivery.body_offsets, delivery.property_offsets
    if len(offsets[0]) % 4 or len(offsets[0]) < 8 or len(offsets[0]) != len(offsets[1]):
        raise BadMessage("the offsets of a delivery are not count + 1 numbers of 4 bytes each")
    columns = Columns(
        np.frombuffer(delivery.bodies, np.uint8),
        np.frombuffer(offsets[0], "<u4"),
        np.frombuffer(delivery.properties, np.uint8),
        np.frombuffer(offsets[1], "<u4"),
    )
    fields = None
    if delivery.fields:
        if len(delivery.fields) != 8 * FIELDS * columns.count:
            raise BadMessage(f"{len(delivery.fields)} bytes of header fields for {columns.count}")
        fields = np.frombuffer(delivery.fields, "<i8").reshape(FIELDS, columns.count).copy()
    return PutBatch(
        delivery.topic,
        delivery.queue_id,
        columns,
        delivery.born_time,
        host_of(delivery.born_host),
        delivery.flag,
        delivery.sysflag,
        delivery.reconsume_times,
        PhyOffset(delivery.prepared_offset),
        delivery.producer,
        delivery.sequence,
        # Of a repeat, all must be known that was ever stored: or its unique keys are looked for.
        repeat_of=0 if delivery.again or delivery.repeat else None,
        fields=fields,
        accepted=True,
        expect_offset=QueueOffset(delivery.expect_offset)
        if delivery.HasField("expect_offset")
        else None,
        placed=delivery.placed,
    )


def answer_of(
    number: int, result: PutResult, store_host: Host, remoting_host: Host | None
) -> wire.Delivered:
    """What became of a delivery. store_host, remoting_host: of this node."""
    stored_at: wire.Place | None = None
    if isinstance(result, PassedOn):
        if result.store_host is not None:
            store_host, remoting_host = result.store_host, result.remoting_host
        if result.stored_at is not None:
            stored_at = wire.Place(group=result.stored_at.group, queue_id=result.stored_at.queue_id)
    return wire.Delivered(
        id=number,
        status=result.status.value,
        reason=result.reason,
        queue_offset=result.queue_offset,
        physical_offset=result.physical_offset,
        store_time=result.store_time,
        count=result.count,
        known=[
            wire.Known(count=run.end - run.first, queue_offset=run.queue_offset)
            for run in result.duplicates
        ],
        store_host=store_host.endpoint,
        remoting_host=remoting_host.endpoint if remoting_host is not None else "",
        stored_at=stored_at,
        places=result.places.astype("<i8").tobytes(),
        no_place=isinstance(result, NoPlace),
    )


def status_of(answer: wire.Delivered) -> PutMessageStatus:
    """The status of an answer; a newer node may have more of them."""
    try:
        return PutMessageStatus(answer.status)
    except ValueError:
        return UNKNOWN


def kept(batch: PutBatch) -> PutBatch:
    """A batch that outlives what its bodies were read from."""
    columns = replace(batch.columns, bodies=batch.columns.bodies.copy())
    return replace(batch, columns=columns)


def without_first(batch: PutBatch, count: int) -> PutBatch:
    """A batch without its first messages, with the sequences of the rest."""
    if not count:
        return batch
    columns = batch.columns
    bodies, body_offsets = _rest(columns.bodies, columns.body_offsets, count)
    texts, text_offsets = _rest(columns.properties, columns.property_offsets, count)
    expected = batch.expect_offset
    return replace(
        batch,
        columns=Columns(bodies, body_offsets, texts, text_offsets),
        sequence=batch.sequence + count,
        fields=None if batch.fields is None else np.ascontiguousarray(batch.fields[:, count:]),
        expect_offset=None if expected is None else QueueOffset(expected + count),
    )


def without_producer(batch: PutBatch) -> PutBatch:
    """A batch that is stored whatever is known of its producer, under the same unique keys."""
    if not batch.producer:
        return batch
    columns = batch.columns
    bodies, ends = columns.bodies.tobytes(), columns.body_offsets.tolist()
    parts = [bodies[low:high] for low, high in pairwise(ends)]
    texts = []
    for k in range(columns.count):
        text, key = _text(columns, k).rstrip(b"\x02"), unique_key(batch, k).encode()
        texts.append(b"\x02".join(filter(None, (text, b"UNIQ_KEY\x01" + key))))
    return replace(
        batch, columns=Columns.of(parts, texts), producer=b"", sequence=0, repeat_of=None
    )


def unique_key(batch: PutBatch, k: int) -> str:
    """UNIQ_KEY of a message of a batch; empty where it has none."""
    if batch.producer:
        return uniq_key(batch.producer, batch.sequence + k)
    text = _text(batch.columns, k).decode(errors="replace")
    return decode_properties(text).get("UNIQ_KEY", "")


def host_of(endpoint: str) -> Host:
    """The host of ADDRESS:PORT. Raises BadMessage for what is none."""
    address, _, port = endpoint.rpartition(":")
    try:
        return Host(str(ipaddress.ip_address(address.strip("[]"))), int(port))
    except ValueError:
        raise BadMessage(f"{endpoint[:100]!r} is no ADDRESS:PORT") from None


def _text(columns: Columns, k: int) -> bytes:
    low, high = columns.property_offsets[k : k + 2].tolist()
    return columns.properties[low:high].tobytes()


def _rest(blob: U8, offsets: U32, count: int) -> tuple[U8, U32]:
    start = offsets[count]
    return blob[int(start) :], offsets[count:] - start


def _wire_offsets(offsets: U32) -> bytes:
    return offsets.astype("<u4", copy=False).tobytes()
