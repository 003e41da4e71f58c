"""Receipt handles and transaction ids: opaque to clients; they name the replica group to ask.

A receipt handle ends in a random serial: it cannot be forged, and one of an earlier delivery or
mastership does not match a lease.
"""

from dataclasses import dataclass

from duolog_server.compat.grpc.protocol.codes import Refused
from duolog_server.compat.grpc.protocol.stubs import Code
from duolog_server.node.pop.popservice import Handle
from duolog_server.node.runtime import tokens


def to_text(replica_group: str, handle: Handle) -> str:
    """A receipt handle for a client."""
    serial = f"{handle.serial:x}"
    return tokens.pack(replica_group, handle.topic, handle.queue_id, handle.offset, serial)


def from_text(text: str) -> tuple[str, Handle]:
    """Replica group and handle. Raises Refused (INVALID_RECEIPT_HANDLE)."""
    try:
        replica_group, topic, queue_id, offset, serial = tokens.unpack(text, 5)
        return replica_group, Handle(topic, int(queue_id), int(offset), int(serial, 16))
    except ValueError as error:
        raise Refused(
            Code.INVALID_RECEIPT_HANDLE, f"receipt handle {text[:80]!r} is invalid: {error}"
        ) from None


@dataclass(frozen=True, slots=True)
class TransactionId:
    """Names a half message. origin: its first offset in the half queue."""

    replica_group: str
    topic: str
    origin: int

    def to_text(self) -> str:
        """The text given to a client."""
        return tokens.pack(self.replica_group, self.topic, self.origin)

    @staticmethod
    def from_text(text: str) -> "TransactionId":
        """Read an id. Raises Refused (INVALID_TRANSACTION_ID)."""
        try:
            replica_group, topic, origin = tokens.unpack(text, 3)
            return TransactionId(replica_group, topic, int(origin))
        except ValueError as error:
            raise Refused(
                Code.INVALID_TRANSACTION_ID, f"transaction id {text[:80]!r} is invalid: {error}"
            ) from None
