"""Quotas: how much users, client addresses, topics and namespaces may have.

All of it is pure: no IO, clock, event loop or network, and nothing of a node. `core/throttle.py`
asks it for the services of all APIs.
"""
