"""Values of the wire as the node knows them."""

import pytest

from duolog_server.node.wirecodec import peer_host
from duolog_server.store.record import LOCAL_HOST, Host


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:5555", Host("10.0.0.7", 5555)),
        ("ipv6:[::1]:5555", Host("::1", 5555)),
        ("ipv6:%5Bfe80::1%25eth0%5D:5555", Host("fe80::1", 5555)),
        ("unix", LOCAL_HOST),
        ("", LOCAL_HOST),
    ],
)
def test_a_peer_is_an_address_and_a_port(peer: str, host: Host) -> None:
    assert peer_host(peer) == host
