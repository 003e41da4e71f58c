"""Connections of a port: which count together, and when they tick."""

import asyncio
from dataclasses import dataclass

import pytest
from duolog._background import Background

from duolog_server.node.net import connections as module
from duolog_server.node.net.connections import PortConnections
from duolog_server.node.runtime.config import LimitsSection
from tests.turns import turns_of
from tests.until import until


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


async def test_connections_tick_some_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may end in its tick, with a line of log: thousands that did held up all others."""
    monkeypatch.setattr(module, "TICK_SECONDS", 0.0)
    count = 5 * module.TICKS_AT_ONCE
    connections: PortConnections[Connection] = PortConnections(LimitsSection(), lambda *_: None)
    for number in range(count):
        assert connections.joined(Connection(f"10.0.0.{number % 250}"), True)
    ticking = Background()
    with turns_of(monkeypatch, Connection, "tick") as turns:
        ticking.start(connections.tick())
        await until(lambda: len(turns) >= count)
        await ticking.stop()
    assert max(turns.count(turn) for turn in turns) <= module.TICKS_AT_ONCE
    monkeypatch.setattr(module, "TICKS_AT_ONCE", 2)
    connections = PortConnections(LimitsSection(), lambda *_: None)
    held = [Connection("10.0.0.1"), Connection("10.0.0.1")]
    ticked: list[Connection] = []

    def tick(self: Connection) -> None:
        ticked.append(self)
        connections.joined(self, False)
        for other in held:
            connections.joined(other, False)

    monkeypatch.setattr(Connection, "tick", tick)
    for one in held:
        connections.joined(one, True)
    ticking = Background()
    ticking.start(connections.tick())
    async with asyncio.timeout(20):
        while not ticked:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
    await ticking.stop()
    assert len(ticked) == 1
