"""Kafka in KRaft mode, with confluent-kafka's client and with Kafka's own performance tools."""

import importlib.metadata
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duolog.testing._ports import free_ports
from duolog.testing._process import ChildProcess

from bench.peers import maven
from bench.peers.clients.program import PARTITIONS, program
from bench.peers.peer import (
    Began,
    ClientProgram,
    Facts,
    Measured,
    PeerFailed,
    Server,
    Unavailable,
    Work,
)
from bench.peers.rows import Kind

VERSION = "4.1.2"
ARTIFACTS = (f"org.apache.kafka:kafka_2.13:{VERSION}", f"org.apache.kafka:kafka-tools:{VERSION}")
CLUSTER = "ZHVvbG9nLWJlbmNoLXBlZQ"  # 16 bytes in base64, as Kafka wants an id
HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
TOOL_SECONDS = 60
TOOL_MESSAGES_PER_SECOND = {100: 1_000_000, 1024: 200_000}  # so that it runs as long as others


@dataclass(frozen=True)
class Brokers:
    """The first one is the controller, too."""

    processes: Sequence[ChildProcess]
    address: str
    jars: Path
    tools: bool

    def client(self, work: Work) -> ClientProgram:
        """confluent-kafka, or Kafka's own tools where they do this work."""
        if self.tools and work.kind in (Kind.BATCH, Kind.POST, Kind.CONSUME):
            return _tool(self, work)
        return program("kafka", self.address, work)


def _properties(root: Path, number: int, ports: Sequence[int], copies: int) -> str:
    """Configuration of broker `number`, counted from 1; the last port is the controller's."""
    controls = number == 1
    listen = f"PLAINTEXT://127.0.0.1:{ports[number - 1]}"
    control = f"CONTROLLER://127.0.0.1:{ports[-1]}"
    rows = {
        "process.roles": "broker,controller" if controls else "broker",
        "node.id": number,
        "controller.quorum.voters": f"1@127.0.0.1:{ports[-1]}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listen},{control}" if controls else listen,
        "advertised.listeners": listen,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": root / f"kafka-{number}",
        "num.partitions": PARTITIONS,
        "default.replication.factor": copies,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    return "".join(f"{key}={value}\n" for key, value in rows.items())


def _java(jars: Path, *words: str) -> list[str]:
    return ["java", *words[:-1], "-cp", f"{jars}/*", *words[-1].split(" ")]


def _tool(brokers: Brokers, work: Work) -> ClientProgram:
    """ProducerPerformance or ConsumerPerformance; the former counts what is acknowledged."""
    package = "org.apache.kafka.tools"
    if work.kind is Kind.CONSUME:
        command = (
            f"{package}.ConsumerPerformance --bootstrap-server {brokers.address} "
            f"--topic {work.topic} --messages {work.messages} --group readers-tool"
        )
        return ClientProgram(_java(brokers.jars, "-Xmx1g", command), _ConsumerLines(work).read)
    seconds = work.seconds + work.warm_seconds
    messages = int(TOOL_MESSAGES_PER_SECOND[work.size] * seconds)
    command = (
        f"{package}.ProducerPerformance --topic {work.topic} --num-records {messages} "
        f"--record-size {work.size} --throughput -1 "
        f"--producer-props bootstrap.servers={brokers.address} acks=all"
    )
    return ClientProgram(_java(brokers.jars, "-Xmx1g", command), _ProducerLines(messages).read)


class _Lines:
    """A tool's output; the first line read stands for the beginning."""

    def __init__(self) -> None:
        self._began = False

    def read(self, line: str) -> Began | Measured | None:
        """What a line says."""
        if not self._began:
            self._began = True
            return Began()
        return self.figures(line)

    def figures(self, line: str) -> Measured | None:
        """Of the line that sums up."""
        raise NotImplementedError


class _ProducerLines(_Lines):
    """`1000000 records sent, 420000.0 records/sec (40.05 MB/sec), 3.0 ms avg latency, ...`."""

    def __init__(self, messages: int) -> None:
        super().__init__()
        self._messages = messages

    def figures(self, line: str) -> Measured | None:
        """The summary is the line that counts all records."""
        words = line.replace(",", "").split()
        if words[1:3] != ["records", "sent"] or "99th" not in line:
            return None
        if int(words[0]) != self._messages:
            raise PeerFailed(f"the tool sent {words[0]} records of {self._messages}")
        return Measured(self._messages, self._messages / float(words[3]))

    def read(self, line: str) -> Began | Measured | None:
        """A short run prints nothing but its summary."""
        return self.figures(line) or super().read(line)


class _ConsumerLines(_Lines):
    """A row of numbers, parted by commas; the eighth to tenth are those of fetching alone."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._wanted = work.messages

    def figures(self, line: str) -> Measured | None:
        """The row after the headings."""
        words = [word.strip() for word in line.split(",")]
        if len(words) != 10 or not words[4].isdecimal():
            return None
        if int(words[4]) != self._wanted:
            raise PeerFailed(f"the tool consumed {words[4]} messages of {self._wanted}")
        return Measured(self._wanted, self._wanted / float(words[9]))


class Kafka:
    """With confluent-kafka."""

    name = "kafka"
    facts = Facts(
        title=f"Kafka {VERSION}",
        settings=(
            "KRaft, one process that is broker and controller, heap 1 GiB, topics with 4 "
            "partitions; nothing is flushed before it is acknowledged, the default",
            "client: confluent-kafka with acks=all, no compression, linger.ms 5 (the default); "
            "one at a time linger.ms 0",
            "batch call: `produce_batch` of 10,000 messages into the partitions in turn",
            "one call a message: `produce` without a callback, then `flush`; the partitions' "
            "high watermarks say that all are stored",
            "replicated: two brokers, replication factor 2, min.insync.replicas 2",
            "consumption: `consume(10000)`, or `poll` for one call a message; partitions are "
            "assigned, nothing is committed",
        ),
        favours=(
            "for it: its client is C; a callback a message, which programs that must know of "
            "errors give it, would slow `produce` down",
            "for it: consumption commits no offsets, duolog's does",
            "against it: a JVM, though its brokers work for 5 s before anything is measured",
        ),
        replicated_processes="2 servers",
        consumed=800_000,
        recovery_rounds=2,
        server_warm_seconds=5.0,
    )
    tools = False

    def prepare(self) -> dict[str, str]:
        """Jars from Maven Central, the client from the Python environment."""
        try:
            client = importlib.metadata.version("confluent-kafka")
        except importlib.metadata.PackageNotFoundError:
            raise Unavailable("the package confluent-kafka is not installed") from None
        maven.jars(f"kafka-{VERSION}", ARTIFACTS)
        return {"kafka": VERSION, "confluent-kafka": client, "java": maven.java_version()}

    def servers(self, root: Path, replicated: bool) -> Brokers:
        """One broker, or two."""
        copies = 2 if replicated else 1
        return brokers(root, copies, copies, self.tools)


class KafkaTools(Kafka):
    """With the performance tools that Kafka ships."""

    name = "kafka-java"
    facts = Facts(
        title=f"Kafka {VERSION}, Java tool",
        settings=(
            "brokers as above; ProducerPerformance with acks=all, ConsumerPerformance (its rate "
            "without the time to join the group)",
        ),
        favours=("against it: the tool's rate includes its warm-up",),
        empty={
            "single": "the tool does not wait for each message",
            "replicated_batch_small": "see Kafka",
            "replicated_post_small": "see Kafka",
            "replicated_batch_large": "see Kafka",
            "replicated_single": "see Kafka",
            "consume_each": "the tool has no such call",
            "server_cpu_batch": "see Kafka",
            "server_cpu_post": "see Kafka",
            "client_cpu_batch": "the tool does not say when it begins",
            "client_cpu_post": "the tool does not say when it begins",
            "recovery": "see Kafka",
        },
        same_as={
            "batch_small": "post_small",
            "batch_large": "post_large",
        },
        consumed=1_000_000,
        server_warm_seconds=5.0,
    )
    tools = True


def brokers(root: Path, count: int, copies: int, tools: bool = False) -> Brokers:
    """Brokers, not yet started. copies: of each partition. Raises PeerFailed."""
    jars = maven.jars(f"kafka-{VERSION}", ARTIFACTS)
    ports = free_ports(count + 1)
    processes = []
    for number in range(1, count + 1):
        properties = root / f"kafka-{number}.properties"
        properties.write_text(_properties(root, number, ports, copies))
        run_tool(jars, f"kafka.tools.StorageTool format -t {CLUSTER} -c {properties}")
        command = _java(jars, *HEAP, f"kafka.Kafka {properties}")
        processes.append(Server(f"kafka-{number}", command, root / f"kafka-{number}.log"))
    address = ",".join(f"127.0.0.1:{port}" for port in ports[:-1])
    return Brokers(processes, address, jars, tools)


def run_tool(jars: Path, words: str) -> str:
    """What a tool of Kafka prints. words: its class and arguments. Raises PeerFailed."""
    name = words.split(" ", 1)[0].rsplit(".", 1)[-1]
    try:
        found = subprocess.run(
            _java(jars, words), capture_output=True, text=True, timeout=TOOL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"Kafka's {name} did not end") from None
    if found.returncode:
        raise PeerFailed(f"Kafka's {name} failed: {(found.stdout + found.stderr)[-500:]}")
    return found.stdout
