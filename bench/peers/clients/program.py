"""What the client programs in Python share: arguments, a clock, and the two lines they print.

A program is called as PROGRAM ADDRESS KIND TOPIC SIZE SECONDS WARM_SECONDS MESSAGES REPLICATED. It
prints `began` when it is warm and measures, and `ended MESSAGES SECONDS P50_US P99_US` at its end.
"""

import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.peers.peer import Began, ClientProgram, Measured, Work
from bench.peers.rows import Kind
from duolog_server.demo.measure import percentile

PARTITIONS = 4  # of a topic, where a peer has them
RETRY_SECONDS = 0.005
TOPICS = ("small", "large", "consumed", "log")


def program(name: str, address: str, work: Work) -> ClientProgram:
    """A client of this package."""
    module = f"bench.peers.clients.{name}"
    return ClientProgram([sys.executable, "-m", module, address, *work.arguments()], read)


def read(line: str) -> Began | Measured | None:
    """What a line of a client's output says."""
    word, *numbers = line.split() or [""]
    if word == "began":
        return Began()
    if word != "ended":
        return None
    messages, *times = numbers
    return Measured(int(messages), *(float(number) for number in times))


def arguments() -> tuple[str, Work]:
    """Address and work of this process."""
    address, kind, topic, size, seconds, warm, messages, replicated = sys.argv[1:]
    return address, Work(
        Kind(kind), topic, int(size), float(seconds), float(warm), int(messages), replicated == "1"
    )


def began() -> None:
    """Warm: it measures from now on."""
    print("began", flush=True)


def ended(measured: Measured) -> None:
    """All acknowledged or consumed."""
    numbers = (measured.seconds, measured.p50_us, measured.p99_us)
    print("ended", measured.messages, *(f"{number:.6f}" for number in numbers), flush=True)


def of_latencies(latencies: list[float], seconds: float) -> Measured:
    """Of messages that were sent one at a time; latencies in seconds."""
    p50, p99 = (1e6 * percentile(latencies, share) for share in (0.5, 0.99))
    return Measured(len(latencies), seconds, p50, p99)


@dataclass
class Arrivals:
    """Counts what is consumed: the clock runs from the first delivery, whose messages it omits."""

    wanted: int
    count: int = 0
    first: int = 0
    began: float = 0.0
    ended: float = 0.0

    def add(self, count: int) -> bool:
        """So many more were delivered; whether all are there."""
        if not self.count and count:
            began()
            self.began, self.first = time.perf_counter(), count
        self.count += count
        if self.count >= self.wanted:
            self.ended = time.perf_counter()
        return self.count >= self.wanted

    def measured(self) -> Measured:
        """Raises RuntimeError where there were more or fewer than were stored."""
        if self.count != self.wanted:
            raise RuntimeError(f"consumed {self.count:,} messages of {self.wanted:,}")
        return Measured(self.count - self.first, self.ended - self.began)


def until_listening(address: str) -> None:
    """A plain connect, again and again: clients would pause ever longer between their attempts."""
    host, _, port = address.rpartition(":")
    while True:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(RETRY_SECONDS)


def until_answered(attempt: Callable[[], object], pause: float = RETRY_SECONDS) -> None:
    """Try until it succeeds; who started this process ends it when it takes too long."""
    while True:
        try:
            attempt()
            return
        except Exception as error:
            print(f"not yet: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            time.sleep(pause)


@dataclass
class Turn:
    """Messages of one stretch of time: until the seconds are over, or a number is reached."""

    seconds: float
    messages: int = 0
    sent: int = 0

    def __post_init__(self) -> None:
        self.started = time.perf_counter()

    def more(self) -> bool:
        """Whether to go on."""
        if self.messages:
            return self.sent < self.messages
        return time.perf_counter() - self.started < self.seconds

    def portion(self, size: int) -> int:
        """How many of a batch of this size to send."""
        return min(size, self.messages - self.sent) if self.messages else size

    def done(self, acknowledged: int) -> Measured:
        """All is over. Raises RuntimeError where not all of them were acknowledged."""
        if acknowledged != self.sent:
            raise RuntimeError(f"{acknowledged:,} messages of {self.sent:,} were acknowledged")
        return Measured(self.sent, time.perf_counter() - self.started)
