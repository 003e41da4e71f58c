"""Bounds of connections in the kernel: what is dropped, and what comes through."""

import socket
from collections.abc import Iterator

import pytest

from duolog_server.node.net.grpc.receive_limit import segments
from duolog_server.node.net.grpc.receive_limit.sockets import are_told
from duolog_server.node.net.networks import network_of

pytestmark = pytest.mark.skipif(not are_told(), reason="this system tells nothing of connections")

MOST = 100_000
SEGMENT_BYTES = 65_536  # of one, at most
WAIT_SECONDS = 20.0
ADDRESSES = ["127.0.0.1", "::1"]


@pytest.fixture(params=ADDRESSES)
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    address = request.param
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as made:
        segments.remember(made)
        yield made


def pair(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    """A new connection."""
    client = socket.create_connection(listener.getsockname()[:2])
    server, _ = listener.accept()
    server.settimeout(WAIT_SECONDS)
    return client, server


def hold(listener: socket.socket, *others: str) -> None:
    """Hold those that connect to it from its own address, and others."""
    segments.hold(listener, [*others, network_of(listener.getsockname()[0])])


def is_silent(server: socket.socket, seconds: float = 0.5) -> bool:
    """Whether nothing comes, also of what is sent again."""
    server.settimeout(seconds)
    try:
        server.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        server.settimeout(WAIT_SECONDS)
    return False


def test_what_is_held_comes_once_it_is_free(listener: socket.socket) -> None:
    hold(listener, "10.1.2.3", "2001:db8::/64", "10.1.2.4")
    client, server = pair(listener)
    with client, server:
        client.sendall(b"hello")
        assert is_silent(server)
        server.sendall(b"greeting")
        assert client.recv(100) == b"greeting"
        segments.free(server)
        assert server.recv(100) == b"hello"


def test_other_networks_are_not_held(listener: socket.socket) -> None:
    words = listener.getsockname()[0]
    segments.hold(listener, ["10.1.2.3", "2001:db8::/64", "127.0.0.2", "0:0:0:1::/64", "0.0.0.0"])
    client, server = pair(listener)
    with client, server:
        client.sendall(b"hello")
        assert server.recv(100) == b"hello", words


def test_as_many_networks_are_held_as_the_system_has_memory_for(listener: socket.socket) -> None:
    own = network_of(listener.getsockname()[0])
    for _ in range(2):  # once more where one is replaced
        segments.hold(listener, [own, *(f"f00d:8000:f00d:{k:x}::/64" for k in range(790))])
    client, server = pair(listener)
    with client, server:
        client.sendall(b"hello")
        assert is_silent(server)
        segments.free(server)
        assert server.recv(100) == b"hello"


def test_a_connection_is_bound_from_its_first_byte_on(listener: socket.socket) -> None:
    hold(listener)
    client, server = pair(listener)
    with client, server:
        segments.bound(server, MOST)
        client.setblocking(False)
        sent = client.send(b"x" * (4 * MOST))
        assert sent > MOST + SEGMENT_BYTES
        got = len(server.recv(SEGMENT_BYTES))
        while not is_silent(server):
            got += len(server.recv(SEGMENT_BYTES))
        assert MOST <= got < MOST + SEGMENT_BYTES
        segments.free(server)
        while got < sent:
            got += len(server.recv(SEGMENT_BYTES))


def test_connections_that_were_there_before_go_on(listener: socket.socket) -> None:
    client, server = pair(listener)
    with client, server:
        hold(listener)
        client.sendall(b"hello")
        assert server.recv(100) == b"hello"


def test_a_free_port_makes_free_connections(listener: socket.socket) -> None:
    hold(listener)
    segments.free(listener)
    client, server = pair(listener)
    with client, server:
        client.sendall(b"hello")
        assert server.recv(100) == b"hello"
        with pytest.raises(OSError, match="No such"):
            segments.free(server)


def test_a_connection_of_a_port_that_remembers_nothing_cannot_be_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client, server = pair(listener)
        with client, server, pytest.raises(OSError, match="nothing of a connection"):
            segments.bound(server, MOST)
