"""Connections of a port: which count together."""

from dataclasses import dataclass

import pytest

from node.config import LimitsSection
from node.portconnections import PortConnections


@dataclass(frozen=True, eq=False)
class Connection:
    """A connection that does nothing."""

    address: str
    busy: bool = False

    def tick(self) -> None: ...
    def go(self, reason: str) -> None: ...
    def end_calls(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


@pytest.mark.parametrize(
    ("address", "other", "together"),
    [
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.7", True),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.8", False),
        ("", "", True),
    ],
)
def test_the_addresses_of_an_ipv6_network_count_together(
    address: str, other: str, together: bool
) -> None:
    told: list[tuple[str, str]] = []
    limits = LimitsSection(connections_per_address_max=8)
    connections: PortConnections[Connection] = PortConnections(
        limits, lambda of, reason: told.append((of, reason))
    )
    held = [Connection(address) for _ in range(8)]
    assert all(connections.joined(one, True) for one in held)
    assert connections.joined(Connection(other), True) != together
    assert len(told) == connections.refused == together
    for one in held:
        connections.joined(one, False)
    assert connections.joined(Connection(other), True)
