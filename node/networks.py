"""What one client has of addresses. What has a limit for each client counts it by this."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Network, ip_address

KEPT = 4096  # addresses: each connection asks a few times, and where any offends at each look


@lru_cache(KEPT)
def network_of(address: str) -> str:
    """An IPv4 address, also one within IPv6; the /64 of an IPv6 address: who has one of these
    addresses has all of them. What is no address stays as it is.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Network((found, 64), strict=False))


__all__ = ["network_of"]
