"""TransientStorePool: buffers of one segment's size that appends are assembled in.

A commit copies them into the file. What was not committed is lost when the *process* ends, so the
pool is only used with asynchronous flush.
"""

import numpy as np

from duolog_server.store.kernels.jit import U8


class TransientStorePool:
    """A fixed number of zeroed buffers, lent to segments."""

    def __init__(self, buffers: int, size: int) -> None:
        self._size = size
        self._free: list[U8] = []
        self._unmade = buffers

    def borrow(self) -> U8 | None:
        """A zeroed buffer, or None if all are lent: the segment is then written directly."""
        if self._free:
            buffer = self._free.pop()
            buffer[:] = 0
            return buffer
        if self._unmade == 0:
            return None
        self._unmade -= 1
        return np.zeros(self._size, np.uint8)

    def give_back(self, buffer: U8) -> None:
        """Return a buffer whose segment is committed to its end."""
        self._free.append(buffer)
