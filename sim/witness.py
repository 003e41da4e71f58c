"""What a node says of itself, held against what its disk would have after a power cut.

A sync that vouches for too much, a promise that is not written down or not kept, an epoch without
its barrier: each is harmless until much later, so each is looked for where it happens.
"""

import re
from typing import Any

from duolog_server.ha.epochs import EPOCH_TOPIC
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slave import Slave
from sim.platter import Noted, identity_on, marks_on, membership_on, noted_on
from sim.watched import Watched

# In the raw bytes, not by the queue of barriers, which may lack some.
BARRIER = re.compile(rb'\{"epoch":(\d+),"nonce":"([0-9a-f]{16})"')


class Violation(Exception):
    """A promise was broken: our bug."""


class Witness:
    """Looks at each node after every event; what is costly only where something changed."""

    def __init__(self) -> None:
        self.promised: dict[str, int] = {}  # the newest epoch that a node has answered to
        self.groups: dict[str, tuple[str, int]] = {}  # of each node, and the newest version
        self.starts: dict[str, tuple[int, int]] = {}  # of each node: its process, and its number
        self._noted: dict[str, Noted] = {}
        self._flushed: dict[str, int] = {}
        self._last: dict[tuple[str, str], Any] = {}

    def forget(self, node: Watched) -> None:
        """Its process begins or ends: everything is looked at again."""
        self._flushed.pop(node.name, None)
        self._noted.pop(node.name, None)
        for key in [key for key in self._last if key[0] == node.name]:
            del self._last[key]

    def disk_replaced(self, node: Watched) -> None:
        """Its directory is an older copy or empty: it has promised what is written there."""
        self.promised[node.name] = int(identity_on(node.disk).get("promisedEpoch", 0))
        group, version, starts = membership_on(node.disk)
        self.groups.pop(node.name, None)
        if group:
            self.groups[node.name] = (group, version)
        self.starts[node.name] = (0, starts)

    def noted_by(self, node: Watched) -> int:
        """What its disk calls confirmed, as it was looked at last."""
        return self._noted.get(node.name, Noted()).confirmed

    def promises(self, node: Watched, epoch: int) -> None:
        """A node answered to an epoch: it accepts nothing older from now on, I5."""
        self.promised[node.name] = max(epoch, self.promised.get(node.name, 0))

    def follows(self, node: Watched, epoch: int) -> None:
        """A node takes bytes of an epoch."""
        self._not_older(node, epoch, "follows")
        machine = node.slave
        assert machine is not None, "slaves follow"
        if machine.identity.promised_epoch < epoch:
            raise Violation(f"{node.name} follows epoch {epoch}, and has not promised it")
        self.promises(node, epoch)

    def decides(self, node: Watched, seen: int) -> None:
        """A node acts on a version of its group's state: that is on its disk first.

        So it will not believe a registry that is older, whatever happens to it next.
        """
        _, version, _ = membership_on(node.disk)
        if version < seen:
            raise Violation(f"{node.name} acts on version {seen}, its disk has {version}")

    @staticmethod
    def claims(node: Watched, number: int, run: str) -> None:
        """A node has the registry note its start: its own directory knows that one first."""
        if (number, run) not in marks_on(node.disk):
            raise Violation(f"{node.name} claims start {number}, which its disk does not mark")

    def leads(self, node: Watched, epoch: int) -> None:
        """A node opens an epoch."""
        self._not_older(node, epoch, "leads")
        self.promises(node, epoch)

    def _not_older(self, node: Watched, epoch: int, what: str) -> None:
        if epoch < self.promised.get(node.name, 0):
            raise Violation(
                f"{node.name} {what} epoch {epoch}, it had promised {self.promised[node.name]}"
            )

    # -- after every event ---------------------------------------------------------------------

    def check(self, node: Watched, end: int) -> None:
        """What a node claims is so. end: of its log, by its bytes."""
        self._end_is_true(node, end)
        self._note_is_true(node)
        self._flushed_is_true(node)
        machine = node.master or node.slave
        assert machine is not None, "a node that runs"
        if self._changed(node, "identity", machine.identity):
            self._identity_is_written(node, machine.identity)
        if self._changed(node, "history", machine.history.entries):
            self._epochs_have_barriers(node, machine.history.entries, end)
            self._barriers_are_known(node, machine.history.entries, end)
        if node.slave is not None and node.slave.state is ConnectionState.TRANSFER:
            followed = (node.slave.master_node, node.slave.epoch, node.adopted)
            if self._others(node, "tables", followed):
                self._tables_are_adopted(node, node.slave)
        if node.machine is not None:
            saved = node.machine.group.saved
            if self._changed(node, "membership", saved):
                found = membership_on(node.disk)
                self._stays_in_its_group(node, saved.group_id, saved.version)
                self._counts_its_starts(node, saved.starts)
                if found != (saved.group_id, saved.version, saved.starts):
                    raise Violation(f"{node.name} counts on {saved}, its disk has {found}")

    def _stays_in_its_group(self, node: Watched, group: str, version: int) -> None:
        """A registry that forgot the group, or knows an older state of it, is not believed."""
        if not group:
            return
        known = self.groups.setdefault(node.name, (group, version))
        if known[0] != group or version < known[1]:
            raise Violation(f"{node.name} was in group {known}, and believes {(group, version)}")
        self.groups[node.name] = (group, version)

    def _counts_its_starts(self, node: Watched, starts: int) -> None:
        """A process has a number that none before it had in this directory."""
        boot, known = self.starts.get(node.name, (0, 0))
        if starts < known or (starts == known and boot != node.boot):
            raise Violation(f"{node.name} is start {starts} of its directory, {known} was before")
        self.starts[node.name] = (node.boot, starts)

    @staticmethod
    def _tables_are_adopted(node: Watched, slave: Slave) -> None:
        """Whoever follows a master has its metadata, from the handshake on."""
        wanted = f"{slave.master_node} {slave.epoch} ".encode()
        if not node.adopted.startswith(wanted):
            raise Violation(f"{node.name} follows {wanted!r} with the tables of {node.adopted!r}")

    def _changed(self, node: Watched, what: str, value: object) -> bool:
        key = (node.name, what)
        if self._last.get(key) is value:
            return False
        self._last[key] = value
        return True

    def _others(self, node: Watched, what: str, values: tuple[object, ...]) -> bool:
        key = (node.name, what)
        if self._last.get(key) == values:
            return False
        self._last[key] = values
        return True

    @staticmethod
    def _end_is_true(node: Watched, end: int) -> None:
        log = node.store.log
        if end != log.wrote_offset and not log.corrupt_ranges and node.disk.size("commitlog") >= 0:
            raise Violation(
                f"{node.name} says its log ends at {log.wrote_offset}, it does at {end}"
            )

    def _note_is_true(self, node: Watched) -> None:
        """A kill makes a node forget nothing of what it has called confirmed."""
        note = node.store.checkpoint.note
        claimed = max(note.confirmed, node.store.replicated_offset or 0)
        known = self._noted.get(node.name)
        if known is None or known.confirmed != claimed or known.durable != note.durable:
            known = self._noted[node.name] = noted_on(node.disk)
        if known.confirmed < claimed:
            raise Violation(f"{node.name} calls {claimed} confirmed, and has noted {known}")

    def _flushed_is_true(self, node: Watched) -> None:
        """Whatever is called flushed, or noted as durable, is on the platter, under its name."""
        claimed = max(node.store.flushed_offset, self._noted[node.name].durable)
        before = min(self._flushed.get(node.name, 0), claimed)
        start = max(before, node.bytes.first)
        if claimed > start:
            seen = node.bytes.read(start, claimed).tobytes()
            there = node.bytes.same_until(start, seen, durable=True)
            if there < claimed:
                raise Violation(f"{node.name} calls {claimed} flushed, its disk has {there}")
        self._flushed[node.name] = claimed

    @staticmethod
    def _identity_is_written(node: Watched, identity: Any) -> None:
        found = identity_on(node.disk)
        wanted = {
            "incarnation": f"{identity.incarnation:016x}",
            "promisedEpoch": identity.promised_epoch,
            "confirmedOnly": identity.confirmed_only,
        }
        if any(found.get(key) != value for key, value in wanted.items()):
            raise Violation(f"{node.name} goes by {wanted}, its disk has {found}")

    @staticmethod
    def _epochs_have_barriers(node: Watched, entries: tuple[Any, ...], end: int) -> None:
        """Every epoch that a node knows of begins with its barrier, in this node's own log."""
        first = node.bytes.first
        if not end:  # its log begins where its master's does, whose first segments may have expired
            first = max(other.bytes.first for other in node.peers.values())
        for entry in entries:
            if node.store.log.corrupt_ranges or entry.start < first:
                continue
            size = int.from_bytes(node.bytes.read_head(entry.start)[:4], "big")
            record = node.bytes.read(entry.start, entry.start + size).tobytes()
            barrier = f'"epoch":{entry.epoch},"nonce":"{entry.nonce:016x}"'.encode()
            if entry.start >= end or EPOCH_TOPIC.encode() not in record or barrier not in record:
                raise Violation(
                    f"{node.name} knows epoch {entry.epoch} from {entry.start}, and its log of "
                    f"{end} bytes has no barrier there"
                )

    @staticmethod
    def _barriers_are_known(node: Watched, entries: tuple[Any, ...], end: int) -> None:
        """Every barrier in this node's own log begins an epoch that it knows of."""
        if node.store.log.corrupt_ranges:
            return
        known = {(entry.epoch, f"{entry.nonce:016x}") for entry in entries}
        for epoch, nonce in BARRIER.findall(node.bytes.read(node.bytes.first, end).tobytes()):
            if (int(epoch), nonce.decode()) not in known:
                raise Violation(
                    f"{node.name} has a barrier of epoch {epoch.decode()} in its log, and does not "
                    "know that epoch"
                )
