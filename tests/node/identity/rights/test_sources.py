"""Addresses and networks, as RocketMQ 4 and 5 write them."""

from ipaddress import IPv4Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.identity.rights.sources import Network, address_of, networks, shown, within


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("10.0.0.7/32", "10.0.0.7"),
        ("2001:DB8::7", "2001:db8::7"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("10.0.0.*", "10.0.0.0/24"),
        ("10.0.*.*", "10.0.0.0/16"),
        ("*.*.*.*", "0.0.0.0/0"),
        ("10.0.0.8-11", "10.0.0.8/30"),
        ("10.0.0.7-8", "10.0.0.7 10.0.0.8"),
        ("10.0.4-7.*", "10.0.4.0/22"),
        ("2001:db8:*:*:*:*:*:*", "2001:db8::/32"),
        ("2001:db8::5:78:0-1:*", "2001:db8::5:78:0:0/111"),
        ("*:*:*:*:*:*:*:*", "::/0"),
        ("10.0.0.{7,9}", "10.0.0.7 10.0.0.9"),
        ("2001:db8::{7,9}", "2001:db8::7 2001:db8::9"),
        ("10.0.0.7,10.0.0.9", "10.0.0.7 10.0.0.9"),
        ("*", "0.0.0.0/0 ::/0"),
    ],
)
def test_a_text_stands_for_networks(text: str, expected: str) -> None:
    assert " ".join(map(shown, networks(text))) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "host",
        "10.0.0",
        "10.0.0.256",
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/255.0.0.0",
        "10.0.0.0/0.0.0.255",
        "10.0.0.0/-1",
        "10.*",
        "10.*.0.1",
        "10.1-2.0.1",
        "10.0.0.9-7",
        "10.0.0.-7",
        "10.0.0.7-",
        "10.0.0.7-300",
        "10.0.{1,2}.7",
        "10.0.0.{7",
        "10.0.0.{}",
        "10.0.0.7,",
        "**",
        "fe80::1%eth0",
        "2001:db8::*:*:7",
        "1.2.3.4-1.2.3.9",
        "10.0.0.7," * 200,
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    assert read(text) is None


def read(text: str) -> tuple[Network, ...] | None:
    try:
        return networks(text)
    except ValueError:
        return None


@given(st.text("0123456789abcdef.:*-/{},% "))
def test_any_text_gives_networks_or_a_value_error(text: str) -> None:
    found = read(text)
    if found is not None:
        assert 0 < len(found) < 1000
        assert {one for each in found for one in networks(shown(each))} == set(found)


@given(st.integers(0, 255), st.integers(0, 255), st.integers(0, 255), st.booleans())
def test_a_range_has_the_addresses_between_its_ends(
    start: int, end: int, value: int, third: bool
) -> None:
    text = f"10.0.{start}-{end}.*" if third else f"10.0.0.{start}-{end}"
    address = ip_address(f"10.0.{value}.77" if third else f"10.0.0.{value}")
    if start <= end:
        assert within(address, networks(text)) == (start <= value <= end)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:DB8::7", "2001:db8::7"),
        ("fe80::7%eth0", "fe80::7"),
        ("::10.0.0.7", "::a00:7"),
        ("", None),
        ("unix:/run/x", None),
        ("10.0.0.7:1234", None),
    ],
)
def test_where_a_caller_came_from(text: str, address: str | None) -> None:
    assert str(address_of(text)) == str(address)


def test_an_address_is_in_no_network_of_the_other_kind() -> None:
    assert not within(IPv4Address("10.0.0.7"), networks("::/0"))
    assert not within(ip_address("::a00:7"), networks("10.0.0.0/8"))
