"""RocketMQ's Java client with a node, by the classic remoting protocol, and with a broker.

`python -m bench.remoting --rounds 5`. Needs Java and Maven. Both are measured in turns, with the
same client program; printed are the medians of both, and of the ratios of each pair.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness import fresh_directory
from bench.peers.maven import compiled
from bench.peers.peer import Facts, Peer, Work
from bench.peers.rocketmq import CLIENT, Brokers, RocketMq
from bench.peers.rows import Kind
from bench.peers.serving import serving
from duolog_server.demo.childnode import ChildNode
from duolog_server.demo.ports import free_endpoint

SIZE = 100  # bytes of a body
TITLES = {
    Kind.THREADS: "synchronous sends, 64 threads",
    Kind.POST: "asynchronous sends, 512 in flight",
    Kind.SINGLE: "synchronous sends, one at a time",
    Kind.BATCH: "batches of 512 KiB, two at a time",
    Kind.CONSUME: "push consumer",
}
ASKED = {Kind.THREADS: 0.5, Kind.CONSUME: 1.0}  # of RocketMQ's rate
CONSUMED = "consumed"
FILL_SECONDS = 60.0


class OverRemoting:
    """A node, as RocketMQ's client finds it; its jars are those of a broker."""

    name = "duolog"
    facts = Facts("duolog", (), ())

    def __init__(self, rocketmq: RocketMq) -> None:
        self._rocketmq = rocketmq

    def prepare(self) -> dict[str, str]:
        """The client is compiled."""
        return self._rocketmq.prepare()

    def servers(self, root: Path, replicated: bool) -> Brokers:
        """One node."""
        listen = free_endpoint()
        flags = ("--set", f"remoting.listen={listen}", "--set", "limits.auto_create_topic=true")
        jars = self._rocketmq.jars()
        node = ChildNode(root / "node", *flags)
        return Brokers([node], listen, root, jars, compiled(CLIENT, jars))


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. warm: seconds for which servers, and each client, work before."""

    seconds: float
    warm: float
    messages: int


Rates = dict[Kind, tuple[float, float]]  # messages a second, and the server's µs a message


def measured(peer: Peer, kinds: Sequence[Kind], scale: Scale) -> Rates:
    """One turn of one side, with fresh servers."""
    found: Rates = {}
    with fresh_directory() as root, serving(peer, root, False) as served:
        served.run(Work(Kind.READY, "small"))
        served.run(Work(Kind.POST, "small", SIZE, scale.warm))
        for kind in kinds:
            if kind is Kind.CONSUME:
                fill = Work(Kind.FILL, CONSUMED, SIZE, FILL_SECONDS, messages=scale.messages)
                served.run(fill)
                work = Work(kind, CONSUMED, SIZE, messages=scale.messages)
            else:
                work = Work(kind, "small", SIZE, scale.seconds, scale.warm)
            run = served.run(work)
            count = run.measured.messages
            found[kind] = count / run.measured.seconds, 1e6 * run.server_cpu / count
    return found


def table(ours: Sequence[Rates], theirs: Sequence[Rates], title: str) -> str:
    """Medians, and the median of the pairs' ratios with the lowest and the highest."""
    lines = [
        f"| Java client, {SIZE} B | a node | {title} | ratio (lowest, highest) | target "
        "| processor time of the server, a message |",
        "|---|---|---|---|---|---|",
    ]
    for kind in ours[0]:
        our, our_us = _medians(ours, kind)
        their, their_us = _medians(theirs, kind)
        ratios = [one[kind][0] / other[kind][0] for one, other in zip(ours, theirs, strict=True)]
        asked = f">= {ASKED[kind]:g}" if kind in ASKED else ""
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        lines.append(
            f"| {TITLES[kind]} | {our:,.0f}/s | {their:,.0f}/s | {ratio} | {asked} "
            f"| {our_us:.1f} µs, {their_us:.1f} µs |"
        )
    return "\n".join(lines)


def _medians(rounds: Sequence[Rates], kind: Kind) -> tuple[float, float]:
    rates, costs = zip(*(one[kind] for one in rounds), strict=True)
    return statistics.median(rates), statistics.median(costs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm", type=float, default=4.0)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--version", default="4.9.7")
    parser.add_argument("--only", default=",".join(TITLES), help="kinds, parted by commas")
    words = parser.parse_args()
    kinds = [Kind(word) for word in words.only.split(",")]
    scale = Scale(words.seconds, words.warm, words.messages)
    rocketmq = RocketMq(words.version)
    rocketmq.prepare()
    found: dict[str, list[Rates]] = defaultdict(list)
    for number in range(words.rounds):
        pair: list[Peer] = [OverRemoting(rocketmq), rocketmq]
        for peer in pair[:: -1 if number % 2 else 1]:  # another begins each round
            found[peer.name].append(measured(peer, kinds, scale))
    print(table(found["duolog"], found[rocketmq.name], f"RocketMQ {words.version}"))


if __name__ == "__main__":
    main()
