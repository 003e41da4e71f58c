"""The bound on calls that wait for messages, of any protocol."""

import contextlib
from collections.abc import Iterator

from duolog import _errors as sdk


class WaitingCalls:
    """Counts the calls that wait (limits.polls_max)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.count = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """While a call waits. Raises Busy if too many do."""
        if self.count >= self._most:
            raise sdk.Busy(f"{self._most} calls already wait for messages (limits.polls_max)")
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
