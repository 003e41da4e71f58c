"""Whose address a login counts for, with a proxy and without."""

import pytest
from starlette.requests import Request

from duolog_server.ops.console.http.security import address_of


def request(peer: str, *forwarded: str) -> Request:
    headers = [(b"x-forwarded-for", one.encode()) for one in forwarded]
    return Request({"type": "http", "client": (peer, 1), "headers": headers})


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("127.0.0.1", ("203.0.113.9",), "203.0.113.9"),
        ("::1", ("2001:db8::1",), "2001:db8::1"),
        ("127.0.0.1", ("198.51.100.1, 203.0.113.9",), "203.0.113.9"),  # the first one is claimed
        ("127.0.0.1", ("198.51.100.1", "203.0.113.9"), "203.0.113.9"),
        ("127.0.0.1", (), "127.0.0.1"),
        ("127.0.0.1", ("",), "127.0.0.1"),
        ("127.0.0.1", ("unknown",), "127.0.0.1"),
        ("127.0.0.1", ("203.0.113.9,",), "127.0.0.1"),
        ("192.0.2.7", ("203.0.113.9",), "192.0.2.7"),
    ],
)
def test_an_address_behind_a_proxy(peer: str, forwarded: tuple[str, ...], address: str) -> None:
    assert address_of(request(peer, *forwarded), proxied=True) == address
    assert address_of(request(peer, *forwarded), proxied=False) == peer


def test_a_request_without_an_address() -> None:
    bare = Request({"type": "http", "client": None, "headers": []})
    assert address_of(bare, proxied=True) == ""
