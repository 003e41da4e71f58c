"""confluent-kafka at work: `produce_batch`, `produce`, `consume(n)`, `poll`."""

import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.clients.program import (
    PARTITIONS,
    TOPICS,
    Arrivals,
    Turn,
    arguments,
    began,
    ended,
    of_latencies,
    until_answered,
    until_listening,
)
from bench.peers.peer import Measured, Work
from bench.peers.rows import Kind

BATCH = 10_000  # messages of one produce_batch
LOOP_TURN = 1000  # calls between two reads of the clock
FLUSH_SECONDS = 60.0
CALL_SECONDS = 5.0
CONSUMED = 10_000  # messages that one consume() may give
QUEUE_FULL_SECONDS = 0.01


def settings(address: str) -> dict[str, Any]:
    """Of all clients; quick to connect again, since `ready` looks at a server that starts."""
    return {
        "bootstrap.servers": address,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 50,
        "socket.nagle.disable": True,
    }


def ready(address: str, work: Work) -> Measured:
    """Topics exist, with all their replicas, and a message is acknowledged."""
    began()
    started = time.perf_counter()
    until_listening(address.partition(",")[0])
    admin = AdminClient(settings(address))
    copies = 2 if work.replicated else 1

    def create() -> None:
        present = admin.list_topics(timeout=CALL_SECONDS)
        if len(present.brokers) < copies:
            raise RuntimeError(f"{len(present.brokers)} brokers of {copies}")
        missing = [name for name in TOPICS if name not in present.topics]
        rule = {"min.insync.replicas": str(copies)}
        wanted = [NewTopic(name, PARTITIONS, copies, config=rule) for name in missing]
        if wanted:
            for future in admin.create_topics(wanted).values():
                future.result(CALL_SECONDS)

    until_answered(create)
    producer = Producer({**settings(address), "acks": "all", "linger.ms": 0})
    errors: list[object] = [None]

    def send() -> None:
        errors.clear()
        producer.produce(work.topic, b"x", on_delivery=lambda error, _: errors.append(error))
        if producer.flush(CALL_SECONDS) or errors != [None]:
            raise RuntimeError(f"not acknowledged: {errors}")

    until_answered(send)
    return Measured(1, time.perf_counter() - started)


class Log:
    """How many messages the partitions of a topic hold."""

    def __init__(self, address: str, topic: str) -> None:
        self._consumer = Consumer({**settings(address), "group.id": "log"})
        self._parts = [TopicPartition(topic, k) for k in range(PARTITIONS)]

    def count(self) -> int:
        """All acknowledged messages: what is below the high watermarks."""
        offsets = [
            self._consumer.get_watermark_offsets(part, timeout=CALL_SECONDS) for part in self._parts
        ]
        return sum(high for _, high in offsets)


def many(producer: Producer, work: Work, turn: Turn) -> None:
    """`produce_batch` into the partitions in turn."""
    messages, number = [{"value": b"x" * work.size} for _ in range(BATCH)], 0
    while turn.more():
        left = messages[: turn.portion(BATCH)]
        number += 1
        while left:
            taken = producer.produce_batch(work.topic, left, partition=number % PARTITIONS)
            turn.sent += taken
            # What did not fit carries an error.
            left = [{"value": b"x" * work.size} for _ in range(len(left) - taken)]
            producer.poll(QUEUE_FULL_SECONDS if left else 0)


def posts(producer: Producer, work: Work, turn: Turn) -> None:
    """`produce`, as its own examples do: on a full queue, poll and try again."""
    body, topic = b"x" * work.size, work.topic
    while turn.more():
        for _ in range(LOOP_TURN):
            while True:
                try:
                    producer.produce(topic, body)
                    break
                except BufferError:
                    producer.poll(QUEUE_FULL_SECONDS)
        turn.sent += LOOP_TURN
        producer.poll(0)


def produce(address: str, work: Work) -> Measured:
    """Warm up, then measure; the log says how many were acknowledged."""
    producer = Producer({**settings(address), "acks": "all"})
    log, send = Log(address, work.topic), posts if work.kind is Kind.POST else many

    def stretch(turn: Turn) -> Measured:
        before = log.count()
        turn.started = time.perf_counter()
        send(producer, work, turn)
        if left := producer.flush(FLUSH_SECONDS):
            raise RuntimeError(f"{left:,} messages were not acknowledged")
        done = turn.done(turn.sent)
        if (stored := log.count() - before) != turn.sent:
            raise RuntimeError(f"{stored:,} messages of {turn.sent:,} are in the log")
        return done

    if work.warm_seconds:
        stretch(Turn(work.warm_seconds))
    began()
    return stretch(Turn(work.seconds, work.messages))


def singly(address: str, work: Work) -> Measured:
    """Each is acknowledged before the next one is produced."""
    producer = Producer({**settings(address), "acks": "all", "linger.ms": 0})
    body, answers = b"x" * work.size, 0

    def told(error: object, _: object) -> None:
        nonlocal answers
        if error is not None:
            raise RuntimeError(str(error))
        answers += 1

    def stretch(turn: Turn) -> Measured:
        latencies: list[float] = []
        while turn.more():
            before, sent = answers, time.perf_counter()
            producer.produce(work.topic, body, on_delivery=told)
            while answers == before:
                producer.poll(CALL_SECONDS)
            latencies.append(time.perf_counter() - sent)
        return of_latencies(latencies, time.perf_counter() - turn.started)

    stretch(Turn(work.warm_seconds))
    began()
    return stretch(Turn(work.seconds))


def consume(address: str, work: Work) -> Measured:
    """All partitions from their beginning, as objects; bodies are looked at."""
    consumer = Consumer({**settings(address), "group.id": f"readers-{work.kind}"})
    consumer.assign([TopicPartition(work.topic, k, OFFSET_BEGINNING) for k in range(PARTITIONS)])
    arrivals, size, done, each = Arrivals(work.messages), 0, False, work.kind is Kind.CONSUME_EACH
    while not done:
        if each:
            message = consumer.poll(CALL_SECONDS)
            found = [] if message is None else [message]
        else:
            found = consumer.consume(CONSUMED, timeout=0.05)
        for message in found:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            size += len(message.value())
        done = arrivals.add(len(found))
    arrivals.count += len(consumer.consume(1, timeout=0.2))
    consumer.close()
    if size != work.messages * work.size:
        raise RuntimeError(f"consumed {size:,} bytes")
    return arrivals.measured()


def main() -> None:
    """One piece of work."""
    address, work = arguments()
    match work.kind:
        case Kind.READY:
            ended(ready(address, work))
        case Kind.SINGLE:
            ended(singly(address, work))
        case Kind.CONSUME | Kind.CONSUME_EACH:
            ended(consume(address, work))
        case _:
            ended(produce(address, work))


if __name__ == "__main__":
    main()
