"""Endpoints of a route: several addresses where clients understand them."""

from duolog_server.compat.grpc.protocol.stubs import definition
from duolog_server.compat.grpc.routes import endpoints_of, spelled_for

IPV4 = definition.AddressScheme.IPv4
IPV6 = definition.AddressScheme.IPv6
NAME = definition.AddressScheme.DOMAIN_NAME
NODEJS = {"x-mq-language": "HTTP", "x-mq-client-version": "1.0.8"}


def told(*endpoints: str, **headers: str) -> tuple[int, list[tuple[str, int]]]:
    made = spelled_for(headers, endpoints_of(list(endpoints)))
    return made.scheme, [(address.host, address.port) for address in made.addresses]


def test_addresses_of_one_version_go_together_in_the_order_given() -> None:
    assert told("10.0.0.2:81", "10.0.0.1:80") == (IPV4, [("10.0.0.2", 81), ("10.0.0.1", 80)])
    assert told("[::2]:81", "[::1]:80") == (IPV6, [("::2", 81), ("::1", 80)])
    assert told("10.0.0.2:81", "[::1]:80", "name:80") == (IPV4, [("10.0.0.2", 81)])


def test_a_host_name_is_routed_alone() -> None:
    assert told("a.example:81", "b.example:81", "10.0.0.1:80") == (NAME, [("a.example", 81)])


def test_a_nodejs_client_gets_a_list_that_its_grpc_reads() -> None:
    """Joined by commas it is a target of grpc-js; other clients get plain addresses."""
    _, ipv4 = told("10.0.0.2:81", "10.0.0.1:80", **NODEJS)
    assert ",".join(f"{host}:{port}" for host, port in ipv4) == "ipv4:10.0.0.2:81,10.0.0.1:80"
    _, ipv6 = told("[::2]:81", "[::1]:80", **NODEJS)
    assert ",".join(f"{host}:{port}" for host, port in ipv6) == "ipv6:[::2]:81,[::1]:80"
    assert told("10.0.0.2:81", **NODEJS) == (IPV4, [("10.0.0.2", 81)])
    newer = {**NODEJS, "x-mq-client-version": "1.0.9"}
    assert told("10.0.0.2:81", "10.0.0.1:80", **newer)[1][0] == ("10.0.0.2", 81)
