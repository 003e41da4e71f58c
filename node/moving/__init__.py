"""Queues that move between replica groups: what the masters of both do, and say to each other.

`ha.mover`, `ha.movetarget` and `ha.crossing` decide; this executes.
"""
