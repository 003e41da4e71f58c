"""What gRPC's core allows to any client, before any code of this node sees a call.

The core cannot limit the connections of one address, does not tell of those that it closes, and
reads headers that never end as long as they come, of which it keeps some.
"""

import os

from duolog_server.node.runtime.config import LimitsSection

Options = tuple[tuple[str, int], ...]
HANDSHAKE_SECONDS = 10  # of TLS and HTTP/2, from the connection on
METADATA_BYTES_MAX = 16 << 10  # headers of a call
KEEPALIVE_SECONDS = 30  # without a sign of the client, then it is pinged
UNTAKEN_SECONDS = 20  # without taking a byte of what it is sent; then it is gone
PING_SECONDS = 60  # for the answer to a ping, which comes behind all that it has not read yet
IDLE_SECONDS = 60  # without a call; then the client connects anew for its next one
SLAVES_STREAMS_MAX = 64  # of one connection; a slave has one
IDENTITY_ONLY = 1  # bits of the encodings of messages that are taken


# Messages are not compressed by any client of ours; a compressed one is decompressed before its
# size is known, 1 MiB to 1 GiB.
_ANY_PORT: Options = (
    ("grpc.so_reuseport", 0),
    ("grpc.compression_enabled_algorithms_bitset", IDENTITY_ONLY),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", UNTAKEN_SECONDS * 1000),
    ("grpc.http2.ping_timeout_ms", PING_SECONDS * 1000),
)


def client_port(limits: LimitsSection) -> Options:
    """Of the ports of clients."""
    return (
        *_ANY_PORT,
        ("grpc.max_receive_message_length", limits.request_bytes_max),
        ("grpc.max_send_message_length", limits.request_bytes_max),
        ("grpc.max_allowed_incoming_connections", limits.connections_max),
        ("grpc.max_concurrent_streams", limits.streams_max),
        ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ("grpc.http2.max_ping_strikes", 0),  # frequent pings are not an attack
        ("grpc.keepalive_permit_without_calls", 1),
    )


def replication_port(message_bytes_max: int, connections_max: int) -> Options:
    """Of the port of slaves."""
    return (
        *_ANY_PORT,
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_send_message_length", message_bytes_max),
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.max_concurrent_streams", SLAVES_STREAMS_MAX),
    )


# How gRPC waits for the channels that a node opens: in the thread that wakes the event loop.
#
# By default gRPC reads a channel in threads of its EventEngine, which wake that thread for each
# message: on a stream that carries one small message at a time, a quarter of the CPU of its end.
# The ports that a node serves stay with the EventEngine: it answers more calls at once.
VARIABLE = "GRPC_EXPERIMENTS"  # gRPC reads it when it is first used
CHANNELS_IN_ONE_THREAD = "-event_engine_client"


def poll_channels_in_one_thread() -> None:
    """To be called before gRPC is used; what the environment says comes first."""
    os.environ.setdefault(VARIABLE, CHANNELS_IN_ONE_THREAD)
