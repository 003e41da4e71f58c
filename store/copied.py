"""Whether a directory is a copy that was made while a process wrote to its original.

The abort file tells the number that the lock file has in its file system. A copy of the lock file
has another one: then log, queues and checkpoint are of different moments. What the log lacks in
the copy is not lost, the original has it.
"""

from duolog_server.store.disk import Disk

ABORT = "abort"  # there while a process has the directory open
LOCK = "lock"
RESTORING = "restoring"  # there while a backup is restored into the directory
_BEGIN = b"lock file "


def note(disk: Disk) -> bytes:
    """The text of a locked directory's abort file."""
    number = disk.inode(LOCK)
    return b"%b%d\n" % (_BEGIN, number) if number else b""


def is_copied(disk: Disk) -> bool:
    """Whether it is such a copy; False where the abort file tells nothing (of older versions)."""
    try:
        data = disk.read(ABORT)
    except OSError:
        return False
    return data.startswith(_BEGIN) and data != note(disk)
