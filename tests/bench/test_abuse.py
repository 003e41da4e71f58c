"""The measurements of abuse: what they count."""

import pytest

from bench import http2bytes as h2
from bench.abuse import CASES, GRPC, Case, Found, between, figures_of, quantile_ms
from bench.attacks import ATTACKS

CASE = Case("words", "idle", GRPC, 1)


def test_every_attack_is_measured() -> None:
    assert {case.name for case in CASES} == set(ATTACKS)


def test_times_beside_an_attack_are_compared_with_those_before_it() -> None:
    sends = [(float(due), 0.001 if due < 100 else 0.003) for due in range(200)]
    alone, beside = between(sends, 0, 100), between(sends, 100, 200)
    assert quantile_ms(alone, 0.99) == pytest.approx(1.0)
    memory, times = figures_of(CASE, Found(63.0, 2.0, alone, beside, {"open": 1}))
    assert memory.reached
    assert times.numbers["ratio"] == pytest.approx(3.0)
    assert not times.reached


def test_a_neighbour_that_sent_nothing_reaches_nothing() -> None:
    assert not figures_of(CASE, Found(0.0, 0.0, [], [], {}))[1].reached


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
