"""A message whose body is a record, as right as those of the log."""

from dataclasses import replace

from duolog_server.compat.remoting.producing.transactions import half_bytes
from duolog_server.serve.server import Node
from duolog_server.store.offsets import PhyOffset
from tests.compat.remoting.client import Remoting
from tests.node.replicas import broker_of

BODY_AT = 88  # in a record between hosts of IPv4


def place(sent: dict[str, str]) -> PhyOffset:
    """Where in the log a message is, by the answer to its send."""
    return PhyOffset(int(sent["msgId"][16:], 16))


async def forged(node: Node, remoting: Remoting) -> int:
    """Send it; where in the log its body begins."""
    store, found = broker_of(node).store, -1
    first = place(dict((await remoting.send("T", b"first", queue_id=3)).fields))
    await broker_of(node).log.caught_up()
    record = replace(store.get_message(first), reconsume_times=(1 << 31) - 2, properties={})
    while found < 0:  # something else may come between
        at = PhyOffset(store.max_offset + BODY_AT)
        sent = await remoting.send("T", half_bytes(replace(record, physical_offset=at)), queue_id=3)
        found = at if place(dict(sent.fields)) + BODY_AT == at else -1
    await broker_of(node).log.caught_up()
    assert store.get_message(PhyOffset(found)).body == b"first", "a record by itself"
    return found
