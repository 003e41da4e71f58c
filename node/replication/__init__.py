"""Replication of the log: the node's role, a master's streams, a slave's stream.

It executes the effects of the machines in `ha`. It may use the engine, but no service and no
protocol. The core, elections, services, protocols and the broker may use it.
"""
