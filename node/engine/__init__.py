"""The engine: runs one store on an event loop.

Puts and what they wait for, dispatch, removal of queues, store times, and notification of readers.
It may use the store, the clocks and `upkeep`, but no protocol and no service; it knows other nodes
only through the port `Replicas`. Every other room may use it.
"""
