"""Bytes of HTTP/2 that tests send: what a peer reads of them."""

import pytest

from tests import http2bytes as h2


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
