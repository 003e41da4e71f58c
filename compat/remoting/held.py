"""The memory of requests that wait for another program's answers."""

from collections.abc import Iterator
from contextlib import contextmanager

from duolog import _errors as sdk


class Held:
    """Bytes that all of them may have together.

    Attributes:
        bytes: in use.
    """

    def __init__(self, bytes_max: int, full: str) -> None:
        """full: what is said where they are used up."""
        self.bytes = 0
        self._bytes_max = bytes_max
        self._full = full

    @contextmanager
    def request(self, size: int) -> Iterator[None]:
        """A request of so many bytes, as long as it waits. Raises Busy."""
        if self.bytes + size > self._bytes_max:
            raise sdk.Busy(self._full)
        self.bytes += size
        try:
            yield
        finally:
            self.bytes -= size
