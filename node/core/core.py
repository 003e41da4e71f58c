"""The parts of a node that every service is given."""

from dataclasses import dataclass

from node.core.admission import Admission
from node.core.metadatalog import MetadataLog
from node.engine.log import Log
from store.messagestore import MessageStore


@dataclass(frozen=True, slots=True)
class Core:
    """The lower layers of one node."""

    log: Log
    metadata: MetadataLog
    admission: Admission

    @property
    def store(self) -> MessageStore:
        """The store under the log, for reading."""
        return self.log.store
