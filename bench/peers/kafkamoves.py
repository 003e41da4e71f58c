"""What `bench.moves` measures, in Kafka: a partition of two replicas goes to two other brokers.

A probe sends one message after another; the longest time between two acknowledgements while the
partition is reassigned is its pause. Kafka copies what the partition holds, duolog nothing.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.failover import Acks
from bench.peers.kafka import VERSION, Brokers, Kafka, brokers, run_tool
from bench.peers.peer import PeerFailed

TOPIC = "probe"
BODY = bytes(1024)
PAIRS = ([1, 2], [3, 4])  # brokers between which it goes to and fro
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
UP_SECONDS = 60.0
SEND_SECONDS = 60.0
MOVE_SECONDS = 300.0
SETTLE_SECONDS = 1.0


def reassigned(root: Path, mebibytes: int, times: int) -> tuple[list[float], list[float]]:
    """Longest gaps between acknowledgements in ms, and seconds that each reassignment took.

    mebibytes: of the partition before the first. Raises PeerFailed, Unavailable.
    """
    Kafka().prepare()
    gaps, seconds = [], []
    with _started(root) as kafka:
        _make(kafka.address)
        _fill(kafka.address, mebibytes)
        with _sending(kafka.address) as acks:
            for turn in range(times):
                began = time.monotonic()
                _reassign(root, kafka, PAIRS[(turn + 1) % 2])
                seconds.append(time.monotonic() - began)
                time.sleep(SETTLE_SECONDS)
                gaps.append(acks.longest_gap(began) * 1000)
        if acks.failed:
            raise PeerFailed(f"{acks.failed} sends to Kafka {VERSION} failed")
    return gaps, seconds


@contextmanager
def _started(root: Path) -> Iterator[Brokers]:
    kafka = brokers(root, sum(map(len, PAIRS)), len(PAIRS[0]))
    with ExitStack() as ends:
        for process in kafka.processes:
            ends.callback(process.end)
            process.start()
        yield kafka


def _make(address: str) -> None:
    """The topic, at the first pair, once all brokers are there."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin, until = (
        AdminClient({"bootstrap.servers": address, "log_level": 0}),
        time.monotonic() + UP_SECONDS,
    )
    while len(admin.list_topics(timeout=UP_SECONDS).brokers) < sum(map(len, PAIRS)):
        if time.monotonic() > until:
            raise PeerFailed("not all brokers of Kafka came up")
        time.sleep(0.1)
    topic = NewTopic(
        TOPIC, 1, replica_assignment=[PAIRS[0]], config={"min.insync.replicas": str(len(PAIRS[0]))}
    )
    try:
        admin.create_topics([topic])[TOPIC].result(UP_SECONDS)
    except KafkaException as error:
        raise PeerFailed(f"Kafka made no topic: {error}") from None


def _fill(address: str, mebibytes: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "log_level": 0, "acks": "all"})
    for _ in range(mebibytes):
        for _ in range((1 << 20) // len(BODY)):
            producer.produce(TOPIC, BODY)
        if producer.flush(SEND_SECONDS):
            raise PeerFailed("Kafka stored no messages in time")


@contextmanager
def _sending(address: str) -> Iterator[Acks]:
    """One message after another, from a thread."""
    from confluent_kafka import Producer

    acks, over = Acks(), threading.Event()
    producer = Producer(
        {"bootstrap.servers": address, "log_level": 0, "acks": "all", "linger.ms": 0}
    )

    def told(error: object, _: object) -> None:
        if error is None:
            acks.told.append((time.monotonic(), 0))
        else:
            acks.failed += 1

    def send() -> None:
        while not over.is_set():
            producer.produce(TOPIC, BODY, on_delivery=told)
            acks.failed += producer.flush(SEND_SECONDS)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        time.sleep(SETTLE_SECONDS)
        yield acks
    finally:
        over.set()
        thread.join()


def _reassign(root: Path, kafka: Brokers, pair: list[int]) -> None:
    """Give the partition to other brokers, and wait until it is there."""
    plan, until = root / "reassignment.json", time.monotonic() + MOVE_SECONDS
    moved = {"topic": TOPIC, "partition": 0, "replicas": pair}
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    command = f"{REASSIGN} --bootstrap-server {kafka.address} --reassignment-json-file {plan}"
    run_tool(kafka.jars, f"{command} --execute")
    while "is completed" not in run_tool(kafka.jars, f"{command} --verify"):
        if time.monotonic() > until:
            raise PeerFailed(f"Kafka did not reassign the partition in {MOVE_SECONDS:g} s")
