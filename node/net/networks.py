"""What one client has of addresses. What has a limit for each client counts it by this."""

from functools import lru_cache
from ipaddress import IPv6Network, ip_address

KEPT = 4096  # addresses: each connection asks a few times, and where any offends at each look


def plain_address(address: str) -> str:
    """As others name it: without the zone of a link-local one, an IPv4 address within IPv6 as IPv4.
    What is no address stays as it is.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(getattr(found, "ipv4_mapped", None) or found)


@lru_cache(KEPT)
def network_of(address: str) -> str:
    """An IPv4 address, also one within IPv6; the /64 of an IPv6 address: who has one of these
    addresses has all of them. What is no address stays as it is.
    """
    plain = plain_address(address)
    return str(IPv6Network((plain, 64), strict=False)) if ":" in plain else plain
