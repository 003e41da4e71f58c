"""How gRPC waits for the channels that a node opens: in the thread that wakes the event loop.

By default gRPC reads a channel in threads of its EventEngine, which wake that thread for each
message: on a stream that carries one small message at a time, a quarter of the CPU of its end. The
ports that a node serves stay with the EventEngine: it answers more calls at once.
"""

import os

VARIABLE = "GRPC_EXPERIMENTS"  # gRPC reads it when it is first used
CHANNELS_IN_ONE_THREAD = "-event_engine_client"


def poll_channels_in_one_thread() -> None:
    """To be called before gRPC is used; what the environment says comes first."""
    os.environ.setdefault(VARIABLE, CHANNELS_IN_ONE_THREAD)
