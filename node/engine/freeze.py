"""A freeze: for a while a master stores nothing, so that a slave of RocketMQ gets all of its log.

Rules: nothing is stored from its beginning on, by clients or by the node; it ends by itself, and
once the node follows another master. A slave has all tables once it asked for each of them after it
began: they change no more.
"""

import asyncio

import structlog

log = structlog.get_logger("duolog.node")

SECONDS_MAX = 86_400
TABLES = 4  # topics, groups, offsets, delays


class Freeze:
    """The freeze of one node.

    Attributes:
        reason: why nothing is stored; empty where it is not frozen.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._timer: asyncio.TimerHandle | None = None
        self._asked: dict[str, set[int]] = {}  # tables, by slave

    def begin(self, seconds: float) -> None:
        """Store nothing for some seconds from now on, also where the node is frozen already."""
        if not self.reason:
            self._asked.clear()
            log.warning("frozen: this node stores nothing", seconds=seconds)
        self.close()
        self.reason = (
            "frozen for the way back to RocketMQ; to store again: duolog migrate rollback --thaw"
        )
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def close(self) -> None:
        """Cancel the timer: the node stops, and stays frozen to its end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Store again."""
        self.close()
        if self.reason:
            log.warning("no longer frozen: this node stores messages again")
        self.reason = ""

    def answered(self, slave: str, table: int) -> None:
        """Note that a slave got one of the tables after the freeze began."""
        self._asked.setdefault(slave, set()).add(table)

    def has_given(self, slaves: int) -> bool:
        """Whether at least this many slaves, and one, got all tables."""
        return sum(len(asked) == TABLES for asked in self._asked.values()) >= max(1, slaves)
