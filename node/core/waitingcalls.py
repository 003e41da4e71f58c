"""The limit on calls that wait for messages, for all protocols."""

from duolog import _errors as sdk


class WaitingCalls:
    """Counts the calls that wait (limits.polls_max)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.count = 0

    def validate(self) -> str:
        """The violated invariant of the count; empty if it holds."""
        if not 0 <= self.count <= self._most:
            return f"{self.count} calls wait, not 0..{self._most}"
        return ""

    def one(self) -> "WaitingCalls":
        """Count a call while the body waits. Raises Busy if too many calls wait."""
        return self

    def __enter__(self) -> None:
        """See `one`."""
        if self.count >= self._most:
            raise sdk.Busy(f"{self._most} calls already wait for messages (limits.polls_max)")
        self.count += 1

    def __exit__(self, *_: object) -> None:
        """See `one`."""
        self.count -= 1
