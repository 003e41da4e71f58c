"""Frames of the replication stream, byte by byte.

| at | header field | bytes | |
|---:|--------------|------:|---|
| 0 | magic | 4 | `DLHA` |
| 4 | version | 1 | 1 |
| 5 | kind | 1 | see Kind |
| 6 | flags | 2 | 1: of HELLO, the slave checks the CRC of log bytes; of WELCOME, all CHUNKs of |
| | | | the stream have it; of CHUNK, it covers the body. Other bits are ignored |
| 8 | epoch | 8 | of the sender's mastership, on a slave the one it follows |
| 16 | offset | 8 | CHUNK: of its first byte; WELCOME, RESET: start; TRUNCATE: new end |
| | | | HEARTBEAT: the master's end; ACK: received; HELLO: the slave's end |
| 24 | confirm | 8 | the master's confirm offset; ACK, HELLO: the slave's durable offset |
| 32 | body size | 4 | |
| 36 | CRC-32C | 4 | over bytes 0..35 and the body; of a CHUNK without flag 1, over bytes 0..35 |

All big-endian. A CHUNK's body is raw commit log. Nodes of release 0.1.0 leave flags 0, ignore them,
and cover no body of a CHUNK: there, only the CRCs of the records protect it. Texts are a 2-byte
length and UTF-8.
"""

import enum
import itertools
import struct
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from duolog_server.ha.crc32c import SHORT_BYTES, crc32c
from duolog_server.ha.epochs import EPOCHS_MAX, Epoch, EpochEntry
from duolog_server.store.kernels.jit import U8

MAGIC = b"DLHA"
VERSION = 1
_HEAD = struct.Struct(">4sBBHQqqI")
_CRC = struct.Struct(">I")
HEADER_BYTES = _HEAD.size + _CRC.size
WHOLE_CRC = 1  # the flag
KIND_AT = 5  # byte of a frame that says what it is
BODY_BYTES_MAX = 48 << 20
TEXT_BYTES_MAX = 4096
_LONG = struct.Struct(">Q")
_ENTRY = struct.Struct(">QqQ")
# No slave says more at once. The fifth text is room for numbers.
HELLO_BYTES_MAX = HEADER_BYTES + 5 * TEXT_BYTES_MAX + EPOCHS_MAX * _ENTRY.size


class Kind(enum.IntEnum):
    """The kinds of frames."""

    HELLO = 1
    WELCOME = 2
    TRUNCATE = 3
    RESET = 4
    REFUSE = 5
    CHUNK = 6
    HEARTBEAT = 7
    ACK = 8


def kind_of(data: bytes) -> int:
    """The byte that says what a frame is, of which nothing is checked; 0 where it is too short."""
    return data[KIND_AT] if len(data) > KIND_AT else 0


class BadFrame(Exception):
    """Bytes that are not a frame: the peer is another program, or the stream is damaged."""


class DamagedFrame(BadFrame):
    """A frame whose bytes changed on their way: its CRC does not match."""

    def __init__(self, expected_crc: int, found_crc: int) -> None:
        super().__init__(f"its CRC-32C is {found_crc:#010x}, its header says {expected_crc:#010x}")
        self.expected_crc = expected_crc
        self.found_crc = found_crc


@dataclass(frozen=True, slots=True)
class Hello:
    """Slave's first frame, and again after it truncated: who it is and what it has.

    tail: its bytes [tail_start, end) have this CRC-32. min_offset: of the first byte it holds.
    segment_bytes: size of its commit-log files. whole_crc: it checks the CRC of log bytes.
    """

    cluster: str
    group: str
    node: str
    incarnation: int
    endpoint: str
    promised: Epoch
    min_offset: int
    end: int
    durable: int
    tail_start: int
    tail_crc: int
    segment_bytes: int
    epochs: tuple[EpochEntry, ...]
    whole_crc: bool = False


@dataclass(frozen=True, slots=True)
class Welcome:
    """The master streams from `start` on.

    ack_durable: the slave's durable offset is what counts. metadata: a snapshot of the tables.
    whole_crc: the CRC of each chunk covers its log bytes.
    """

    epoch: Epoch
    start: int
    confirm: int
    node: str
    endpoint: str
    ack_durable: bool
    promise: bool  # messages below the confirm offset may have been acknowledged to clients
    heartbeat_ms: int
    housekeeping_ms: int
    epochs: tuple[EpochEntry, ...]
    metadata: bytes
    whole_crc: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """The slave must truncate its log to `end` (there the logs diverge) and send Hello again."""

    epoch: Epoch
    end: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The slave's log ends below the master's first segment: it must start again at `start`."""

    epoch: Epoch
    start: int


class Refusal(enum.IntEnum):
    """Why a master does not serve a slave."""

    CLUSTER = 1  # another cluster or group
    NAME = 2  # the master's own name, or none
    LINEAGE = 3  # logs without a common history
    MID_RECORD = 4  # the slave's end lies inside a record
    NEWER_EPOCH = 5  # the slave has promised itself to a newer master
    SEGMENT_SIZE = 6  # commit-log files of another size
    OLDER_COPY = 7  # a member of the SyncStateSet that lacks bytes that it acknowledged


@dataclass(frozen=True, slots=True)
class Refuse:
    """A refusal, with its reason for programs and for people."""

    epoch: Epoch
    code: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Raw log bytes from an offset on. whole_crc: the frame's CRC covers them."""

    epoch: Epoch
    offset: int
    confirm: int
    data: U8
    whole_crc: bool = True


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """No new bytes: the end of the master's log, its confirm offset, and how much was sent."""

    epoch: Epoch
    end: int
    confirm: int
    sent: int


@dataclass(frozen=True, slots=True)
class Ack:
    """A slave's acknowledgement: applied and synced offsets."""

    epoch: Epoch
    received: int
    durable: int
    node: str
    incarnation: int


Frame = Hello | Welcome | Truncate | Reset | Refuse | Chunk | Heartbeat | Ack


# -- writing ---------------------------------------------------------------------------------------


def _frame(
    kind: Kind, place: tuple[Epoch, int, int], body: bytes = b"", *, whole_crc: bool = False
) -> bytes:
    """A frame whose CRC covers all of it. place: epoch, offset, confirm."""
    head = _HEAD.pack(MAGIC, VERSION, kind, WHOLE_CRC if whole_crc else 0, *place, len(body))
    return b"".join((head, _CRC.pack(crc32c(head + body)), body))


def chunk_frame(epoch: Epoch, offset: int, confirm: int, data: U8, whole_crc: bool = True) -> bytes:
    """A CHUNK of mapped bytes: the one copy they see on their way out.

    whole_crc: its CRC covers them; a slave that does not ask for that would refuse the frame.
    """
    flags = WHOLE_CRC if whole_crc else 0
    head = _HEAD.pack(MAGIC, VERSION, Kind.CHUNK, flags, epoch, offset, confirm, len(data))
    if len(data) < SHORT_BYTES:
        body = data.tobytes()
        return b"".join((head, _CRC.pack(crc32c(head + body if whole_crc else head)), body))
    crc = crc32c(head)
    return b"".join((head, _CRC.pack(crc32c(data, crc) if whole_crc else crc), data.data))


def ack_tail(node: str, incarnation: int) -> bytes:
    """The part of an ACK that never changes within a session."""
    return _text(node) + _LONG.pack(incarnation)


def ack_frame(epoch: Epoch, received: int, durable: int, tail: bytes) -> bytes:
    """An ACK."""
    return _frame(Kind.ACK, (epoch, received, durable), tail)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def _epochs(entries: tuple[EpochEntry, ...]) -> bytes:
    rows = [_ENTRY.pack(entry.epoch, entry.start, entry.nonce) for entry in entries]
    return struct.pack(">I", len(rows)) + b"".join(rows)


def encode(frame: Frame) -> bytes:
    """Bytes of a frame."""
    match frame:
        case Hello():
            body = b"".join(
                (
                    *(_text(t) for t in (frame.cluster, frame.group, frame.node, frame.endpoint)),
                    _LONG.pack(frame.incarnation),
                    struct.pack(
                        ">qqIq",
                        frame.min_offset,
                        frame.tail_start,
                        frame.tail_crc,
                        frame.segment_bytes,
                    ),
                    _epochs(frame.epochs),
                )
            )
            place = frame.promised, frame.end, frame.durable
            return _frame(Kind.HELLO, place, body, whole_crc=frame.whole_crc)
        case Welcome():
            body = b"".join(
                (
                    _text(frame.node),
                    _text(frame.endpoint),
                    struct.pack(
                        ">BBII",
                        frame.ack_durable,
                        frame.promise,
                        frame.heartbeat_ms,
                        frame.housekeeping_ms,
                    ),
                    _epochs(frame.epochs),
                    struct.pack(">I", len(frame.metadata)),
                    frame.metadata,
                )
            )
            place = frame.epoch, frame.start, frame.confirm
            return _frame(Kind.WELCOME, place, body, whole_crc=frame.whole_crc)
        case Truncate(epoch, end):
            return _frame(Kind.TRUNCATE, (epoch, end, 0))
        case Reset(epoch, start):
            return _frame(Kind.RESET, (epoch, start, 0))
        case Refuse(epoch, code, reason):
            return _frame(Kind.REFUSE, (epoch, code, 0), _text(reason[:1000]))
        case Chunk(epoch, offset, confirm, data, whole_crc):
            return chunk_frame(epoch, offset, confirm, data, whole_crc)
        case Heartbeat(epoch, end, confirm, sent):
            return _frame(Kind.HEARTBEAT, (epoch, end, confirm), _LONG.pack(sent))
        case Ack():
            tail = ack_tail(frame.node, frame.incarnation)
            return ack_frame(frame.epoch, frame.received, frame.durable, tail)


# -- reading ---------------------------------------------------------------------------------------


class _Body:
    """A body being read; BadFrame where it ends too early or too late."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = HEADER_BYTES

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise BadFrame("body is cut short")
        found = self._data[self._at : end]
        self._at = end
        return found

    def unpack(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def text(self) -> str:
        (size,) = self.unpack(">H")
        if size > TEXT_BYTES_MAX:
            raise BadFrame(f"a text of {size} bytes")
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise BadFrame("a text is not valid UTF-8") from None

    def epochs(self) -> tuple[EpochEntry, ...]:
        (count,) = self.unpack(">I")
        if count > EPOCHS_MAX:
            raise BadFrame(f"{count} epochs")
        rows = self.take(count * _ENTRY.size)
        found = tuple(EpochEntry(*row) for row in _ENTRY.iter_unpack(rows))
        for before, after in itertools.pairwise(found):
            if after.epoch <= before.epoch or after.start <= before.start:
                raise BadFrame("epochs out of order")
        if found and (found[0].epoch < 1 or found[0].start < 0):
            raise BadFrame("an epoch below 1 or before the log")
        return found

    def end(self) -> None:
        if self._at != len(self._data):
            raise BadFrame("bytes after its end")


def _crc(data: bytes, *, covers_body: bool) -> int:
    head = data[: _HEAD.size]
    if not covers_body:
        return crc32c(head)
    if len(data) < SHORT_BYTES:
        return crc32c(head + data[HEADER_BYTES:])
    return crc32c(np.frombuffer(data, np.uint8, offset=HEADER_BYTES), crc32c(head))


def decode(data: bytes) -> Frame:
    """Read one frame. Raises BadFrame, and nothing else, for any bytes."""
    if len(data) < HEADER_BYTES:
        raise BadFrame(f"{len(data)} bytes are not a header")
    magic, version, kind, flags, epoch, offset, confirm, size = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise BadFrame("unknown protocol or version")
    if size != len(data) - HEADER_BYTES or size > BODY_BYTES_MAX:
        raise BadFrame("size does not match")
    (expected,) = _CRC.unpack_from(data, _HEAD.size)
    whole_crc = bool(flags & WHOLE_CRC)
    found = _crc(data, covers_body=whole_crc or kind != Kind.CHUNK)
    if found != expected:
        raise DamagedFrame(expected, found)
    if offset < 0 or confirm < 0:
        raise BadFrame("a negative offset")
    if kind == Kind.CHUNK:
        log_bytes = np.frombuffer(data, np.uint8, offset=HEADER_BYTES)
        return Chunk(epoch, offset, confirm, log_bytes, whole_crc)
    frame = _decode_body(kind, (epoch, offset, confirm), data)
    if isinstance(frame, Hello | Welcome):
        return replace(frame, whole_crc=whole_crc)
    return frame


def _decode_body(kind: int, place: tuple[Epoch, int, int], data: bytes) -> Frame:
    epoch, offset, confirm = place
    if kind == Kind.ACK:
        return Ack(epoch, offset, confirm, *_replica(data[HEADER_BYTES:]))
    body = _Body(data)
    frame: Frame
    if kind == Kind.HEARTBEAT:
        (sent,) = body.unpack(">Q")
        frame = Heartbeat(epoch, offset, confirm, sent)
    elif kind == Kind.TRUNCATE:
        frame = Truncate(epoch, offset)
    elif kind == Kind.RESET:
        frame = Reset(epoch, offset)
    elif kind == Kind.REFUSE:
        if offset not in Refusal._value2member_map_:
            raise BadFrame(f"unknown refusal {offset}")
        frame = Refuse(epoch, Refusal(offset), body.text())
    elif kind == Kind.HELLO:
        frame = _hello(epoch, offset, confirm, body)
    elif kind == Kind.WELCOME:
        frame = _welcome(epoch, offset, confirm, body)
    else:
        raise BadFrame(f"unknown kind {kind}")
    body.end()
    return frame


@lru_cache(maxsize=64)  # a slave says the same each time
def _replica(tail: bytes) -> tuple[str, int]:
    """Name and incarnation in an ACK. Raises BadFrame."""
    body = _Body(bytes(HEADER_BYTES) + tail)
    node = body.text()
    (incarnation,) = body.unpack(">Q")
    body.end()
    return node, incarnation


def _hello(promised: Epoch, end: int, durable: int, body: _Body) -> Hello:
    cluster, group, node, endpoint = (body.text() for _ in range(4))
    (incarnation,) = body.unpack(">Q")
    min_offset, tail_start, tail_crc, segment_bytes = body.unpack(">qqIq")
    epochs = body.epochs()
    if not 0 <= min_offset <= tail_start <= end or durable > end:
        raise BadFrame("inconsistent offsets")
    if epochs and epochs[-1].start >= max(end, 1):
        raise BadFrame("an epoch that starts at or after the log's end")
    return Hello(
        cluster,
        group,
        node,
        incarnation,
        endpoint,
        promised,
        min_offset,
        end,
        durable,
        tail_start,
        tail_crc,
        segment_bytes,
        epochs,
    )


def _welcome(epoch: Epoch, start: int, confirm: int, body: _Body) -> Welcome:
    node, endpoint = body.text(), body.text()
    ack_durable, promise, heartbeat_ms, housekeeping_ms = body.unpack(">BBII")
    epochs = body.epochs()
    (size,) = body.unpack(">I")
    return Welcome(
        epoch,
        start,
        confirm,
        node,
        endpoint,
        bool(ack_durable),
        bool(promise),
        heartbeat_ms,
        housekeeping_ms,
        epochs,
        body.take(size),
    )
