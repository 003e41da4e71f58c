"""The connections of ports, found among the descriptors of a process."""

import socket
from collections.abc import Callable, Iterator, Sequence

import pytest

from duolog_server.node.net.grpc.receive_limit import segments
from duolog_server.node.net.grpc.receive_limit import sockets as module
from duolog_server.node.net.grpc.receive_limit.ledger import Name
from duolog_server.node.net.grpc.receive_limit.sockets import Sockets, are_told

pytestmark = pytest.mark.skipif(not are_told(), reason="this system tells nothing of connections")

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


def test_bytes_that_were_read_are_counted(connect: Callable[[], Pair]) -> None:
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


def test_connections_of_other_ports_are_left_out(connect: Callable[[], Pair]) -> None:
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
    with pytest.raises(ConnectionResetError):
        client.recv(10)
    with pytest.raises(ConnectionResetError):
        server.recv(10)
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


def test_new_connections_are_told_of_once(connect: Callable[[], Pair]) -> None:
    (client, server), (other, _) = connect(), connect()
    sockets = Sockets({server.getsockname()[1]})
    names = {client.getsockname()[:2], other.getsockname()[:2]}
    assert {name for part in sockets.find() for name in part} == names
    assert not any(sockets.find())
    client.close()
    server.close()
    again, _ = connect()
    assert [name for part in sockets.find() for name in part] == [again.getsockname()[:2]]
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


HERE = ("127.0.0.1",)


class Port:
    """A port, what is known of it, and its connections."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.sockets = Sockets({self.listener.getsockname()[1]})
        self.made: list[socket.socket] = []
        find(self.sockets)

    def pair(self) -> Pair:
        """A new connection, on which the client has said something."""
        client = socket.create_connection(self.listener.getsockname())
        server, _ = self.listener.accept()
        server.settimeout(0.05)
        self.made += (client, server)
        client.sendall(b"hello")
        return client, server

    def restrain(self, *bound: socket.socket) -> None:
        """In as many steps as it takes. bound: clients that are."""
        find(self.sockets)
        names = {one.getsockname() for one in bound}
        for _ in self.sockets.restrain(lambda name: name in names):
            pass

    def close(self) -> None:
        """End all of it."""
        self.sockets.close()
        for one in (self.listener, *self.made):
            one.close()


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.close()


def comes(server: socket.socket) -> bool:
    """Whether what the client said comes, also where it was dropped first."""
    server.settimeout(20)
    return server.recv(100) == b"hello"


def is_held(server: socket.socket) -> bool:
    try:
        return not server.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True


def test_new_connections_of_held_networks_wait_until_they_are_looked_at(port: Port) -> None:
    port.sockets.hold(HERE)
    _, server = port.pair()
    assert is_held(server)
    port.restrain()
    assert comes(server)


def test_connections_that_were_found_late_are_free_though_nobody_is_held_any_more(
    port: Port,
) -> None:
    port.sockets.hold(HERE)
    _, server = port.pair()
    port.sockets.hold(())
    port.restrain()
    assert comes(server)
    _, later = port.pair()
    assert comes(later)


def test_bound_connections_may_send_so_much(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BOUND_BYTES", 1000)
    port.sockets.hold(HERE)
    client, server = port.pair()
    port.restrain(client)
    assert comes(server)
    client.sendall(b"x" * 995)
    server.recv(995, socket.MSG_WAITALL)
    client.sendall(b"hello")
    server.settimeout(0.05)
    assert is_held(server)
    port.restrain()
    assert comes(server)


def test_the_latest_networks_are_held_where_there_is_too_little_memory(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener is told anew once others are the first ones, and only then."""
    told = list[Sequence[str]]()

    def hold(listener: socket.socket, networks: Sequence[str]) -> int:
        told.append(networks[:2])
        return 2

    monkeypatch.setattr(segments, "hold", hold)
    for networks in (("c", "b", "a"), ("b", "c", "a"), ("c", "b"), ("a", "c", "b")):
        port.sockets.hold(networks)
    assert told == [("c", "b"), ("a", "c")]


def test_all_may_send_once_nobody_looks(port: Port) -> None:
    port.sockets.hold(HERE)
    _, server = port.pair()
    find(port.sockets)
    _, unseen = port.pair()
    port.sockets.close()
    assert comes(server)
    assert comes(unseen)
    _, later = port.pair()
    assert comes(later)
