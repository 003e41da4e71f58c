"""Who calls, and what they may do: one model for every door of a node.

`resources`, `policies`, `decision` and `imports` are pure: no IO, clock, event loop or network, and
nothing of a node. `gate` is what the doors ask: it knows the users, by the replicated tables, and
changes nothing. Every service and all protocols may come in and ask.
"""
