"""One direction of a stream, written without a task: a frame goes out in the turn that made it.

A task that waits to be woken would cost every frame a turn of the loop, and a task that waits for
the end of its own write would keep it from all else meanwhile. One write is in flight at a time, as
gRPC wants it; what there is to send is asked for when it can be sent, so that what has gathered
meanwhile goes out together.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine

from duolog_server.ha.frames import BODY_BYTES_MAX, KIND_AT, Kind

# A write of gRPC's, which waits for a future of its own kind.
Write = Coroutine["asyncio.Future[None]", None, None]


class Outgoing:
    """Writes what it is given, one frame after the other, and never waits."""

    def __init__(
        self,
        write: Callable[[bytes], Write],
        next_frame: Callable[[], bytes | None],
        broken: Callable[[Exception], None],
    ) -> None:
        """next_frame: None if nothing is to be sent. broken: called once, says why it ended."""
        self._write = write
        self._next_frame = next_frame
        self._broken = broken
        self._writing: Write | None = None
        self._ended = False
        self._idle: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Send what there is to send, before this returns if possible."""
        try:
            while self._writing is None and not self._ended:
                frame = self._next_frame()
                if frame is None:
                    return
                self._writing = self._write(frame)
                self._go_on()
        except Exception as error:
            self._end(error)

    def stop(self) -> None:
        """Send nothing more; the write in flight is left to gRPC."""
        self._ended = True

    async def finish(self, seconds: float) -> None:
        """Send nothing more, and wait for the write in flight, for at most so long."""
        self.stop()
        if self._writing is not None:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=seconds)

    def _go_on(self) -> None:
        """Run the write until it waits for gRPC, or ends."""
        assert self._writing is not None, "a write is in flight"
        try:
            waits_for = self._writing.send(None)
        except StopIteration:
            self._written()
        except asyncio.CancelledError:  # gRPC's word for a call that is over
            self._written()
            self._end(ConnectionError("the call is over"))
        except Exception as error:
            self._written()
            self._end(error)
        else:
            waits_for.add_done_callback(self._resume)

    def _resume(self, _: object) -> None:
        self._go_on()
        self.wake()

    def _written(self) -> None:
        self._writing = None
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _end(self, error: Exception) -> None:
        if not self._ended:
            self._ended = True
            self._broken(error)


class Unsent:
    """A slave's frames that its stream has not taken yet, oldest first.

    An acknowledgement takes the place of one that waits before it, whose word it includes: so few
    frames wait, however long a master does not read.
    """

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()

    def add(self, frame: bytes) -> None:
        """Send it behind the others."""
        if self._frames and self._frames[-1][KIND_AT] == frame[KIND_AT] == Kind.ACK:
            self._frames.pop()
        self._frames.append(frame)

    def take(self) -> bytes | None:
        """The next one; None where none waits."""
        return self._frames.popleft() if self._frames else None

    def __len__(self) -> int:
        """Frames that wait."""
        return len(self._frames)


# Constants of both ends of a replication stream.
HA_METHOD = "/duolog.ha.v1.Replication/Stream"
STREAM_OPTIONS = (
    ("grpc.max_receive_message_length", BODY_BYTES_MAX),
    ("grpc.max_send_message_length", BODY_BYTES_MAX),
    ("grpc.so_reuseport", 0),
)
PROOF_SECONDS = 5.0  # that either end may take to prove its key
