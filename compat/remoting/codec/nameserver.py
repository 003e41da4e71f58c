"""What a name server and its clients say: routes, and registrations of brokers.

Routes are JSON in two dialects. Older clients of Java were written against a library that leaves
numbers unquoted as keys; newer ones, and those of other languages, ask for standard JSON.

The body of REGISTER_BROKER is RegisterBrokerBody, in one of two forms. The plain one is JSON. The
compressed one is a zlib stream of

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from duolog_server.compat.remoting.codec.fields import Int, Long

STANDARD_JSON_VERSION = 401  # V4_9_4: clients from it on read standard JSON
MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """A replica group. addresses: HOST:PORT by broker id; the master's is 0."""

    cluster: str
    name: str
    addresses: Mapping[int, str]

    def to_json(self, standard: bool) -> str:
        """Encode as BrokerData."""
        quote = '"' if standard else ""
        addresses = ",".join(
            f"{quote}{number}{quote}:{json.dumps(address)}"
            for number, address in sorted(self.addresses.items())
        )
        return (
            f'{{"brokerAddrs":{{{addresses}}},"brokerName":{json.dumps(self.name)},'
            f'"cluster":{json.dumps(self.cluster)}}}'
        )


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """How many queues of a topic a replica group has, and what may be done with them."""

    broker_name: str
    queues: int
    perm: int
    sysflag: int = 0
    guests: int = 0  # that are there to be read


def topic_route(queues: TopicQueues, broker: BrokerAddresses, standard: bool) -> bytes:
    """TopicRouteData."""
    row = {
        "brokerName": queues.broker_name,
        "perm": queues.perm,
        "readQueueNums": queues.queues + queues.guests,
        "topicSynFlag": queues.sysflag,
        "topicSysFlag": queues.sysflag,
        "writeQueueNums": queues.queues,
    }
    text = (
        f'{{"brokerDatas":[{broker.to_json(standard)}],"filterServerTable":{{}},'
        f'"queueDatas":[{json.dumps(row, separators=(",", ":"))}]}}'
    )
    return text.encode()


def cluster_info(broker: BrokerAddresses) -> bytes:
    """ClusterInfo, which has numbers as keys for every client."""
    clusters = json.dumps({broker.cluster: [broker.name]}, separators=(",", ":"))
    text = (
        f'{{"brokerAddrTable":{{{json.dumps(broker.name)}:{broker.to_json(standard=False)}}},'
        f'"clusterAddrTable":{clusters}}}'
    )
    return text.encode()


COMPRESSED_FROM = 1000  # topics: old name servers know the plain form alone, which is long
_LENGTH = struct.Struct(">I")
_FILTER_SERVERS = b"[]"


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRequest:
    """UNREGISTER_BROKER. broker_addr: HOST:PORT for clients."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(frozen=True, slots=True)
class RegisterRequest(UnregisterBrokerRequest):
    """REGISTER_BROKER. ha_server_addr: for slaves."""

    ha_server_addr: str = ""
    compressed: bool = False
    body_crc32: Int = 0


def data_version(state: int, timestamp_ms: int, counter: int) -> bytes:
    """A state of a broker's topics, as JSON. state: the mastership's number; RocketMQ 5's name
    servers refuse a master with a lower one.
    """
    found = {"counter": counter, "stateVersion": state, "timestamp": timestamp_ms}
    return json.dumps(found, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class RegisteredTopic:
    """TopicConfig, as far as routes need it."""

    name: str
    queues: int
    perm: int
    sysflag: int = 0
    order: bool = False
    guests: int = 0  # that are there to be read

    def to_json(self) -> str:
        """Encode as a member of topicConfigTable."""
        row = {
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.queues + self.guests,
            "topicFilterType": "SINGLE_TAG",
            "topicName": self.name,
            "topicSysFlag": self.sysflag,
            "writeQueueNums": self.queues,
        }
        return f"{json.dumps(self.name)}:{json.dumps(row, separators=(',', ':'))}"

    def to_text(self) -> bytes:
        """Encode as in the compressed form."""
        read = self.queues + self.guests
        return f"{self.name} {read} {self.queues} {self.perm} SINGLE_TAG".encode()


class RegisterBody:
    """RegisterBrokerBody, made in parts, as there may be very many topics.

    Attributes:
        compressed: its form.
    """

    def __init__(self, version: bytes, count: int) -> None:
        """version: see `data_version`. count: of the topics that are added."""
        self.compressed = count >= COMPRESSED_FROM
        self._left = count
        self._parts: list[bytes] = []
        self._zlib = zlib.compressobj()
        if self.compressed:
            self._deflate(_sized(version) + _LENGTH.pack(count))
        else:
            self._parts.append(
                b'{"filterServerList":' + _FILTER_SERVERS + b',"topicConfigSerializeWrapper":'
                b'{"dataVersion":' + version + b',"topicConfigTable":{'
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
