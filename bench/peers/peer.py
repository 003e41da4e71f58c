"""What a peer is to the measurement: servers to start, a client program to run, facts to print."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from duolog.testing._process import ChildProcess

from bench.peers.rows import Kind


class Unavailable(Exception):
    """A peer cannot be had here; the text says why."""


class PeerFailed(Exception):
    """A server died, or a client failed, was too late, or lost a message."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one run of a client does."""

    kind: Kind
    topic: str
    size: int = 100  # bytes of a body
    seconds: float = 0.0  # to measure
    warm_seconds: float = 0.0  # before that
    messages: int = 0  # to fill or to consume
    replicated: bool = False

    def arguments(self) -> list[str]:
        """As every client program takes them, after its address."""
        words = (self.kind, self.topic, self.size, self.seconds, self.warm_seconds, self.messages)
        return [*map(str, words), str(int(self.replicated))]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a client says at its end: acknowledged or consumed messages, and how long it took."""

    messages: int
    seconds: float
    p50_us: float = 0.0
    p99_us: float = 0.0


class Began:
    """A client is warm: it measures from now on."""


@dataclass(frozen=True, slots=True)
class ClientProgram:
    """A client to start, and how to read what it prints."""

    command: Sequence[str]
    read: Callable[[str], Began | Measured | None]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the page says of a peer."""

    title: str
    settings: Sequence[str]  # of servers and clients, where they are not the defaults
    favours: Sequence[str]  # what speaks for it or against it in this comparison
    empty: Mapping[str, str] = field(default_factory=dict)  # rows without a figure, and why
    same_as: Mapping[str, str] = field(default_factory=dict)  # rows that are another row's figure
    processes: str = "1 server"
    replicated_processes: str = ""
    consumed: int = 300_000  # messages that it consumes in some seconds
    recovery_rounds: int = 3  # fewer where a gibibyte takes long to fill
    server_warm_seconds: float = 0.0  # that its servers work before anything is measured
    warm_up: float = 1.0  # how much longer than others its clients warm up


class Server(ChildProcess):
    """A server; where it has an endpoint, the next one is started when somebody listens there."""

    kind = "server"
    endpoint = ""


class Servers(Protocol):
    """Started servers of a peer."""

    @property
    def processes(self) -> Sequence[ChildProcess]:
        """In the order of their start; the last one is killed to measure recovery."""
        ...

    def client(self, work: Work) -> ClientProgram:
        """The program that does this work."""
        ...


class Peer(Protocol):
    """One system under measurement."""

    @property
    def name(self) -> str:
        """As the command line calls it."""
        ...

    @property
    def facts(self) -> Facts:
        """For the page."""
        ...

    def prepare(self) -> dict[str, str]:
        """Get what it needs; its versions. Raises Unavailable."""
        ...

    def servers(self, root: Path, replicated: bool) -> Servers:
        """Servers with data and logs below root, not yet started. Raises PeerFailed."""
        ...
