"""Addresses that an entry is limited to, as networks.

    10.0.0.7                     one address, IPv6 too
    10.0.0.0/8                   a network; bits behind the prefix are ignored, as in RocketMQ
    10.0.*.*    10.0.1-20.*      RocketMQ 4's wildcards and ranges, at the end of an address
    10.0.0.{7,8}    10.0.0.7,10.0.0.8    its lists
    *                            every address

An IPv4 address within IPv6 (::ffff:10.0.0.7) counts as IPv4 on both sides.
"""

from collections.abc import Iterator, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
    summarize_address_range,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

TEXT_MAX = 1000
ADDRESSES = (
    "an address (10.0.0.7, 2001:db8::7), a network (10.0.0.0/8), "
    "or wildcards and ranges at its end (10.0.1-20.*, 10.0.0.{7,8})"
)
_EVERY = (IPv4Network("0.0.0.0/0"), IPv6Network("::/0"))
_MAPPED = IPv6Network("::ffff:0:0/96")


def networks(text: str) -> tuple[Network, ...]:
    """The networks that a text stands for. Raises ValueError for a text that stands for none."""
    if len(text) > TEXT_MAX:
        raise ValueError(f"more than {TEXT_MAX} characters")
    if text == "*":
        return _EVERY
    return tuple(found for part in _listed(text) for found in _one(part.strip()))


def address_of(text: str) -> Address | None:
    """The address that a caller came from, without the zone of a link-local one; None for a text
    that is none, as of a Unix socket.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def within(address: Address, sources: Sequence[Network]) -> bool:
    """Whether an address is in one of the networks."""
    return any(address in network for network in sources)


def shown(network: Network) -> str:
    """The text of a network, of a single address without its prefix length."""
    if network.prefixlen == network.max_prefixlen:
        return str(network.network_address)
    return str(network)


def _listed(text: str) -> list[str]:
    """The addresses of a list: 10.0.0.{7,8} has two, as has 10.0.0.7,10.0.0.8."""
    head, brace, tail = text.partition("{")
    if not brace:
        return text.split(",")
    if not tail.endswith("}") or not head.endswith((".", ":")):
        raise ValueError("braces stand only for the last part of an address")
    return [head + last.strip() for last in tail[:-1].split(",")]


def _one(text: str) -> Iterator[Network]:
    if "*" in text or "-" in text:
        lowest, highest = _ends(text)
        for network in summarize_address_range(lowest, highest):
            yield _unmapped(network)
    else:
        yield _unmapped(_network(text))


def _network(text: str) -> Network:
    """One address or network; of masks, RocketMQ knows only the length."""
    address, slash, length = text.partition("/")
    if "%" in address or (slash and not (length.isascii() and length.isdigit())):
        raise ValueError("a zone, or a mask that is no length")
    return ip_network(text, strict=False)


def _ends(text: str) -> tuple[Address, Address]:
    """The lowest and highest address of a text with a range, wildcards behind it, or both."""
    separator, most = (":", "ffff") if ":" in text else (".", "255")
    parts = text.split(separator)
    varying = [k for k, part in enumerate(parts) if part == "*" or "-" in part]
    first = varying[0] if varying else len(parts)
    if any(part != "*" for part in parts[first + 1 :]):
        raise ValueError("only wildcards may follow a wildcard or a range")
    low, high = [], []
    for part in parts:
        start, dash, end = part.partition("-")
        low.append("0" if part == "*" else start)
        high.append(most if part == "*" else end if dash else part)
    lowest, highest = ip_address(separator.join(low)), ip_address(separator.join(high))
    if lowest > highest:  # type: ignore[operator]
        raise ValueError("the range ends before it starts")
    return lowest, highest


def _unmapped(network: Network) -> Network:
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        last = int(network.network_address) & 0xFFFF_FFFF
        return IPv4Network((last, network.prefixlen - 96))
    return network
