"""Apache's Python client at work: python -m bench.pythonclient HOST:PORT TOPIC send|push SECONDS.

Prints messages a second. A process of its own, and killed by itself at the end: what the client
leaves behind does not always end.
"""

import os
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)

WARM_SECONDS = 2.0


def send(configuration: ClientConfiguration, topic: str, seconds: float) -> float:
    """Synchronous sends of 100 bytes, one after the other."""
    producer = Producer(configuration, (topic,))
    producer.startup()
    message = Message()
    message.topic, message.body = topic, b"." * 100
    warm_until = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < warm_until:
        producer.send(message)
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        producer.send(message)
        count += 1
    return count / (time.perf_counter() - began)


class Counting(MessageListener):  # type: ignore[misc]
    """Counts."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def consume(self, message: Message) -> ConsumeResult:
        """It went well."""
        with self._lock:
            self.count += 1
        return ConsumeResult.SUCCESS


def push(configuration: ClientConfiguration, topic: str, seconds: float) -> float:
    """Messages that come to a listener."""
    listener = Counting()
    consumer = PushConsumer(configuration, "bench", listener, {topic: FilterExpression()})
    consumer.startup()
    while not listener.count:
        time.sleep(0.01)
    time.sleep(WARM_SECONDS)
    before, began = listener.count, time.perf_counter()
    time.sleep(seconds)
    return (listener.count - before) / (time.perf_counter() - began)


def main() -> None:
    """One measurement."""
    endpoint, topic, work, seconds = sys.argv[1:]
    configuration = ClientConfiguration(endpoint, Credentials())
    rate = {"send": send, "push": push}[work](configuration, topic, float(seconds))
    print(rate, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
