"""A group as one node knows it: read from the registry, saved on the disk, and then trusted.

Rules: one read at a time, and never an answer that may be older than its request; a state older
than the saved one is not trusted; no decision is based on a state before it is saved.
"""

from dataclasses import replace

from duolog_server.ha import membership
from duolog_server.ha.failoverevents import Effect, Note, Observe
from duolog_server.ha.groupstate import BadState, GroupState, Keys, View, view_of
from duolog_server.ha.membership import Membership
from duolog_server.ha.registry import Snapshot
from duolog_server.ha.starts import Start
from duolog_server.store.clocks import MonoMs
from duolog_server.store.disk import Disk

SCAN_MS = 1000  # interval at which the registry is read even without a notification


class NotBelieved(Exception):
    """The registry has lost a change, or holds a value that this version cannot parse."""


class KnownGroup:
    """The group as read last (`view`), and the newest state ever seen (`membership`)."""

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
        self._read_ms = MonoMs(-SCAN_MS)
        self._known = False  # at least one read has succeeded
        self.noting = False

    @property
    def is_read(self) -> bool:
        """The group was read after that was last asked for."""
        return self._known and not self._reading

    @property
    def settled(self) -> bool:
        """The state was read after its last request, and is saved: decisions are allowed."""
        return self.is_read and not self.noting

    # -- reading -------------------------------------------------------------------------------

    def read(self, now_ms: MonoMs) -> list[Effect]:
        """Read the keys; a read in flight may be too old, and is repeated."""
        if self._reading:
            self._read_again = True
            return []
        self._reading, self._read_ms = True, now_ms
        return [Observe()]

    def tick(self, now_ms: MonoMs) -> list[Effect]:
        """Read the keys if the last read was SCAN_MS ago."""
        return self.read(now_ms) if now_ms - self._read_ms >= SCAN_MS else []

    def observed(self, snapshot: Snapshot | None, now_ms: MonoMs) -> list[Effect]:
        """Take what was read; None: the read failed. Raises NotBelieved."""
        self._reading = False
        if snapshot is None:
            return []  # tried again in a while
        if self._read_again:
            self._read_again = False
            return self.read(now_ms)
        promised = self.view.guarantee
        try:
            self.view = view_of(snapshot, self.keys)
        except BadState as error:
            raise NotBelieved(str(error)) from None
        self._known = True
        wrong = self.distrust()
        if promised is not None and (wrong or self.view.guarantee is None):
            # A registry that lost it, or is an older one, takes nothing from what was promised.
            self.view = replace(self.view, guarantee=promised)
        if wrong:
            raise NotBelieved(wrong)
        return self._remember()

    def changed(self, state: GroupState, revision: int, now_ms: MonoMs) -> list[Effect]:
        """Apply a change of the state that this node made itself, in that revision."""
        if revision <= self.view.state_revision:
            return self.read(now_ms)  # a read was faster, and may have seen later changes
        # A read in flight may show the state before the change, which would be taken for a
        # registry that fell back.
        self._read_again = self._read_again or self._reading
        self.view = replace(self.view, state=state, state_revision=revision)
        return self._remember()

    # -- believing -----------------------------------------------------------------------------

    def distrust(self) -> str:
        """Why the registry cannot be trusted, empty where it can."""
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
        """Save the newest state seen, durably: an older one will not be trusted.

        No decision is based on that state before it is saved. If a full disk has no room for the
        file, it is kept in memory and saved at a later scan.
        """
        state = self.view.state
        if state is not None:
            known = self.membership
            self.membership = replace(known, group_id=state.group_id, version=state.version)
        return self._save()

    def _save(self) -> list[Effect]:
        if self.noting or self.membership == self.saved:
            return []  # the running save comes first, or there is nothing new
        self.noting = True
        return [Note(self.membership)]

    def is_marked(self, start: Start) -> bool:
        """Whether this directory will recognise a start as its own, so that it may be claimed."""
        return start in self.saved.marks

    def mark(self, start: Start, row: Start | None) -> list[Effect]:
        """Save a start that is to be claimed in place of an entry of the registry."""
        if start in self.membership.marks:
            return []  # a full disk has no room now: marked at a later scan
        self.membership = replace(self.membership, marks=start.marked(row, self.membership.marks))
        return self._save()

    def noted(self, noted: Membership | None) -> list[Effect]:
        """A save has ended; None: the disk has no room now."""
        self.noting = False
        self.saved = noted or self.saved
        return self._save() if noted is not None else []  # a newer state, if one was seen meanwhile
