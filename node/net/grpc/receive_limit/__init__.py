"""What gRPC's core holds of requests that have not arrived whole: counted outside it, and bounded.

The core keeps messages until they have arrived, and headers that never end, and no setting limits
that: not even `grpc.max_receive_message_length`, which it looks at afterwards, nor
`grpc.absolute_max_metadata_size`, which holds only once the client has acknowledged it (its
SETTINGS); until then, it is 16 MiB. But the kernel knows how many bytes came on each connection,
and the node how many of them its methods got.
"""
