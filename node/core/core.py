"""What every service stands on, in one hand."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from node.config import LimitsSection
from node.core.admission import Admission
from node.core.metadatalog import MetadataLog
from node.engine.log import Log
from store.messagestore import MessageStore

# Runs background work; an error of it ends the node.
Guard = Callable[[Callable[[], Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Core:
    """The lower floors of one node."""

    log: Log
    metadata: MetadataLog
    admission: Admission
    limits: LimitsSection
    guard: Guard
    group: str  # name of the node's replica group

    @property
    def store(self) -> MessageStore:
        """The store under the log, for reading."""
        return self.log.store
