"""Where queues are that moved to other replica groups.

Rules: the name of a queue is the place where it was made, and stays. Of two places reported for one
name, the one with the higher offset is the later one. A client may know only an earlier place: that
takes batches as well, and passes them on.
"""

from collections.abc import Iterable
from typing import NamedTuple

from duolog.wire import duolog_pb2 as wire

Slot = tuple[str, int]  # replica group, queue id in it


class _Report(NamedTuple):
    """A place of a name. Of several reports, the greatest one counts.

    offset: queue offset at which the place begins, or of a message that was stored there.
    is_open: it takes messages.
    """

    offset: int
    is_open: bool
    place: Slot


class Places:
    """The places of queues that moved, by topic and name."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[Slot, _Report]] = {}

    def of(self, topic: str, name: Slot) -> Slot:
        """Where a queue is now, as far as is known; for any thread."""
        moved = self._reports.get(topic)
        report = moved.get(name) if moved else None
        return name if report is None else report.place

    def names(self, topic: str) -> list[Slot]:
        """The queues of a topic that moved."""
        return list(self._reports.get(topic, ()))

    def list_guests(self, topic: str, group: str, guests: Iterable[wire.GuestQueue]) -> None:
        """Take a replica group's list of the queues that moved there, in the place of its last."""
        before = self._reports.pop(topic, {})
        moved = {name: one for name, one in before.items() if one.place[0] != group}
        for guest in guests:
            report = _Report(guest.first, not guest.sealed, (group, guest.queue_id))
            _note(moved, (guest.name_group, guest.name_queue_id), report)
        if moved:
            self._reports[topic] = moved

    def forget(self, topic: str, name: Slot) -> None:
        """Take a queue to be where it was made: it is not where it was reported."""
        self._reports.get(topic, {}).pop(name, None)

    def note_stored(self, topic: str, name: Slot, place: Slot, offset: int) -> None:
        """Take note that a message of a queue was stored at a place."""
        _note(self._reports.setdefault(topic, {}), name, _Report(offset, True, place))


def _note(moved: dict[Slot, _Report], name: Slot, report: _Report) -> None:
    known = moved.get(name)
    if known is None or report[:2] >= known[:2]:
        moved[name] = report
