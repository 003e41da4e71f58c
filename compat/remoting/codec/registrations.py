"""Registration of a broker at name servers: REGISTER_BROKER and UNREGISTER_BROKER.

The body is RegisterBrokerBody, in one of two forms. The plain one is JSON. The compressed one is a
zlib stream of

| bytes | field |
|------:|-------|
| 4, n | data version, as JSON |
| 4 | number of topics |
| 4, n | each topic: its name, read queues, write queues, perm, `SINGLE_TAG`, by spaces |
| 4, n | filter servers, as JSON |

Big-endian. A name server takes the topics of the master (id 0) alone, and only where the data
version is another one than before. Source: Apache RocketMQ 4.9.7, RegisterBrokerBody.
"""

import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from duolog_server.compat.remoting.codec.fields import Int, Long

COMPRESSED_FROM = 1000  # topics: old name servers know the plain form alone, which is long
_LENGTH = struct.Struct(">I")
_FILTER_SERVERS = b"[]"


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    """REGISTER_BROKER. broker_addr: HOST:PORT for clients; ha_server_addr: for slaves."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long
    ha_server_addr: str = ""
    compressed: bool = False
    body_crc32: Int = 0


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRequest:
    """UNREGISTER_BROKER."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(frozen=True, slots=True)
class DataVersion:
    """A state of a broker's topics. state: the mastership's number; RocketMQ 5's name servers
    refuse a master with a lower one.
    """

    state: int
    timestamp_ms: int
    counter: int

    def to_json(self) -> bytes:
        """Encode as DataVersion."""
        found = {
            "counter": self.counter,
            "stateVersion": self.state,
            "timestamp": self.timestamp_ms,
        }
        return json.dumps(found, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class RegisteredTopic:
    """TopicConfig, as far as routes need it."""

    name: str
    queues: int
    perm: int
    sysflag: int = 0
    order: bool = False

    def to_json(self) -> str:
        """Encode as a member of topicConfigTable."""
        row = {
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": self.name,
            "topicSysFlag": self.sysflag,
            "writeQueueNums": self.queues,
        }
        return f"{json.dumps(self.name)}:{json.dumps(row, separators=(',', ':'))}"

    def to_text(self) -> bytes:
        """Encode as in the compressed form."""
        return f"{self.name} {self.queues} {self.queues} {self.perm} SINGLE_TAG".encode()


class RegisterBody:
    """RegisterBrokerBody, made in parts, as there may be very many topics.

    Attributes:
        compressed: its form.
    """

    def __init__(self, version: DataVersion, count: int) -> None:
        """count: of the topics that are added."""
        self.compressed = count >= COMPRESSED_FROM
        self._left = count
        self._parts: list[bytes] = []
        self._zlib = zlib.compressobj()
        if self.compressed:
            self._deflate(_sized(version.to_json()) + _LENGTH.pack(count))
        else:
            self._parts.append(
                b'{"filterServerList":' + _FILTER_SERVERS + b',"topicConfigSerializeWrapper":'
                b'{"dataVersion":' + version.to_json() + b',"topicConfigTable":{'
            )

    def add(self, topics: Iterable[RegisteredTopic]) -> None:
        """Add topics."""
        for topic in topics:
            assert self._left, "no more topics than announced"
            self._left -= 1
            if self.compressed:
                self._deflate(_sized(topic.to_text()))
            else:
                self._parts.append((topic.to_json() + ("," if self._left else "")).encode())

    def finish(self) -> bytes:
        """The body; every topic was added."""
        assert not self._left, "as many topics as announced"
        if self.compressed:
            self._deflate(_sized(_FILTER_SERVERS))
            self._parts.append(self._zlib.flush())
        else:
            self._parts.append(b"}}}")
        return b"".join(self._parts)

    def _deflate(self, data: bytes) -> None:
        self._parts.append(self._zlib.compress(data))


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data
