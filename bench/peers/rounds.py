"""The rounds: peers in turns, the rows of each, and what becomes of a peer that fails.

A failure leaves a cell of that round empty, with its reason; where a server died, the rest of that
peer's cells that need this server, too. Nothing of one peer ends the run of the others.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import fresh_directory, take_pages
from bench.peers.figures import Cell, Cells, Sample, fill_equal, runs_for
from bench.peers.limits import NEW_PAGES, limits_of_round
from bench.peers.peer import Peer, PeerFailed, Unavailable, Work
from bench.peers.rows import KIB, RECOVERY, ROWS, Kind, Meter, Row, Scale
from bench.peers.serving import Run, Serving, serving

TIME_OVER = "not measured: the time of the whole run was over"
REASON_CHARACTERS = 400
FILL_SECONDS = 60.0
TOPICS = {100: "small", KIB: "large"}
CONSUMED = "consumed"
LOG = "log"

Serve = Callable[[Peer, Path, bool], AbstractContextManager[Serving]]


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Outcome:
    """All that a run found."""

    cells: Cells = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # peers, and why
    limits: dict[str, list[float]] = field(default_factory=dict)

    def cell(self, peer: str, row: str) -> Cell:
        """One that can be filled."""
        return self.cells.setdefault((peer, row), Cell())

    def failed(self, peer: str) -> bool:
        """Whether anything failed, or has no figure at all because the time was over."""
        cells = [cell for (name, _), cell in self.cells.items() if name == peer]
        return peer in self.skipped or any(
            reason != TIME_OVER or not cell.samples for cell in cells for reason in cell.reasons
        )


@dataclass
class Rounds:
    """What is to be run."""

    peers: Sequence[Peer]
    rows: Sequence[Row]
    scale: Scale
    until: float  # `monotonic`: nothing new begins after it
    serve: Serve = serving
    limits: Callable[[Scale], dict[str, float]] = limits_of_round
    outcome: Outcome = field(default_factory=Outcome)

    def run(self) -> Outcome:
        """All rounds."""
        ready = [peer for peer in self.peers if self._prepare(peer)]
        for number in range(self.scale.rounds):
            self._measure_limits(number)
            turn = number % len(ready) if ready else 0
            # Another peer begins each round: what is first finds the machine rested.
            for peer in [*ready[turn:], *ready[:turn]]:
                say(f"round {number + 1} of {self.scale.rounds}: {peer.name}")
                self._round(peer, number)
        for peer in self.peers:
            self._explain(peer)
        return self.outcome

    def _prepare(self, peer: Peer) -> bool:
        say(f"preparing {peer.name}")
        try:
            self.outcome.versions[peer.name] = peer.prepare()
        except Unavailable as error:
            say(f"skipping {peer.name}: {error}")
            self.outcome.skipped[peer.name] = str(error)
            return False
        return True

    def _measure_limits(self, number: int) -> None:
        say(f"round {number + 1} of {self.scale.rounds}: bare limits")
        for name, value in self.limits(self.scale).items():
            self.found_limit(name, value)

    def found_limit(self, name: str, value: float) -> None:
        """A bare limit, in the unit of `limits.TITLES`."""
        self.outcome.limits.setdefault(name, []).append(value)

    def _round(self, peer: Peer, number: int) -> None:
        """One peer's turn: its rows on one set of servers each."""
        runs = runs_for(peer.facts, self.rows)
        recovery = [row for row in runs if row.name == RECOVERY]
        if number >= peer.facts.recovery_rounds:
            recovery = []
        plain = [row for row in runs if not row.replicated and row.name != RECOVERY]
        for rows in (plain, [row for row in runs if row.replicated], recovery):
            if rows:
                self._section(peer, rows)

    def _section(self, peer: Peer, rows: Sequence[Row]) -> None:
        left = list(rows)
        try:
            self._must_have_time()
            with fresh_directory() as root, self.serve(peer, root, rows[0].replicated) as served:
                served.run(Work(Kind.READY, TOPICS[100], replicated=rows[0].replicated))
                turn = _Turn(self, peer, served)
                if rows[0].name != RECOVERY:
                    turn.warm_server(rows[0].replicated)
                while left:
                    self._must_have_time()
                    row = left[0]
                    try:
                        turn.measure(row)
                    except PeerFailed as error:
                        self._fail(peer, [row], error)
                        left.pop(0)
                        served.must_live()
                    else:
                        left.pop(0)
        except PeerFailed as error:
            self._fail(peer, left, error)
        except (
            Exception
        ) as error:  # a fault of ours with one peer must not cost the others' figures
            self._fail(peer, left, PeerFailed(f"{type(error).__name__}: {error}"))

    def _must_have_time(self) -> None:
        if time.monotonic() > self.until:
            raise PeerFailed(TIME_OVER)

    def _fail(self, peer: Peer, rows: Sequence[Row], error: Exception) -> None:
        reason = " ".join(str(error).split())
        if len(reason) > REASON_CHARACTERS:
            half = REASON_CHARACTERS // 2
            reason = f"{reason[:half]} ... {reason[-half:]}"
        for row in rows:
            say(f"  {peer.name}, {row.title}: {reason}")
            for other in ROWS:
                if other.run == row.name:
                    self.outcome.cell(peer.name, other.name).reasons.append(reason)

    def record(self, peer: Peer, row: Row, sample: Sample) -> None:
        """A figure of this round."""
        second = "" if sample.second is None else f" / {sample.second:,.6g}"
        say(f"  {peer.name}, {row.title}: {sample.value:,.6g}{second} {row.unit}")
        self.outcome.cell(peer.name, row.name).samples.append(sample)

    def _explain(self, peer: Peer) -> None:
        """Reasons of the cells that were never to be measured, and figures that are others'."""
        fill_equal(self.outcome.cells, peer.name, peer.facts)
        for row in self.rows:
            cell = self.outcome.cell(peer.name, row.name)
            if peer.name in self.outcome.skipped:
                cell.reasons = [self.outcome.skipped[peer.name]]


class _Turn:
    """Rows of one peer on started servers."""

    def __init__(self, rounds: Rounds, peer: Peer, served: Serving) -> None:
        self._rounds = rounds
        self._peer = peer
        self._served = served
        self._filled = False

    def warm_server(self, replicated: bool) -> None:
        """Let a server that compiles while it runs do so. Raises PeerFailed where it dies."""
        seconds = self._peer.facts.server_warm_seconds * self._rounds.scale.server_warm
        if not seconds:
            return
        try:
            self._served.run(Work(Kind.POST, TOPICS[100], seconds=seconds, replicated=replicated))
        except PeerFailed as error:
            say(f"  {self._peer.name} did not warm up: {error}")  # its rows will say so themselves
            self._served.must_live()

    def measure(self, row: Row) -> None:
        """Run a row, and record all that it gives. Raises PeerFailed."""
        if row.name == RECOVERY:
            self._recover(row)
        elif row.kind in (Kind.CONSUME, Kind.CONSUME_EACH):
            self._consume(row)
        else:
            self._produce(row)

    def _record(self, row: Row, sample: Sample) -> None:
        self._rounds.record(self._peer, row, sample)

    def _produce(self, row: Row) -> None:
        scale = self._rounds.scale
        if scale.pages_bytes and row.kind is not Kind.SINGLE:
            self._rounds.found_limit(NEW_PAGES, take_pages(scale.pages_bytes) / 1e6)
        found = self._served.run(
            Work(
                row.kind,
                TOPICS[row.size],
                row.size,
                scale.seconds,
                scale.warm_seconds * self._peer.facts.warm_up,
                replicated=row.replicated,
            )
        )
        self._record(row, sample_of(row, found))
        for other in ROWS:
            if other.source == row.name and other.name not in self._peer.facts.empty:
                used = found.server_cpu if other.meter is Meter.SERVER else found.client_cpu
                self._record(other, Sample(1e6 * used / found.measured.messages))

    def _consume(self, row: Row) -> None:
        messages = int(self._peer.facts.consumed * self._rounds.scale.consumed)
        if not self._filled:
            self._fill(CONSUMED, row.size, messages)
            self._filled = True
        found = self._served.run(Work(row.kind, CONSUMED, row.size, messages=messages))
        self._record(row, sample_of(row, found))

    def _fill(self, topic: str, size: int, messages: int) -> None:
        # A fill ends by its count; its seconds only say how much longer it may take.
        work = Work(Kind.FILL, topic, size, seconds=FILL_SECONDS, messages=messages)
        found = self._served.run(work).measured
        if found.messages != messages:
            raise PeerFailed(f"stored {found.messages:,} messages of {messages:,}")

    def _recover(self, row: Row) -> None:
        """From the start of the process after SIGKILL to the first acknowledged message."""
        self._fill(LOG, row.size, self._rounds.scale.recovered_bytes // row.size)
        self._served.kill()
        with self._served.client(Work(Kind.READY, LOG)) as client:
            client.until_began()
            began = time.monotonic()
            self._served.restart()
            client.until_measured()
            self._record(row, Sample(time.monotonic() - began))


def sample_of(row: Row, run: Run) -> Sample:
    """The figure of a row in its unit. Raises PeerFailed where nothing was measured."""
    found = run.measured
    if found.messages <= 0 or found.seconds <= 0:
        raise PeerFailed(f"{found.messages} messages in {found.seconds} s")
    match row.unit:
        case "µs":
            return Sample(found.p50_us, found.p99_us)
        case "MB/s":
            return Sample(found.messages * row.size / found.seconds / 1e6)
        case _:
            return Sample(found.messages / found.seconds)
