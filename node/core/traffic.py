"""Messages by topic and consumer group, counted where clients send batches and where they get them.

Plain numbers since the start of the process. A batch costs one lookup in a dict.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from duolog._message import RETRY_PREFIX

K = TypeVar("K")

FLOWS_MAX = 100_000
NORMAL, DELAY, TRANSACTION = "normal", "delay", "transaction"  # kinds, by RocketMQ's names


@dataclass(slots=True)
class Flow:
    """Messages, and bytes of their bodies."""

    messages: int = 0
    body_bytes: int = 0


class Flows(Generic[K]):
    """The flows of one direction. Over `most`, the one that began first begins again."""

    def __init__(self, most: int = FLOWS_MAX) -> None:
        self.table: dict[K, Flow] = {}
        self._most = most

    def add(self, key: K, messages: int, body_bytes: int = 0) -> None:
        """Count a batch."""
        flow = self.table.get(key)
        if flow is None:
            # The first is likely one of a topic or group that was deleted long ago.
            if len(self.table) >= self._most:
                del self.table[next(iter(self.table))]
            flow = self.table[key] = Flow()
        flow.messages += messages
        flow.body_bytes += body_bytes


class Traffic:
    """What passed through a node.

    received: by topic and kind of message, as clients send them: not retries, dead letters and
    other messages that the node stores by itself. delivered: by topic, group (empty where a reader
    names none), and whether it is for another attempt. dead: messages given up, by the topic they
    were sent to and group. committed, rolled_back: half messages decided by their producers, by
    topic. reads_found, reads_missed: reads of queues by clients that found messages, and others.
    """

    def __init__(self) -> None:
        self.received: Flows[tuple[str, str]] = Flows()
        self.delivered: Flows[tuple[str, str, bool]] = Flows()
        self.dead: Flows[tuple[str, str]] = Flows()
        self.committed: Flows[str] = Flows()
        self.rolled_back: Flows[str] = Flows()
        self.reads_found = 0
        self.reads_missed = 0

    def deliver(self, topic: str, group: str, messages: int, body_bytes: int) -> None:
        """Count a batch read from a topic, which may be a retry topic."""
        self.delivered.add((topic, group, topic.startswith(RETRY_PREFIX)), messages, body_bytes)

    def read(self, found: int) -> None:
        """Count a read by how many messages it found."""
        if found:
            self.reads_found += 1
        else:
            self.reads_missed += 1
