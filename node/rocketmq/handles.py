"""Receipt handles: opaque to clients, and enough for any node to find whom to ask.

`v1 replica-group topic queue offset serial`, base64. The serial is random: a handle cannot be made
up, and one of an earlier delivery (or another mastership) names no lease.
"""

import base64
import binascii

from node.popservice import Handle
from node.rocketmq.codes import Refused
from node.rocketmq.stubs import Code

VERSION = "v1"


def to_text(replica_group: str, handle: Handle) -> str:
    """A handle for a client."""
    words = (
        VERSION,
        replica_group,
        handle.topic,
        str(handle.queue_id),
        str(handle.offset),
        f"{handle.serial:x}",
    )
    return base64.urlsafe_b64encode("\n".join(words).encode()).decode()


def from_text(text: str) -> tuple[str, Handle]:
    """Replica group and handle. Raises Refused (INVALID_RECEIPT_HANDLE)."""
    try:
        words = base64.urlsafe_b64decode(text.encode("ascii")).decode().split("\n")
        version, replica_group, topic, queue_id, offset, serial = words
        if version != VERSION:
            raise ValueError(f"version {version!r}")
        return replica_group, Handle(topic, int(queue_id), int(offset), int(serial, 16))
    except (ValueError, binascii.Error) as error:
        raise Refused(
            Code.INVALID_RECEIPT_HANDLE, f"receipt handle {text[:80]!r} is none: {error}"
        ) from None
