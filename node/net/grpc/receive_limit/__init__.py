"""Counts and bounds the incomplete requests that gRPC's core holds.

The core keeps a message until it has arrived, and headers that never end, and no setting limits
that: not even `grpc.max_receive_message_length`, which it looks at afterwards, nor
`grpc.absolute_max_metadata_size`, which holds only once the client has acknowledged it (its
SETTINGS); until then, it is 16 MiB. But the kernel knows how many bytes came on each connection,
and the node how many of them its methods got.
"""
