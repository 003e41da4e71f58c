"""The bytes that arrived on a connection, and the commands in them.

Rules: lengths are checked as soon as they are there, before the rest of a frame is waited for; so
nothing is kept for a frame that will be refused. A long frame has memory of its own, from the first
bytes on that come after its lengths.
"""

import struct
from collections.abc import Callable

from duolog_server.compat.remoting.codec.command import HEADER_BYTES_MAX, BadFrame, Command
from duolog_server.compat.remoting.codec.sends import read_sent

FRAME_BYTES_MAX = 1 << 24  # RocketMQ's; so the first byte of a frame is 0
SHORT_BYTES = 16 << 10  # a longer frame is a long one
TLS_HANDSHAKE = 0x16
_LENGTHS = struct.Struct(">II")
_HEADER_BITS = 0xFFFFFF

Memory = Callable[[int], memoryview]  # so many bytes that may be written


def _plain(size: int) -> memoryview:
    return memoryview(bytearray(size))


class FrameReader:
    """Gathers frames.

    What arrives is either fed, or received where `room` said.

    Attributes:
        whole: bytes of the long frame that has begun to arrive; 0 for none. It takes memory with
            the next bytes.
    """

    __slots__ = (
        *("_begin", "_filled", "_frame_bytes_max", "_header_bytes_max", "_held", "_long"),
        *("_memory", "whole"),
    )

    def __init__(
        self,
        frame_bytes_max: int,
        memory: Memory = _plain,
        header_bytes_max: int = HEADER_BYTES_MAX,
    ) -> None:
        """frame_bytes_max: longest frame, without its first length. memory: of a long frame."""
        self._frame_bytes_max = min(frame_bytes_max, FRAME_BYTES_MAX)
        self._header_bytes_max = header_bytes_max
        self._memory = memory
        self._held = b""
        self._begin = 0
        self._long: memoryview | None = None
        self._filled = 0  # bytes of it
        self.whole = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that belong to no whole frame yet, or to frames that were not asked for."""
        return len(self._held) - self._begin + self._filled

    def feed(self, data: bytes) -> None:
        """Take so many arrived bytes; call `next` until it returns none."""
        if self.whole:
            room = self._long_room()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self._filled += count
            data = data[count:]
        self._held = self._held[self._begin :] + data
        self._begin = 0

    def room(self, base: memoryview) -> memoryview:
        """The buffer for the next bytes. base: memory of SHORT_BYTES that is used until `received`
        is called; what is held never takes more.
        """
        held = len(self._held) - self._begin
        return self._long_room() if self.whole else base[: len(base) - held]

    def received(self, base: memoryview, count: int) -> None:
        """Take so many bytes in the buffer; see `feed`."""
        if self._long is not None:
            self._filled += count
        else:
            self.feed(bytes(base[:count]))

    def _long_room(self) -> memoryview:
        """Free memory of the long frame."""
        long = self._long
        if long is None:
            held = self._held[self._begin :]
            self._long = long = self._memory(self.whole)
            self._filled = len(held)
            long[: self._filled] = held
            self._held, self._begin = b"", 0
        return long[self._filled :]

    def next(self) -> Command | None:
        """The next command, None where it is not whole yet. Raises BadFrame."""
        long = self._long
        if long is not None:
            if self._filled < len(long):
                return None
            self._long, self._filled, self.whole = None, 0, 0
            return _command(long, 0, len(long))
        held, begin = self._held, self._begin
        size = self._size(held, begin)
        end = begin + size
        if not size or end > len(held):
            self.whole = size if size > SHORT_BYTES else 0
            self._held, self._begin = held[begin:], 0  # without what was taken
            return None
        self.whole = 0
        self._begin = end
        if end == len(held):  # a client that says no more keeps no memory
            self._held, self._begin = b"", 0
        return _command(held, begin, end)

    def _size(self, held: bytes, begin: int) -> int:
        """Bytes of the frame that begins there; 0 where it does not say so yet. Raises BadFrame."""
        if len(held) - begin < _LENGTHS.size:
            if begin < len(held) and held[begin] == TLS_HANDSHAKE:
                raise BadFrame("a TLS handshake came: this port serves plain connections only")
            return 0
        size, word = _LENGTHS.unpack_from(held, begin)
        header_size = word & _HEADER_BITS
        header_max = self._header_bytes_max
        if size > self._frame_bytes_max or header_size > header_max or size < 4 + header_size:
            self._refuse(size, header_size)
        return 4 + int(size)

    def _refuse(self, size: int, header_size: int) -> None:
        if size >> 24 == TLS_HANDSHAKE:
            raise BadFrame("a TLS handshake came: this port serves plain connections only")
        if size > self._frame_bytes_max:
            raise BadFrame(f"a frame of {size} bytes, the limit is {self._frame_bytes_max}")
        if header_size > self._header_bytes_max:
            most = self._header_bytes_max
            raise BadFrame(f"a header of {header_size} bytes, the limit is {most}")
        raise BadFrame(f"a header of {header_size} bytes in a frame of {size} bytes")


def _command(held: bytes | memoryview, begin: int, end: int) -> Command:
    """The command of a whole frame. Raises BadFrame."""
    _, word = _LENGTHS.unpack_from(held, begin)
    at = begin + _LENGTHS.size
    middle = at + (word & _HEADER_BITS)
    return read_sent(word >> 24, bytes(held[at:middle]), bytes(held[middle:end]))
