"""A server that takes what it is sent and does nothing with it: what an attack costs the machine.

python -m bench.bareserver CONNECTIONS, with a line of JSON on its standard input: how many bytes it
may have read after each slot since the first connection. It prints where it listens. Connections
beyond the number are closed at once.

An attacker takes its CPU time from the node that it shares a machine with, and so do its bytes on
their way. The same attack against this server takes the same from a node that is not attacked, if
the server reads no faster than the node did: an attacker that nobody holds up takes far more.
"""

import contextlib
import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from bench.attackers import ROOT, SLOT_SECONDS, raise_limit

READ_BYTES = 256 << 10
FULL_SECONDS = 0.005  # to the next look where all was read that may be
BACKLOG = 1024
FLOOR_BYTES = 1 << 20  # that may be read at any time


class Pace:
    """How much may be read."""

    def __init__(self, slots: Sequence[int]) -> None:
        """slots: bytes, after each of them."""
        self._slots = slots
        self._read = 0

    def read(self, size: int) -> None:
        """So much was."""
        self._read += size

    def is_full(self, seconds: float) -> bool:
        """Whether nothing more may be read for now. seconds: since the first connection."""
        at = min(int(seconds / SLOT_SECONDS), len(self._slots) - 1)
        return self._read > max(FLOOR_BYTES, self._slots[at] if self._slots else 0)


class _Serving:
    """The connections, while they are read."""

    def __init__(self, listener: socket.socket, connections_max: int, pace: Pace) -> None:
        self._listener, self._most, self._pace = listener, connections_max, pace
        self._selector = selectors.EpollSelector()
        self._buffer = bytearray(READ_BYTES)
        self._began = 0.0

    def go_on(self, seconds: float) -> None:
        """Accept and read what there is, or wait so long for it."""
        self._accept()
        if self._pace.is_full(time.monotonic() - self._began):
            time.sleep(FULL_SECONDS)
            return
        for key, _ in self._selector.select(seconds):
            if isinstance(key.fileobj, socket.socket):
                self._read(key.fileobj)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                made, _ = self._listener.accept()
                self._began = self._began or time.monotonic()
                if len(self._selector.get_map()) >= self._most:
                    made.close()
                    continue
                made.setblocking(False)
                self._selector.register(made, selectors.EVENT_READ)

    def _read(self, made: socket.socket) -> None:
        with contextlib.suppress(OSError):
            size = made.recv_into(self._buffer)
            self._pace.read(size)
            if size:
                return
        self._selector.unregister(made)
        made.close()


class BareServer:
    """The process."""

    def __init__(self, connections_max: int, slots: Sequence[int]) -> None:
        """Start it; it listens at `endpoint` when this returns."""
        command = [sys.executable, "-m", "bench.bareserver", str(connections_max)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._process.stdin is not None, "piped"
        assert self._process.stdout is not None, "piped"
        self._process.stdin.write(json.dumps(list(slots)) + "\n")
        self._process.stdin.flush()
        self.endpoint = self._process.stdout.readline().strip()
        if not self.endpoint:
            raise RuntimeError("the bare server ended")

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def serve(connections_max: int, slots: Sequence[int]) -> None:
    """Until killed."""
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        listener.setblocking(False)
        print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
        serving = _Serving(listener, connections_max, Pace(slots))
        while True:
            serving.go_on(FULL_SECONDS)


if __name__ == "__main__":
    raise_limit()
    serve(int(sys.argv[1]), json.loads(sys.stdin.readline()))
