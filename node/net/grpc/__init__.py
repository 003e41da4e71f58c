"""The gRPC server of a node, and what bounds the memory and the threads of its core."""
