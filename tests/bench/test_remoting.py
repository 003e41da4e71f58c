"""The table of the remoting protocol's rates: medians of both sides, and of the ratios of pairs."""

from bench.peers.rows import Kind
from bench.remoting import Rates, table


def rates(threads: float, consumed: float) -> Rates:
    return {Kind.THREADS: (threads, 60.0), Kind.CONSUME: (consumed, 1.0)}


def test_the_table_has_medians_and_the_ratios_of_pairs() -> None:
    ours = [rates(10, 100), rates(40, 400), rates(30, 300)]
    theirs = [rates(20, 100), rates(50, 100), rates(30, 100)]
    lines = table(ours, theirs, "RocketMQ").splitlines()
    threads, consumed = (line.split(" | ") for line in lines[2:])
    assert threads[1:5] == ["30/s", "30/s", "0.80 (0.50, 1.00)", ">= 0.5"]
    assert consumed[1:5] == ["300/s", "100/s", "3.00 (1.00, 4.00)", ">= 1"]
    assert consumed[5] == "1.0 µs, 1.0 µs |"
