"""A client's environment: channels to nodes, chance, the wall clock.

Rules: producers, consumers and sinks open channels, draw by chance and read the wall clock through
this only, so that the simulator runs them as they are. Monotonic time is the event loop's.
"""

import os
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc.aio

from duolog._errors import BadRequest
from duolog._forks import opening_grpc
from duolog._login import Login
from duolog._nodechannel import Channel

if TYPE_CHECKING:
    from duolog._spans import Spans

MESSAGE_BYTES_MAX = 64 << 20
TRANSPORT_VARIABLE = "DUOLOG_TRANSPORT"
TRANSPORTS = ("frames", "grpc")
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.http2.lookahead_bytes", 16 << 20),  # batches of MiBs come in few frames
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 4000),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Nodes limit the calls of a connection: more of them take another one.
    ("grpc.service_config", '{"connectionScaling": {"maxConnectionsPerSubchannel": 32}}'),
    ("grpc.max_connections_per_subchannel_cap", 32),
)


def _dial(endpoint: str) -> grpc.aio.Channel:
    with opening_grpc():
        return grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)


@dataclass(frozen=True, slots=True)
class Runtime:
    """A client's environment.

    Attributes:
        dial: opens a channel to an endpoint.
        chance: for jitter and unique ids; by default the system's.
        wall_seconds: the wall clock, as `time.time`.
        process_id: of this process; children may be forked.
        frames: nodes are spoken to over frames, where they take any.
        tls: of frames; None: they are plain. gRPC's is in `dial`.
        busy_poll_us: how long the loop looks for the answer to a small request before it sleeps.
        login: who calls are made as; None: nobody.
        spans: made of what the client does; None: nobody takes any.
    """

    dial: Callable[[str], Channel] = _dial
    chance: random.Random = field(default_factory=random.SystemRandom)
    wall_seconds: Callable[[], float] = time.time
    process_id: Callable[[], int] = os.getpid
    frames: bool = False
    tls: ssl.SSLContext | None = None
    busy_poll_us: int = 0
    login: Login | None = None
    spans: "Spans | None" = None

    @property
    def speaks_frames(self) -> bool:
        """Whether frames are wanted: not if DUOLOG_TRANSPORT is grpc. Raises BadRequest."""
        wanted = os.environ.get(TRANSPORT_VARIABLE, "frames")
        if wanted not in TRANSPORTS:
            raise BadRequest(f"{TRANSPORT_VARIABLE} is {wanted!r}; use {' or '.join(TRANSPORTS)}")
        return self.frames and wanted == "frames"

    def open(self, endpoint: str) -> Channel:
        """A channel to an endpoint, whose calls tell who makes them."""
        channel = self.dial(endpoint)
        return channel if self.login is None else self.login.over(channel)

    def wall_ms(self) -> int:
        """The wall clock in ms."""
        return int(self.wall_seconds() * 1000)


MACHINE = Runtime(frames=True)
