"""A connection over which calls of gRPC are made byte by byte, as no library would make them."""

import contextlib
import select
import socket
import struct

from tests import http2bytes as h2

APPEND = b"/duolog.v1.Messages/Append"
CHECK = b"/grpc.health.v1.Health/Check"
WATCH = b"/grpc.health.v1.Health/Watch"


class Caller:
    """Sends what it is told, and reads what the server says of it.

    Attributes:
        ended: whether the server ended the connection.
        windows: bytes that the server takes now, by stream; 0 is the connection.
        initial: the same of a stream that begins.
    """

    def __init__(self, endpoint: str, window: int = h2.WINDOW) -> None:
        host, _, port = endpoint.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 10)
        self._data = bytearray()
        self.ended = False
        self.windows = {0: h2.WINDOW, 1: h2.WINDOW}
        self.initial = h2.WINDOW
        self.send(h2.greeting(window) + h2.frame(h2.SETTINGS, h2.ACK, 0))

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Whether it was taken."""
        with contextlib.suppress(OSError):
            if not self.ended:
                self._socket.sendall(data)
                return True
        self.ended = True
        return False

    def send_data(self, stream: int, size: int) -> int:
        """Bytes that were sent of so many, as far as the server lets it."""
        now = min(h2.BLOCK_BYTES_MAX, size, self.windows[0], self.windows.get(stream, 0))
        if now <= 0 or not self.send(h2.frame(h2.DATA, 0, stream, bytes(now))):
            return 0
        self.windows[0] -= now
        self.windows[stream] -= now
        return now

    def read(self, seconds: float) -> None:
        """Take what is there, or comes in so long; answer PING."""
        while not self.ended and select.select([self._socket], [], [], seconds)[0]:
            seconds = 0.0
            try:
                data = self._socket.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                self.ended = True
                return
            self._data += data
            self._take_frames()

    def _take_frames(self) -> None:
        data, at = self._data, 0
        while len(data) - at >= 9:
            end = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if len(data) < end:
                break
            kind, flags, payload = data[at + 3], data[at + 4], bytes(data[at + 9 : end])
            if kind == h2.WINDOW_UPDATE:
                stream, more = struct.unpack_from(">II", data, at + 5)
                self.windows[stream] = self.windows.get(stream, 0) + more
            elif kind == h2.SETTINGS:
                for name, value in struct.iter_unpack(">HI", payload):
                    if name == h2.INITIAL_WINDOW:
                        for stream in filter(None, self.windows):
                            self.windows[stream] += value - self.initial
                        self.initial = value
            elif kind == h2.PING and not flags:
                self.send(h2.frame(h2.PING, h2.ACK, 0, payload))
            at = end
        del data[:at]
