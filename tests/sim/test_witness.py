"""What the observer looks for in the bytes of logs is what masters write there."""

from duolog_server.ha.epochs import Epoch, barrier_body
from sim.witness import BARRIER


def test_a_barrier_is_found_by_its_bytes() -> None:
    body = barrier_body(Epoch(7), 0xBEEF, "a")
    assert BARRIER.findall(b"before" + body + b"after") == [(b"7", b"000000000000beef")]
