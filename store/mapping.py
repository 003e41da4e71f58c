"""A file's bytes in memory, without a descriptor.

A mapping lives as long as anybody holds its bytes, and keeps the open file that it was made from:
a failed write-back is raised by the next `sync`, once, as it would be to a descriptor that was
kept. Python's `mmap` keeps a descriptor, of which a process may have fewer than mappings, and its
`flush` holds the GIL for the whole write-back.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable

import numpy as np

from duolog_server.store.kernels.jit import U8

PAGE = mmap.PAGESIZE
POPULATE_READ = 22
POPULATE_WRITE = 23
POPULATE_STEP = 256 << 10
_MS_SYNC = 4
_MAP_FIXED = 16
_TMPFS = 0x01021994
_MAPPINGS_FILE = "/proc/sys/vm/max_map_count"
_MAPPINGS_USUAL = 65_530
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
for _call in (_libc.madvise, _libc.msync):
    _call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for _call in (_libc.munmap, _libc.mlock):
    _call.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.fstatfs.argtypes = [ctypes.c_int, ctypes.c_char_p]


def mappings_max() -> int:
    """How many the system lets one process have, of all kinds."""
    try:
        with open(_MAPPINGS_FILE) as file:
            return int(file.read())
    except (OSError, ValueError):
        return _MAPPINGS_USUAL


class _Pages:
    """Owner of the addresses: arrays over it keep it, and it unmaps when the last one goes."""

    __slots__ = ("__array_interface__", "address", "size")

    def __init__(self, descriptor: int, size: int, writable: bool) -> None:
        """Raises OSError."""
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        address = _libc.mmap(None, size, access, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            raise _error()
        self.address: int = address
        self.size = size
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, not writable),
        }

    def __del__(self, munmap: Callable[[int, int], int] = _libc.munmap) -> None:
        if hasattr(self, "size"):  # else it could not be mapped
            munmap(self.address, self.size)


class Mapping:
    """All bytes of a file; `memory` may be kept by its users."""

    __slots__ = ("_pages", "memory")

    def __init__(self, descriptor: int, size: int, writable: bool) -> None:
        """The descriptor may be closed afterwards. Raises OSError (ENOMEM: too many mappings)."""
        self._pages = _Pages(descriptor, size, writable)
        self.memory: U8 = np.asarray(self._pages)

    def sync(self) -> None:
        """Make all stores into it durable, as fdatasync does. Raises OSError."""
        if _libc.msync(self._pages.address, self._pages.size, _MS_SYNC):
            raise _error()

    def cover(self, start: int, end: int) -> None:
        """Show zeros in whole pages that are not to be read from the file. Raises OSError."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        self._map_over(start, end, mmap.PROT_READ, flags, -1)

    def uncover(self, descriptor: int, start: int, end: int) -> None:
        """Show the file again, for writing, in whole pages. Raises OSError."""
        access = mmap.PROT_READ | mmap.PROT_WRITE
        self._map_over(start, end, access, mmap.MAP_SHARED | _MAP_FIXED, descriptor)

    def _map_over(self, start: int, end: int, access: int, flags: int, descriptor: int) -> None:
        address = self._pages.address + start
        offset = start if descriptor >= 0 else 0
        if _libc.mmap(address, end - start, access, flags, descriptor, offset) == _FAILED:
            raise _error()

    def advise(self, advice: int) -> None:
        """Tell the system how pages will be used, which it may ignore."""
        _libc.madvise(self._pages.address, self._pages.size, advice)

    def populate(self, start: int, size: int) -> None:
        """MADV_POPULATE_WRITE (Linux 5.14): a first write then costs no page fault.

        Without it, the writer's thread spends most of its time in faults. Older kernels refuse it,
        and the pages are faulted in one by one as before.
        """
        end = min(start + size, self._pages.size)
        # In small steps: while it works, no thread of the process can map or unmap anything.
        for at in range(start - start % PAGE, end, POPULATE_STEP):
            step = min(POPULATE_STEP, end - at)
            if _libc.madvise(self._pages.address + at, step, POPULATE_WRITE):
                return

    def load(self, start: int, size: int) -> None:
        """MADV_POPULATE_READ: pages are read from the disk here, not by their next reader."""
        begin = start - start % PAGE
        length = min(start + size, self._pages.size) - begin
        address = self._pages.address + begin
        if length > 0 and _libc.madvise(address, length, POPULATE_READ):
            _libc.madvise(address, length, mmap.MADV_WILLNEED)

    def lock(self) -> None:
        """Mlock; a refusal (ulimit) is not an error."""
        _libc.mlock(self._pages.address, self._pages.size)


def reads_take_room(descriptor: int) -> bool:
    """Whether reading a hole through a mapping allocates a page of the disk: on a tmpfs."""
    found = ctypes.create_string_buffer(256)
    if not sys.platform.startswith("linux") or _libc.fstatfs(descriptor, found):
        return False
    return int.from_bytes(found.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) == _TMPFS


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
