"""The core: what every service of a node stands on.

The log with its clocks, the tables in it, and what may happen here and now. It knows the engine and
the node's part in its replica group; services, protocols and the broker know it.
"""
