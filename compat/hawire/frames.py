"""What a master and a slave of RocketMQ send each other.

| from | bytes | field |
|------|------:|-------|
| slave | 8 | offset in the commit log: the first time where to begin, then how far it has come |
| master | 8 | offset of the bytes behind |
| | 4 | their size; 0 for a sign of life |
| | n | bytes of the commit log |

Big-endian. A frame may end within a record, and never goes beyond the end of a segment. Source:
Apache RocketMQ 4.9.8, HAConnection and HAService; the default HA of 5.x has the same bytes.
"""

import struct
from dataclasses import dataclass

HEAD = struct.Struct(">qi")
REPORT = struct.Struct(">q")
FRAME_BYTES_MAX = (4 << 20) - HEAD.size  # RocketMQ's slaves have a buffer of 4 MiB


class BadStream(Exception):
    """What arrived is nothing that a master or slave of RocketMQ sends."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes of a commit log from an offset on; none in a sign of life."""

    offset: int
    data: bytes


class MasterReader:
    """Gathers what a master sends."""

    def __init__(self) -> None:
        """Nothing has arrived yet."""
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now. Raises BadStream."""
        self._held += data
        found: list[Frame] = []
        at = 0
        while len(self._held) - at >= HEAD.size:
            offset, size = HEAD.unpack_from(self._held, at)
            if offset < 0 or not 0 <= size <= FRAME_BYTES_MAX:
                raise BadStream(f"a frame of {size} bytes at offset {offset}")
            end = at + HEAD.size + size
            if end > len(self._held):
                break
            found.append(Frame(offset, bytes(self._held[at + HEAD.size : end])))
            at = end
        del self._held[:at]
        return found


class SlaveReader:
    """Gathers what a slave says; only its last word counts."""

    def __init__(self) -> None:
        """Nothing has arrived yet."""
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """The last whole offset that arrived, None where none is whole. Raises BadStream."""
        held = self._rest + data
        whole = len(held) - len(held) % REPORT.size
        self._rest = held[whole:]
        if not whole:
            return None
        (offset,) = REPORT.unpack_from(held, whole - REPORT.size)
        if offset < 0:
            raise BadStream(f"a slave says that it is at offset {offset}")
        return int(offset)
