"""GroupTransferService: the puts that wait until enough slaves have them.

They wait in the order of their offsets and are released together as the confirm offset passes
them; a put whose deadline has passed gets an answer that says so, and delays no other (see
`ha.waiters`).
"""

from dataclasses import dataclass
from typing import Any

from duolog_server.ha.waiters import OffsetWaiters
from duolog_server.store.clocks import MonoMs
from duolog_server.store.status import PutMessageStatus


@dataclass(frozen=True, slots=True)
class Release:
    """Answer these puts."""

    tokens: list[Any]
    status: PutMessageStatus


class GroupTransferService:
    """Waiting puts; a token identifies a put to its owner, who answers it."""

    def __init__(self, slave_timeout_ms: int) -> None:
        self._timeout_ms = slave_timeout_ms
        self._waiting: OffsetWaiters[Any] = OffsetWaiters()

    def __len__(self) -> int:
        """Puts that wait."""
        return len(self._waiting)

    @property
    def first(self) -> int | None:
        """The lowest end offset of the waiting puts; None if no put waits."""
        return self._waiting.first

    def put_request(self, end_offset: int, now_ms: MonoMs, token: Any) -> None:
        """Wait until the confirm offset reaches a put's end, or slave_timeout is over."""
        self._waiting.add(end_offset, now_ms + self._timeout_ms, token)

    def notify_transfer_some(self, confirm_offset: int) -> list[Release]:
        """The confirm offset moved."""
        return _release(self._waiting.release(confirm_offset), PutMessageStatus.PUT_OK)

    def expire(self, now_ms: MonoMs) -> list[Release]:
        """Time has passed."""
        return _release(self._waiting.expire(now_ms), PutMessageStatus.FLUSH_SLAVE_TIMEOUT)

    def fail_all(self) -> list[Release]:
        """The store is fenced: the outcome of the puts is unknown."""
        return _release(self._waiting.drain(), PutMessageStatus.UNKNOWN_ERROR)


def _release(tokens: list[Any], status: PutMessageStatus) -> list[Release]:
    return [Release(tokens, status)] if tokens else []
