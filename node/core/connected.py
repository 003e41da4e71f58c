"""Consumers that are connected now, by any protocol: all tables of them are asked here."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

from duolog_server.store.clocks import MonoMs

NOT_KNOWN = MonoMs(0)


@dataclass(frozen=True, slots=True)
class Read:
    """A consumer's subscription to a topic.

    Attributes:
        expression: by which it chooses messages, `*` for all; empty where it does not say.
        is_sql: whether that is SQL92; otherwise it names tags.
    """

    topic: str
    expression: str = ""
    is_sql: bool = False


@dataclass(frozen=True, slots=True)
class Consumer:
    """A client as a member of a group, with what it said of itself.

    Attributes:
        address: it is connected from, without the port.
        told_ms: when it last said what it reads, wall-clock ms; 0 where that is not known.
        of_sdk: whether it is a consumer of duolog's SDK; otherwise it is one of RocketMQ's clients.
        shares: whether it takes part in sharing out queues, each of which one consumer reads.
        since_ms: since when it has been a consumer, monotonic ms.
    """

    client_id: str
    reads: tuple[Read, ...]
    language: str = ""
    version: str = ""
    hostname: str = ""
    address: str = ""
    broadcasting: bool = False
    told_ms: int = 0
    of_sdk: bool = False
    shares: bool = False
    since_ms: MonoMs = NOT_KNOWN


class Tells(Protocol):
    """A table of clients."""

    def consumers(self, groups: Collection[str]) -> Iterator[tuple[str, Consumer]]:
        """The consumers in these groups, each with its group."""

    def readers(self, topic: str) -> set[str]:
        """The groups with a consumer that reads a topic."""

    def counts(self) -> tuple[int, int]:
        """How many producers and how many consumers there are."""


class Connected:
    """All tables of a node."""

    def __init__(self) -> None:
        self._tables: list[Tells] = []

    def add(self, table: Tells) -> None:
        """Ask this one, too."""
        self._tables.append(table)

    def consumers(self, groups: Collection[str]) -> Iterator[tuple[str, Consumer]]:
        """The consumers in these groups, each with its group; to be taken in one step."""
        for table in self._tables:
            yield from table.consumers(groups)

    def readers(self, topic: str) -> set[str]:
        """The groups with a consumer that reads a topic."""
        return {group for table in self._tables for group in table.readers(topic)}

    def counts(self) -> tuple[int, int]:
        """How many producers and how many consumers there are."""
        counts = [table.counts() for table in self._tables]
        return sum(producers for producers, _ in counts), sum(consumers for _, consumers in counts)
