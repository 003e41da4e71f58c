"""RocketMQ's dialects: its gRPC API, remoting protocol and HA wire, and a broker's migration.

A dialect decodes, calls what the node offers to all of them, and encodes. None knows another.
"""
