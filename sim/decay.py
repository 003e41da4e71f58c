"""What a disk loses while nobody looks: files that the log can make anew are gone at a restart.

Only derived files decay here. A lost segment costs a copy of what was acknowledged, which
the sum of faults of a run is not made for.
"""

import random

from sim.disk import Inode, SimDisk

DERIVED = ("consumequeue/", "lightqueue/", "queueends")
SHARE = 0.15  # of restarts that meet it


def decay(disk: SimDisk, chance: random.Random) -> str:
    """Damage one derived file now and then; what was done, empty for nothing."""
    names = sorted(name for name in disk._names if name.startswith(DERIVED))
    if not names or chance.random() >= SHARE:
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
