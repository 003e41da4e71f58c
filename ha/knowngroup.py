"""A group as one node knows it: read from the registry, noted on the disk, and then believed.

Rules: one read at a time, and never an answer that may be older than what asked for it; a state
that falls behind what was noted is not believed; nothing follows from a state before it is noted.
"""

from dataclasses import replace

from ha import membership
from ha.failoverevents import Effect, Note, Observe
from ha.groupstate import BadState, GroupState, Keys, View, view_of
from ha.membership import Membership
from ha.registry import Snapshot
from ha.starts import Start
from store.clocks import MonoMs
from store.disk import Disk

LOOK_MS = 1000  # the registry is read so often even if nothing seems to change


class NotBelieved(Exception):
    """The registry has forgotten something, or says what this version does not understand."""


class KnownGroup:
    """What was read last (`view`), and the newest state ever seen (`membership`)."""

    def __init__(self, disk: Disk, keys: Keys) -> None:
        """Counts a start of the directory, durably. Raises BadStoreFile where the node's membership
        cannot be trusted, and OSError.
        """
        self.keys = keys
        self.view = View()
        known = membership.load(disk)
        self.membership = self.saved = replace(known, starts=known.starts + 1)
        membership.save(disk, self.membership)
        self._reading = False
        self._read_again = False
        self._looked_ms = MonoMs(-LOOK_MS)
        self._known = False  # anything was read
        self.noting = False

    @property
    def settled(self) -> bool:
        """What is known was read after whatever asked for it, and is noted: one may decide."""
        return self._known and not self._reading and not self.noting

    # -- reading -------------------------------------------------------------------------------

    def look(self, now_ms: MonoMs) -> list[Effect]:
        """Read the keys; what is being read now may be too old."""
        if self._reading:
            self._read_again = True
            return []
        self._reading, self._looked_ms = True, now_ms
        return [Observe()]

    def tick(self, now_ms: MonoMs) -> list[Effect]:
        """Read the keys where that was long ago."""
        return self.look(now_ms) if now_ms - self._looked_ms >= LOOK_MS else []

    def observed(self, snapshot: Snapshot | None, now_ms: MonoMs) -> list[Effect]:
        """Take what was read; None: the read failed. Raises NotBelieved."""
        self._reading = False
        if snapshot is None:
            return []  # tried again in a while
        if self._read_again:
            self._read_again = False
            return self.look(now_ms)
        try:
            self.view = view_of(snapshot, self.keys)
        except BadState as error:
            raise NotBelieved(str(error)) from None
        self._known = True
        wrong = self.distrust()
        if wrong:
            raise NotBelieved(wrong)
        return self._remember()

    def changed(self, state: GroupState, revision: int, now_ms: MonoMs) -> list[Effect]:
        """Take a change of the state that this node has made itself, in that revision."""
        if revision <= self.view.state_revision:
            return self.look(now_ms)  # a read was faster, and may have seen what followed
        # A read that is under way may show what was before: that would look like a registry that
        # fell back.
        self._read_again = self._read_again or self._reading
        self.view = replace(self.view, state=state, state_revision=revision)
        return self._remember()

    # -- believing -----------------------------------------------------------------------------

    def distrust(self) -> str:
        """Why the registry cannot be believed, empty where it can."""
        state, known = self.view.state, self.membership
        if not known.group_id:
            return ""
        if state is None:
            lost = f"the registry has lost group {known.group_id}"
            return f"{lost}: restore it, or elect a master by hand"
        if state.group_id != known.group_id:
            mine = known.group_id
            return f"the registry holds group {state.group_id}, this replica belongs to {mine}"
        if state.version < known.version:
            return (
                f"the registry fell back to version {state.version} of the group; "
                f"version {known.version} was seen: restore it, or elect a master by hand"
            )
        return ""

    def _remember(self) -> list[Effect]:
        """Note the newest state seen, durably: an older one will not be believed.

        Nothing follows from that state before it is noted. Where a full disk has no room for the
        file it is noted in memory, and saved at a later look.
        """
        state = self.view.state
        if state is not None:
            known = self.membership
            self.membership = replace(known, group_id=state.group_id, version=state.version)
        return self._save()

    def _save(self) -> list[Effect]:
        if self.noting or self.membership == self.saved:
            return []  # the older one first, or nothing new
        self.noting = True
        return [Note(self.membership)]

    def is_marked(self, start: Start) -> bool:
        """This directory will know a start for its own: the start may be claimed."""
        return start in self.saved.marks

    def mark(self, start: Start, row: Start | None) -> list[Effect]:
        """Note a start that is to be claimed in the place of a row of the registry."""
        if start in self.membership.marks:
            return []  # a full disk has no room now: at a later look
        self.membership = replace(self.membership, marks=start.marked(row, self.membership.marks))
        return self._save()

    def noted(self, noted: Membership | None) -> list[Effect]:
        """Take the disk's word; None: it has no room now."""
        self.noting = False
        self.saved = noted or self.saved
        return self._save() if noted is not None else []  # what was seen meanwhile
