"""The newest masterships of a log: their masters and begins, by barrier records."""

import json
from dataclasses import dataclass

from duolog_server.ha.beginnings import Beginning
from duolog_server.ha.epochs import Epoch, EpochEntry, EpochHistory
from duolog_server.store.errors import StoreError
from duolog_server.store.messagestore import MessageStore

KEPT = 16


@dataclass(frozen=True, slots=True)
class Mastership:
    """master: name of the node. began_ms: by its wall clock, when its barrier was stored."""

    epoch: Epoch
    master: str
    began_ms: int
    began: Beginning = Beginning()


class Masterships:
    """Reads each barrier once."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._known: dict[EpochEntry, Mastership | None] = {}

    def newest(self, history: EpochHistory, confirmed: int) -> list[Mastership]:
        """The newest masterships that begin below a log offset, oldest first.

        Those whose barriers retention or damage removed are left out.
        """
        newest = history.entries[-2 * KEPT :]
        entries = [entry for entry in newest if entry.start < confirmed][-KEPT:]
        self._known = {
            entry: self._known[entry] if entry in self._known else self._read(entry)
            for entry in entries
        }
        return [found for found in self._known.values() if found is not None]

    def _read(self, entry: EpochEntry) -> Mastership | None:
        try:
            record = self._store.log.get_message(entry.start)
            said = json.loads(record.body)
            master, began = said["master"], Beginning.from_json(said)
        except (StoreError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return Mastership(entry.epoch, str(master), record.store_time, began)
