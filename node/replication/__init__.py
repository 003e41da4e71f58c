"""The log's way to other nodes: the node's role, a master's streams, a slave's stream.

It carries out what the machines of `ha` say; it knows the engine, no service and no protocol.
"""
