"""Two kinds of offsets, each with its own type.

A `PhyOffset` is a byte position in the commit log, the same on all replicas; a `QueueOffset` counts
the entries of one consume queue. Code that computes an offset states its type.
"""

from typing import NewType

PhyOffset = NewType("PhyOffset", int)
QueueOffset = NewType("QueueOffset", int)
