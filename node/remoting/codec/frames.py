"""The bytes that arrived on a connection, and the commands in them.

Rule: lengths are checked as soon as they are there, before the rest of a frame is waited for; so
nothing is kept for a frame that will be refused.
"""

import struct

from node.remoting.codec.command import HEADER_BYTES_MAX, Command, read
from node.remoting.codec.errors import BadFrame

FRAME_BYTES_MAX = 1 << 24  # RocketMQ's; so the first byte of a frame is 0
TLS_HANDSHAKE = 0x16
_LENGTHS = struct.Struct(">II")
_HEADER_BITS = 0xFFFFFF


class FrameReader:
    """Gathers frames.

    Attributes:
        whole: bytes of the frame that has begun to arrive, as soon as it says so; 0 for none.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        """frame_bytes_max: longest frame, without its first length."""
        self._frame_bytes_max = min(frame_bytes_max, FRAME_BYTES_MAX)
        self._held = bytearray()
        self._begin = 0
        self.whole = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that belong to no whole frame yet."""
        return len(self._held) - self._begin

    def feed(self, data: bytes) -> None:
        """So many bytes arrived; `next` has to be called until there is nothing."""
        if self._begin:
            del self._held[: self._begin]
            self._begin = 0
        self._held += data

    def next(self) -> Command | None:
        """The next command, None where it is not whole yet. Raises BadFrame."""
        left = self.held_bytes
        self.whole = 0
        if left < _LENGTHS.size:
            if left and self._held[self._begin] == TLS_HANDSHAKE:
                raise BadFrame("a TLS handshake came: this port serves plain connections only")
            return None
        size, word = _LENGTHS.unpack_from(self._held, self._begin)
        serialization, header_size = word >> 24, word & _HEADER_BITS
        self._check(size, header_size)
        if left < 4 + size:
            self.whole = 4 + size
            return None
        begin = self._begin + _LENGTHS.size
        middle, end = begin + header_size, self._begin + 4 + size
        view = memoryview(self._held)
        header, body = bytes(view[begin:middle]), bytes(view[middle:end])
        view.release()
        self._begin = end
        if end == len(self._held):  # a client that says no more keeps no memory
            self._held, self._begin = bytearray(), 0
        return read(serialization, header, body)

    def _check(self, size: int, header_size: int) -> None:
        if size >> 24 == TLS_HANDSHAKE:
            raise BadFrame("a TLS handshake came: this port serves plain connections only")
        if size > self._frame_bytes_max:
            raise BadFrame(f"a frame of {size} bytes, the limit is {self._frame_bytes_max}")
        if header_size > HEADER_BYTES_MAX:
            raise BadFrame(f"a header of {header_size} bytes, the limit is {HEADER_BYTES_MAX}")
        if size < 4 + header_size:
            raise BadFrame(f"a header of {header_size} bytes in a frame of {size} bytes")


__all__ = ["FRAME_BYTES_MAX", "FrameReader"]
