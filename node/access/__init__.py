"""Users' rights: resources, policies, decisions, and the import of RocketMQ's.

`resources`, `policies`, `decision` and `imports` are pure: no IO, clock, event loop or network, and
nothing of a node. Every service and both protocols may come in and ask; whoever keeps the entries,
or knows who is calling, stands above those four.
"""
