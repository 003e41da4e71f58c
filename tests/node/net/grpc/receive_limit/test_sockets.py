"""The connections of ports, found among the descriptors of a process."""

import socket
from collections.abc import Callable, Iterator

import pytest

from duolog_server.node.net.grpc.receive_limit import sockets as module
from duolog_server.node.net.grpc.receive_limit.ledger import Name
from duolog_server.node.net.grpc.receive_limit.sockets import Sockets, has_counters

pytestmark = pytest.mark.skipif(not has_counters(), reason="no counters of connections")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def connect() -> Iterator[Callable[[str], Pair]]:
    """The two ends of a new connection; those of one address have the same port."""
    listening: dict[str, socket.socket] = {}
    made: list[socket.socket] = []

    def pair(address: str = "127.0.0.1") -> Pair:
        if address not in listening:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listening[address] = socket.create_server((address, 0), family=family)
        client = socket.create_connection(listening[address].getsockname()[:2])
        server, _ = listening[address].accept()
        made.extend((client, server))
        return client, server

    yield pair
    for one in (*made, *listening.values()):
        one.close()


def find(sockets: Sockets) -> None:
    """In as many steps as it takes."""
    for _ in sockets.find():
        pass


def received_of(sockets: Sockets) -> dict[Name, int]:
    """Of all connections."""
    found: dict[Name, int] = {}
    for part in sockets.received():
        found |= part
    return found


def received(server: socket.socket, data: bytes) -> None:
    got = 0
    while got < len(data):
        got += len(server.recv(65_536))


def test_bytes_read_are_counted_on_connections_of_the_port(connect: Callable[[], Pair]) -> None:
    client, server = connect()
    sockets = Sockets({server.getsockname()[1]})
    name = client.getsockname()[:2]
    find(sockets)
    assert received_of(sockets) == {name: 0}
    client.sendall(b"x" * 50_000)
    received(server, b"x" * 50_000)
    assert received_of(sockets) == {name: 50_000}
    client.sendall(b"x" * 1000)
    while not server.recv(1, socket.MSG_PEEK):
        pass
    assert received_of(sockets) == {name: 50_000}  # these are the kernel's
    received(server, b"x" * 1000)
    assert received_of(sockets) == {name: 51_000}
    sockets.close()
    _, server = connect()
    sockets = Sockets({server.getsockname()[1] + 1})
    find(sockets)
    assert received_of(sockets) == {}
    sockets.close()


def test_an_ended_connection_is_at_its_end_for_both_sides(
    connect: Callable[[], Pair],
) -> None:
    client, server = connect()
    other, _ = connect()
    sockets = Sockets({server.getsockname()[1]})
    find(sockets)
    client.sendall(b"never read")
    while not server.recv(1, socket.MSG_PEEK):
        pass
    sockets.end({client.getsockname()[:2]})
    assert client.recv(10) == b""
    assert server.recv(100) == b"never read"
    assert server.recv(10) == b""
    assert set(received_of(sockets)) == {other.getsockname()[:2]}
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.recv(10)
    sockets.close()


def test_a_descriptor_that_is_another_connections_by_now_is_not_ended(
    connect: Callable[[], Pair],
) -> None:
    client, server = connect()
    sockets = Sockets({server.getsockname()[1]})
    find(sockets)
    name, number = client.getsockname()[:2], server.fileno()
    client.close()
    server.close()
    later, second = connect()
    assert number in (later.fileno(), second.fileno())  # the lowest ones that are free
    sockets.end({name})
    second.setblocking(False)
    with pytest.raises(BlockingIOError):
        second.recv(10)
    find(sockets)
    assert set(received_of(sockets)) == {later.getsockname()[:2]}
    sockets.close()


def test_sockets_stay_with_their_owner(connect: Callable[[], Pair]) -> None:
    client, server = connect()
    sockets = Sockets({server.getsockname()[1]})
    find(sockets)
    sockets.close()
    del sockets
    client.sendall(b"x")
    assert server.recv(10) == b"x"


def test_ipv4_clients_of_an_ipv6_port_have_their_ipv4_name() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server, _ = listening.accept()
            with server:
                sockets = Sockets({port})
                find(sockets)
                assert set(received_of(sockets)) == {client.getsockname()}
                sockets.close()


def test_connections_are_found_and_read_in_steps(
    connect: Callable[[], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 4)
    pairs = [connect() for _ in range(10)]
    sockets = Sockets({pairs[0][1].getsockname()[1]})
    assert sum(1 for _ in sockets.find()) >= len(pairs) * 2 // 4, "both ends are descriptors here"
    parts = list(sockets.received())
    assert [len(part) for part in parts] == [4, 4, 2]
    assert {name for part in parts for name in part} == {
        client.getsockname()[:2] for client, _ in pairs
    }
    sockets.close()
