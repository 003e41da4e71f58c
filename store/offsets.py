"""Two kinds of offsets, and a type for each: they are numbers of different things.

A `PhyOffset` is a byte's place in the commit log, the same on all replicas; a `QueueOffset` counts
the entries of one consume queue. Where one is computed, whoever computes it says which it is.
"""

from typing import NewType

PhyOffset = NewType("PhyOffset", int)
QueueOffset = NewType("QueueOffset", int)
