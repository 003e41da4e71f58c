"""Constants of both ends of a replication stream."""

from duolog_server.ha.frames import BODY_BYTES_MAX

HA_METHOD = "/duolog.ha.v1.Replication/Stream"
STREAM_OPTIONS = (
    ("grpc.max_receive_message_length", BODY_BYTES_MAX),
    ("grpc.max_send_message_length", BODY_BYTES_MAX),
    ("grpc.so_reuseport", 0),
)
PROOF_SECONDS = 5.0  # that either end may take to prove its key
