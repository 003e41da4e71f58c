"""A client's call: its headers are converted once, without a change of content."""

from collections.abc import Iterable, Mapping
from typing import Never

import grpc

from duolog_server.compat.grpc.relay.calls import (
    FORWARDED,
    PEER,
    PLAIN,
    VIA,
    HeadersOnce,
    headers_of,
    is_counted_elsewhere,
    is_forwarded,
    peer_of,
    via_of,
)


class Counted:
    """A call that counts how often its headers are asked for."""

    def __init__(self, *headers: tuple[str, str | bytes]) -> None:
        self.asked = 0
        self._headers = headers

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        self.asked += 1
        return self._headers

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def time_remaining(self) -> float | None:
        return 2.5

    async def abort(self, code: grpc.StatusCode, details: str) -> Never:
        raise AssertionError(details)


def test_headers_are_converted_once() -> None:
    call = Counted(("x-mq-client-id", "c"), (FORWARDED, PLAIN), (PEER, "there"), (VIA, "n"))
    once = HeadersOnce(call, lambda peer: True)
    assert headers_of(once) == headers_of(call)
    call.asked = 0
    assert (is_forwarded(once), peer_of(once), via_of(once)) == (True, "there", "n")
    assert once.time_remaining() == 2.5
    assert call.asked == 0


def test_a_direct_call_has_its_own_peer() -> None:
    once = HeadersOnce(Counted(("x-mq-client-id", "c")), lambda peer: True)
    assert (is_forwarded(once), peer_of(once), via_of(once)) == (False, "ipv4:127.0.0.1:1", "")


def test_who_is_no_node_calls_for_itself() -> None:
    call = Counted((FORWARDED, PLAIN), (PEER, "ipv4:10.0.0.1:1"), (VIA, "n"))
    asked: list[str] = []

    def is_node(peer: str) -> bool:
        asked.append(peer)
        return False

    once = HeadersOnce(call, is_node)
    assert (is_forwarded(once), peer_of(once)) == (True, "ipv4:127.0.0.1:1")
    assert not is_counted_elsewhere(once)
    assert asked == ["ipv4:127.0.0.1:1"]
    assert is_counted_elsewhere(HeadersOnce(call, lambda peer: True))
