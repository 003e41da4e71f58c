"""Queues that move between replica groups: what the masters of both do, and say to each other.

`ha.mover`, `ha.movetarget` and `store.crossing` decide; this executes.
"""
