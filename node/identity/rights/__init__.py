"""Users' rights: resources, policies, decisions, and the import of RocketMQ's.

All of it is pure: no IO, clock, event loop or network, and nothing of a node. Any service and any
protocol may use it; who keeps the entries, or knows who calls, is in `access`.
"""
