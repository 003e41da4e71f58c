"""The commit-log record: its header, its properties text and its identifiers.

| at | field | bytes |      | at | field | bytes |
|---:|-------|------:|------|---:|-------|------:|
| 0 | TOTALSIZE | 4 |        | 48 | BORNHOST | 8 or 20 |
| 4 | MAGICCODE | 4 |        | 56 | STORETIMESTAMP | 8 |
| 8 | BODYCRC | 4 |          | 64 | STOREHOSTADDRESS | 8 or 20 |
| 12 | QUEUEID | 4 |         | 72 | RECONSUMETIMES | 4 |
| 16 | FLAG | 4 |            | 76 | PREPAREDTRANSACTIONOFFSET | 8 |
| 20 | QUEUEOFFSET | 8 |     | 84 | BODYLENGTH | 4, then the body |
| 28 | PHYSICALOFFSET | 8 |  | .. | TOPICLENGTH | 1 (V1) or 2 (V2), then the topic |
| 36 | SYSFLAG | 4 |         | .. | PROPERTIESLENGTH | 2, then the properties |
| 40 | BORNTIMESTAMP | 8 |

Big-endian throughout. Offsets are for IPv4 hosts; an IPv6 host (SYSFLAG 0x10 born, 0x20 store)
takes 12 bytes more. Source: Apache RocketMQ 4.9.8, CommitLog.
"""

import ipaddress
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from duolog_server.store.errors import BadMessage
from duolog_server.store.kernels import encode, scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.kernels.text import RECORD_CRC_BYTES
from duolog_server.store.names import TOPIC_BYTES_MAX
from duolog_server.store.offsets import PhyOffset, QueueOffset

NAME_VALUE_SEPARATOR = "\x01"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
PROPERTY_SEPARATOR = "\x02"
ONE_KEY, ONE_KEY_SET = "ONE_KEY", "true"  # KEYS is one key with spaces in it
PROPERTIES_BYTES_MAX = 32767  # of a record: the field that says how many is a signed short
# What nodes, and RocketMQ's consumers, may add to a message until its last copy is consumed, and
# the most bytes of each value. A half message has a PGROUP as well, but none of the other copies.
_ADDED_LATER = {
    **{"UNIQ_KEY": 32, "__CRC32#": 10},
    **{"DELAY": 10, "TIMER_DELIVER_MS": 19, "TIMER_OUT_MS": 19},
    **{"REAL_TOPIC": TOPIC_BYTES_MAX, "REAL_QID": 10, "TRAN_MSG": 4},
    **{"RETRY_TOPIC": TOPIC_BYTES_MAX, "ORIGIN_MESSAGE_ID": 56},
    **{"RECONSUME_TIME": 10, "MAX_RECONSUME_TIMES": 10},
    **{"DLQ_ORIGIN_TOPIC": TOPIC_BYTES_MAX, "DLQ_ORIGIN_MESSAGE_ID": 32},
}
SENT_PROPERTIES_BYTES_MAX = 31 << 10  # of a message as its client sends it: room for these is left


def room_for(values: Mapping[str, int]) -> int:
    """Bytes that properties take with their separators. values: the bytes of each value by name."""
    return sum(len(name.encode()) + size + 2 for name, size in values.items())


assert room_for(_ADDED_LATER) <= PROPERTIES_BYTES_MAX - SENT_PROPERTIES_BYTES_MAX

COMPRESSED = 0x1
MULTI_TAGS, COMPRESSION_TYPE = 0x2, 0x700
KEPT_FLAGS = COMPRESSED | MULTI_TAGS | COMPRESSION_TYPE  # of a message's sender
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = scan.BORN_HOST_V6
STORE_HOST_V6 = scan.STORE_HOST_V6

V4_HOST_BYTES = 8


@lru_cache
def _layout(born_bytes: int, store_bytes: int) -> struct.Struct:
    """The struct of a record's header, whose two hosts have 8 or 20 bytes each."""
    return struct.Struct(f">iIIiiqqiq{born_bytes}sq{store_bytes}siqi")


@lru_cache(4096)
def topic_bytes(topic: str) -> bytes:
    """A topic's name as records have it."""
    return topic.encode()


@lru_cache(1024)
def _host_bytes(address: str, port: int) -> bytes:
    return ipaddress.ip_address(address).packed + struct.pack(">i", port)


@dataclass(frozen=True, slots=True)
class Host:
    """An address and port as records carry them."""

    address: str
    port: int

    @property
    def is_v6(self) -> bool:
        """An IPv6 address."""
        return ":" in self.address

    @property
    def endpoint(self) -> str:
        """HOST:PORT, an IPv6 address in brackets."""
        return f"[{self.address}]:{self.port}" if self.is_v6 else f"{self.address}:{self.port}"

    def packed(self) -> bytes:
        """4 or 16 address bytes and 4 port bytes."""
        return _host_bytes(self.address, self.port)

    @staticmethod
    def unpacked(data: bytes) -> "Host":
        """Read 8 or 20 bytes."""
        return Host(str(ipaddress.ip_address(data[:-4])), struct.unpack(">i", data[-4:])[0])


LOCAL_HOST = Host("127.0.0.1", 10911)


@dataclass(slots=True)  # not frozen, as what a put makes: see `store.puts`
class RecordHeader:
    """The fields that all records of one append share."""

    topic: str
    queue_id: int
    born_time: int
    store_time: int
    born_host: Host = LOCAL_HOST
    store_host: Host = LOCAL_HOST
    flag: int = 0
    sysflag: int = 0
    reconsume_times: int = 0
    prepared_offset: PhyOffset = PhyOffset(0)

    def topic_length_bytes(self) -> int:
        """Bytes of the TOPICLENGTH field: V1 records have one, V2 two."""
        return 1 if len(topic_bytes(self.topic)) <= TOPIC_BYTES_MAX else 2

    def packed(self) -> bytes:
        """The header up to and with BODYLENGTH, the per-record fields zero."""
        born, store = self.born_host.packed(), self.store_host.packed()
        sysflag = self.sysflag & ~(BORN_HOST_V6 | STORE_HOST_V6)
        if len(born) > V4_HOST_BYTES:
            sysflag |= BORN_HOST_V6
        if len(store) > V4_HOST_BYTES:
            sysflag |= STORE_HOST_V6
        magic = scan.MAGIC_V1 if self.topic_length_bytes() == 1 else scan.MAGIC_V2
        return _layout(len(born), len(store)).pack(
            *(0, magic, 0, self.queue_id, self.flag, 0, 0, sysflag, self.born_time),
            *(born, self.store_time, store, self.reconsume_times, self.prepared_offset, 0),
        )


def put_reconsume_times(data: bytearray, at: int, end: int, times: int) -> None:
    """Change RECONSUMETIMES of a record in [at, end), and its CRC if it is sealed."""
    (sysflag,) = struct.unpack_from(">i", data, at + 36)
    hosts = sum(20 if sysflag & flag else 8 for flag in (BORN_HOST_V6, STORE_HOST_V6))
    struct.pack_into(">i", data, at + 48 + hosts + 8, times)
    seal = end - RECORD_CRC_BYTES
    if data.startswith(encode.RECORD_CRC_NAME.tobytes(), seal):
        digits = b"%010d" % zlib.crc32(memoryview(data)[at:seal])
        data[end - 11 : end - 1] = digits[::-1]


@dataclass(frozen=True, slots=True)
class Record:
    """One record read back."""

    topic: str
    queue_id: int
    queue_offset: QueueOffset
    physical_offset: PhyOffset
    size: int
    store_time: int
    born_time: int
    flag: int
    sysflag: int
    reconsume_times: int
    prepared_offset: PhyOffset
    born_host: Host
    store_host: Host
    tags_code: int
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def message_id(self) -> str:
        """The offset message id: where the record was stored, as hex."""
        return offset_message_id(self.store_host, self.physical_offset)


def has_control(text: str) -> bool:
    """Whether a text has ASCII control characters, which separate properties."""
    return _CONTROL.search(text) is not None


def encode_properties(properties: dict[str, str]) -> str:
    """Properties as text; BadMessage if a name or value cannot be written."""
    pairs = []
    for name, value in properties.items():
        if not name or not value:
            raise BadMessage(f"property {name!r} has an empty name or value")
        for text in (name, value):
            if has_control(text):
                raise BadMessage(f"property {name!r} has control characters")
        pairs.append(name + NAME_VALUE_SEPARATOR + value)
    return PROPERTY_SEPARATOR.join(pairs)


def decode_properties(text: str) -> dict[str, str]:
    """Read a properties text; pairs with an empty name or value are lost, as in RocketMQ."""
    properties = {}
    for pair in text.split(PROPERTY_SEPARATOR):
        name, separator, value = pair.partition(NAME_VALUE_SEPARATOR)
        if separator and name and value:
            properties[name] = value
    return properties


def keys_of(properties: dict[str, str]) -> list[str]:
    """The keys of a message: words with spaces between them, or one that has spaces in it.

    Only U+0020 is between two, as in RocketMQ; `duolog.Message.keys` is the SDK's side of this.
    """
    text = properties.get("KEYS", "")
    one = properties.get(ONE_KEY) == ONE_KEY_SET
    return list(filter(None, [text] if one else text.split(" ")))


def offset_message_id(store_host: Host, physical_offset: PhyOffset) -> str:
    """16 bytes (28 with IPv6) as upper-case hex: store host, port, commit-log offset."""
    return (store_host.packed() + struct.pack(">q", physical_offset)).hex().upper()


_HEX = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)  # of each byte


def offset_message_ids(store_host: Host, physical_offsets: I64) -> str:
    """The same for each of several messages, with commas between them."""
    count = len(physical_offsets)
    places = physical_offsets.astype(">i8").view(np.uint8)
    prefix = np.frombuffer(store_host.packed().hex().upper().encode(), np.uint8)
    rows: U8 = np.full((count, len(prefix) + 17), ord(","), np.uint8)
    rows[:, : len(prefix)] = prefix
    rows[:, len(prefix) : -1] = _HEX[places].view(np.uint8).reshape(count, 16)
    return rows.tobytes()[:-1].decode()


def few_message_ids(store_host: Host, physical_offsets: Sequence[int]) -> list[str]:
    """The same for so few that arrays would cost more than they save."""
    prefix = store_host.packed().hex().upper()
    return [f"{prefix}{place:016X}" for place in physical_offsets]


def parse_message_id(message_id: str) -> tuple[Host, int]:
    """Store host and commit-log offset of an offset message id; BadMessage if it is none."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        raise BadMessage(f"{message_id!r} is not a message id") from None
    if len(data) not in (16, 28):
        raise BadMessage(f"{message_id!r} has {len(data)} bytes, a message id has 16 or 28")
    return Host.unpacked(data[:-8]), struct.unpack(">q", data[-8:])[0]


def uniq_key(producer: bytes, sequence: int) -> str:
    """UNIQ_KEY of a message: 10 bytes producer id, 6 bytes sequence, 32 upper-case hex digits."""
    assert len(producer) == 10, "a producer id has 10 bytes"
    return (producer + sequence.to_bytes(6, "big")).hex().upper()
