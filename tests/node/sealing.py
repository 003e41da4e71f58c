"""Seals by hand, without a move: a queue ends where it is."""

from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.store.moves import Place, Seal


async def sealed(
    metadata: MetadataLog, topic: str, queue_id: int, following: Place, move: str
) -> int:
    """Seal a queue, once that is confirmed; where it ends."""
    end = metadata._store.next_offset(topic, queue_id)
    await metadata.applied(metadata.store_seal(topic, queue_id, Seal(end, following, move)))
    seal = metadata.tables.moves.seal_of(topic, queue_id)
    assert seal is not None
    return seal.end
