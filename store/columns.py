"""A batch of messages as columns: Apache Arrow's layout, one blob and an offsets array each.

offsets: count + 1 little-endian uint32; message k is blob[offsets[k]:offsets[k + 1]].
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from duolog_server.store import lightqueues
from duolog_server.store.errors import BadMessage
from duolog_server.store.kernels import encode
from duolog_server.store.kernels.jit import EMPTY_U8, I64, U8, U32
from duolog_server.store.record import PROPERTIES_BYTES_MAX, SENT_PROPERTIES_BYTES_MAX
from duolog_server.store.status import PutMessageStatus

# Topics that the node notes in its copies of messages, which others follow.
_NOTED = tuple(name.encode() + b"\x01" for name in ("RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"))
_PLACES = tuple(name.encode() + b"\x01" for name in lightqueues.PROPERTIES)
_NO_TEXTS: U32 = np.zeros(1024, np.uint32)  # offsets where there are no property texts
_NO_TEXTS.flags.writeable = False
_OFFSETS = np.dtype("<u4")


@dataclass(slots=True)  # not frozen, as what a put makes: see `store.puts`
class Columns:
    """Bodies and property texts of a batch."""

    bodies: U8
    body_offsets: U32
    properties: U8
    property_offsets: U32

    @property
    def count(self) -> int:
        """Messages in the batch."""
        return len(self.body_offsets) - 1

    @staticmethod
    def of(bodies: Iterable[bytes], properties: Iterable[bytes] | None = None) -> "Columns":
        """Columns of single messages: for tests, tools and the engine's own records."""
        blobs = list(bodies)
        texts = [b""] * len(blobs) if properties is None else list(properties)
        assert len(texts) == len(blobs), "one property text per body"
        return Columns(
            np.frombuffer(b"".join(blobs), np.uint8),
            _offsets(blobs),
            np.frombuffer(b"".join(texts), np.uint8),
            _offsets(texts),
        )

    @staticmethod
    def from_wire(
        bodies: bytes | memoryview,
        body_offsets: bytes,
        properties: bytes,
        property_offsets: bytes,
    ) -> "Columns":
        """Columns as a client sent them, shapes checked.

        Raises BadMessage if they are wrong, or name a topic as if the node had noted it.
        """
        if len(body_offsets) % 4 or len(body_offsets) < 8:
            raise BadMessage("body offsets are not count + 1 numbers of 4 bytes, count >= 1")
        if not property_offsets and not properties:
            count = len(body_offsets) // 4
            return Columns(
                np.frombuffer(bodies, np.uint8),
                np.frombuffer(body_offsets, _OFFSETS),
                EMPTY_U8,
                _NO_TEXTS[:count] if count <= len(_NO_TEXTS) else np.zeros(count, np.uint32),
            )
        if len(property_offsets) != len(body_offsets):
            raise BadMessage(
                f"{len(property_offsets)} bytes of property offsets for "
                f"{len(body_offsets)} bytes of body offsets"
            )
        ends = np.frombuffer(property_offsets, _OFFSETS)
        if any(noted in properties for noted in _NOTED):
            _check_not_noted(properties, ends)
        return Columns(
            np.frombuffer(bodies, np.uint8),
            np.frombuffer(body_offsets, _OFFSETS),
            np.frombuffer(properties, np.uint8),
            ends,
        )

    def check(
        self, body_bytes_max: int, properties_bytes_max: int = SENT_PROPERTIES_BYTES_MAX
    ) -> None:
        """Raise BadMessage unless what a client sent is right and within the limits of clients."""
        where: I64 = np.zeros(1, np.int64)
        code = encode.check_columns(
            self.body_offsets,
            len(self.bodies),
            self.properties,
            self.property_offsets,
            body_bytes_max,
            properties_bytes_max,
            where,
        )
        if code == encode.COLUMNS_OK:
            self.check_unplaced()
            return
        k = int(where[0])
        reasons = {
            encode.OFFSETS_LIE: "its offsets are not ascending or leave the blob",
            encode.BODY_TOO_LARGE: f"its body exceeds the limit of {body_bytes_max} bytes",
            encode.PROPERTIES_TOO_LARGE: "its properties exceed the limit of "
            f"{properties_bytes_max} bytes",
            encode.PROPERTIES_MALFORMED: "its properties are not pairs of printable strings",
        }
        if code == encode.PROPERTIES_TOO_LARGE:
            raise BadProperties(k, reasons[code])
        kind = BodyTooLarge if code == encode.BODY_TOO_LARGE else BadMessage
        raise kind(f"message {k} of the batch: {reasons[code]}")

    def check_accepted(self, properties_bytes_max: int = PROPERTIES_BYTES_MAX) -> None:
        """Raise BadMessage unless a record has room for what was accepted, or stored, before.

        It is not held to the limits of clients: these may have changed since, and RocketMQ's are
        others.
        """
        for offsets, blob in (
            (self.body_offsets, self.bodies),
            (self.property_offsets, self.properties),
        ):
            if (
                offsets[0] != 0
                or int(offsets[-1]) != len(blob)
                or (offsets[1:] < offsets[:-1]).any()
            ):
                raise BadMessage("the offsets of the batch are not ascending or leave the blob")
        if self.longest_properties > properties_bytes_max:
            k = int(np.diff(self.property_offsets).argmax())
            raise BadProperties(k, f"its properties exceed {properties_bytes_max} bytes")

    def check_unplaced(self) -> None:
        """Raise BadMessage where a property is one that only the store may set."""
        if not len(self.properties):
            return
        text = self.properties.tobytes()
        if any(self._has_name(text, name) for name in _PLACES if name in text):
            names = " and ".join(lightqueues.PROPERTIES)
            raise BadMessage(f"{names} may only be written by the store")

    def _has_name(self, text: bytes, name: bytes) -> bool:
        """Whether a property of a message begins so; others may end so."""
        if b"\x02" + name in text:
            return True
        at = self.property_offsets[:-1].astype(np.int64)
        at = at[at + len(name) <= len(text)]
        for byte in name:
            at = at[self.properties[at] == byte]
            at += 1
        return bool(len(at))

    @property
    def longest_properties(self) -> int:
        """The most bytes of properties of a message."""
        return int((self.property_offsets[1:] - self.property_offsets[:-1]).max())


class BodyTooLarge(BadMessage):
    """A body over the limit."""

    status = PutMessageStatus.MESSAGE_TOO_LARGE


class BadProperties(BadMessage):
    """Properties over the limit."""

    status = PutMessageStatus.PROPERTIES_SIZE_EXCEEDED

    def __init__(self, message: int, reason: str) -> None:
        super().__init__(f"message {message} of the batch: {reason}")


def _check_not_noted(properties: bytes, ends: U32) -> None:
    for low, high in pairwise(ends.tolist()):
        for pair in properties[low:high].split(b"\x02"):
            if pair.startswith(_NOTED):
                name = pair.partition(b"\x01")[0].decode()
                raise BadMessage(f"property {name!r} is reserved: only the node sets it")


def offsets_to_wire(ends: I64) -> bytes:
    """The wire's offsets of values that end so in their blob: count + 1 little-endian uint32."""
    offsets = np.zeros(len(ends) + 1, "<u4")
    offsets[1:] = ends
    return offsets.tobytes()


def _offsets(blobs: list[bytes]) -> U32:
    if len(blobs) == 1:
        return np.array((0, len(blobs[0])), np.uint32)
    return np.fromiter(accumulate(map(len, blobs), initial=0), np.uint32, len(blobs) + 1)
