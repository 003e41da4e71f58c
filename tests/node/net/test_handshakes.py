"""What came with the end of a handshake, before the connection was one."""

import asyncio
import ssl

from duolog_server.node.net.handshakes import Handshakes


class Wire(asyncio.Transport):
    """A transport that is secured."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: asyncio.BaseProtocol | None = None
        self.closing = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True


class Reading(asyncio.BufferedProtocol):
    """A connection that takes so many bytes, and no more."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken = b""
        self._buffer = bytearray(4)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[: self.room - len(self.taken)]

    def buffer_updated(self, nbytes: int) -> None:
        self.taken += self._buffer[:nbytes]


def begun(room: int, early: bytes) -> tuple[Wire, Reading]:
    wire, reading = Wire(), Reading(room)
    handshake = Handshakes(ssl.create_default_context()).of(lambda: reading)()
    handshake.data_received(early)
    handshake.done(wire)
    return wire, reading


def test_what_came_early_is_read_first_and_too_much_of_it_ends_the_connection() -> None:
    wire, reading = begun(100, b"0123456789")
    assert (reading.taken, wire.closing) == (b"0123456789", False)
    assert wire.protocol is reading
    wire, reading = begun(8, b"0123456789")
    assert (reading.taken, wire.closing) == (b"01234567", True)
