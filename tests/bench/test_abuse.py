"""The measurements of abuse: what they count."""

import pytest

from bench import http2bytes as h2
from bench.abuse import CASES, GRPC, Case, Found, Sending, between, figures_of, quantile_ms
from bench.attackers import SLOT_SECONDS, Sent, connect
from bench.attacks import ATTACKS, Done
from bench.bareserver import FLOOR_BYTES, BareServer, Pace

CASE = Case("words", "idle", GRPC, 1)


def test_every_attack_is_measured() -> None:
    assert {case.name for case in CASES} == set(ATTACKS)


def done(**counts: int) -> Done:
    return Done(counts, [0], 0.5)


def test_times_beside_an_attack_are_compared_with_those_beside_one_on_a_bare_server() -> None:
    sends = [(float(due), (0.0005, 0.001, 0.003)[due // 100]) for due in range(300)]
    alone, bare, beside = between(sends, 0, 100), between(sends, 100, 200), between(sends, 200, 300)
    assert quantile_ms(alone, 0.99) == pytest.approx(0.5)
    found = Found(63.0, 2.0, Sending(alone, beside, bare), done(open=1), done())
    memory, times = figures_of(CASE, found)
    assert memory.reached
    assert times.numbers["ratio"] == pytest.approx(3.0)
    assert not times.reached


def test_a_neighbour_that_sent_nothing_reaches_nothing() -> None:
    found = Found(0.0, 0.0, Sending([], [], []), done(), done())
    assert not figures_of(CASE, found)[1].reached


def test_what_an_attacker_sent_is_told_by_slots_of_time() -> None:
    now = 100.0
    sent = Sent(lambda: now)
    for size, seconds in ((0, 0.0), (5, 0.5), (7, 2.1), (1, 0.0)):
        now += seconds * SLOT_SECONDS
        sent.add(size)
    assert sent.slots == [5, 5, 13]


def test_a_bare_server_reads_no_faster_than_the_node_did() -> None:
    more = 3 * FLOOR_BYTES
    pace = Pace([0, more])
    pace.read(FLOOR_BYTES)
    assert not pace.is_full(0.0)
    pace.read(1)
    assert pace.is_full(0.0)
    assert not pace.is_full(SLOT_SECONDS)
    pace.read(2 * FLOOR_BYTES)
    assert pace.is_full(100 * SLOT_SECONDS), "the last slot holds for all time after it"


def test_a_bare_server_takes_what_comes_and_closes_connections_beyond_its_number() -> None:
    server = BareServer(2, [1 << 30])
    try:
        one, other, third = (connect(server.endpoint) for _ in range(3))
        one.sendall(bytes(8 << 20))  # more than systems keep
        assert third.recv(1) == b""
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1)
        for made in (one, other, third):
            made.close()
    finally:
        server.kill()


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 300, 70_000])
def test_strings_of_headers_have_the_lengths_that_hpack_reads(length: int) -> None:
    data = h2.text(b"x" * length)
    first, at = data[0], 1
    value = first
    if first == 127:
        shift = 0
        while True:
            value += (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                break
    assert (value, len(data) - at) == (length, length)


def test_long_headers_go_on_in_frames_of_continuation() -> None:
    data = h2.begin(1, b"y" * (2 * h2.BLOCK_BYTES_MAX + 5))
    kinds, at = [], 0
    while at < len(data):
        kinds.append((data[at + 3], data[at + 4]))
        at += 9 + int.from_bytes(data[at : at + 3], "big")
    assert kinds == [(h2.HEADERS, 0), (h2.CONTINUATION, 0), (h2.CONTINUATION, h2.END_HEADERS)]
