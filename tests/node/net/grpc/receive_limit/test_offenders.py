"""Which addresses offend, and for how long."""

import pytest

from duolog_server.node.net.grpc.receive_limit import offenders as module
from duolog_server.node.net.grpc.receive_limit.offenders import OFFENCE_MS, OFFENCES, Offenders
from duolog_server.store.clocks import MonoMs


def noted(*at_ms: int, address: str = "10.0.0.1") -> Offenders:
    found = Offenders()
    for one in at_ms:
        found.note(address, MonoMs(one))
    return found


def test_an_address_offends_for_a_while_after_its_last_connection_was_ended() -> None:
    found = noted(*range(1000, 1000 + OFFENCES - 1))
    assert not found.has("10.0.0.1", MonoMs(2000))
    found.note("10.0.0.1", MonoMs(2000))
    last = MonoMs(2000 + OFFENCE_MS - 1)
    assert found.has("10.0.0.1", last)
    assert found.are_any(last)
    assert not found.has("10.0.0.2", last)
    assert not found.has("10.0.0.1", MonoMs(2000 + OFFENCE_MS))
    assert not found.are_any(MonoMs(2000 + OFFENCE_MS))


def test_an_address_whose_connections_end_now_and_then_does_not() -> None:
    found = noted(*(number * (OFFENCE_MS // 2) for number in range(10)))
    assert not found.has("10.0.0.1", MonoMs(9 * (OFFENCE_MS // 2)))


def test_the_addresses_of_an_ipv6_network_offend_together() -> None:
    found = noted(*[1] * OFFENCES, address="2001:db8:1:2::1")
    assert found.has("2001:db8:1:2:ffff::9", MonoMs(2))
    assert not found.has("2001:db8:1:3::1", MonoMs(2))


def test_so_many_addresses_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESSES_MAX", 2)
    found = Offenders()
    for number in (1, 2, 1, 3):
        for _ in range(OFFENCES):
            found.note(f"10.0.0.{number}", MonoMs(5))
    assert [found.has(f"10.0.0.{number}", MonoMs(5)) for number in (1, 2, 3)] == [True, False, True]


def test_the_latest_networks_that_offend_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NETWORKS_MAX", 2)
    found = noted(*[1] * OFFENCES)
    for number in range(2):
        found.note("10.0.0.9", MonoMs(1 + number))  # too few
    assert found.networks(MonoMs(3)) == ("10.0.0.1",)
    for address in ("2001:db8:1:2::1", "::ffff:10.0.0.3"):
        for _ in range(OFFENCES):
            found.note(address, MonoMs(4))
    assert found.networks(MonoMs(5)) == ("10.0.0.3", "2001:db8:1:2::/64")
    assert found.networks(MonoMs(4 + OFFENCE_MS)) == ()
