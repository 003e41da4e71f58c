"""Decay of disks: derived files that are lost or damaged at a restart.

Only derived files decay here. A lost segment costs a copy of what was acknowledged: those are
faults of their own, where the others have it (`sim.lostsegments`).
"""

import random

from sim.disk import Inode, SimDisk

DERIVED = ("consumequeue/", "lightqueue/", "queueends", "index/")
SHARE = 0.15  # of restarts that meet it
OFTEN = 0.9


def decay(disk: SimDisk, chance: random.Random, share: float) -> str:
    """Damage one derived file at a share of the restarts; what was done, empty for nothing."""
    names = sorted(name for name in disk._names if name.startswith(DERIVED))
    if not names or chance.random() >= share:
        return ""
    name = chance.choice(names)
    way = chance.choice(("lost", "zeroed", "emptied", "directory lost"))
    if way == "zeroed":
        inode = disk._names[name]
        inode.seen[:] = 0
        inode.durable[:] = 0
    else:
        above = name.rpartition("/")[0]
        gone = [other for other in names if other.startswith(f"{above}/")] if above else [name]
        for other in gone if way == "directory lost" else [name]:
            disk.remove(other)
        if way == "emptied":
            disk._change(lambda names: names.__setitem__(name, Inode(0, 0.0)))
        disk.sync_dir("")
    return f"{name} {way}"
