"""What an observer who sees everything knows, and the invariants it checks after every event."""

from collections import Counter
from typing import TYPE_CHECKING

from ha.epochs import EpochEntry, common_end
from ha.groupstate import Replica, SyncStateSet
from ha.master import Master
from ha.progress import ConnectionState

TAIL_BYTES = 32  # less than any record

if TYPE_CHECKING:
    from sim.etcd import SimEtcd
    from sim.node import Node


class Violation(Exception):
    """A promise was broken: our bug."""


class Ghost:
    """Who has ever held what, and what was promised.

    held: per epoch and replica, the log end that the replica has had (synced, where
    acknowledgements are durable) while it followed or led that epoch.
    """

    def __init__(self, needed: int, durable: bool, etcd: "SimEtcd | None" = None) -> None:
        """etcd: of an elected group, whose SyncStateSet says who must hold what."""
        self.needed = needed
        self.durable = durable
        self.etcd = etcd
        self.held: dict[tuple[int, Replica], int] = {}
        self.leaders: dict[int, str] = {}
        self.promised: dict[str, int] = {}
        self.sure: tuple[tuple[EpochEntry, ...], int] = ((), 0)  # lineage and end of what is
        self.sure_tail = b""  # its last bytes: a history does not tell whose a segment's blank is
        self.confirmed: dict[str, int] = {}
        self.heard: dict[str, int] = {}  # what each node has heard to be confirmed
        self.safe_end = 0  # all below was once held by enough nodes
        self.marks: Counter[str] = Counter()
        self.light_ends: dict[str, set[int]] = {}  # where light queues were forgotten

    def mark(self, what: str) -> None:
        """Something worth seeing was seen."""
        self.marks[what] += 1

    def forgotten(self, name: str, end: int) -> None:
        """A light queue was forgotten: nobody needs what it has below its end."""
        self.mark("forgotten")
        self.light_ends.setdefault(name, set()).add(end)

    # -- what happens --------------------------------------------------------------------------

    def started(self, node: "Node") -> None:
        """A node begins."""
        self.confirmed.pop(node.name, None)
        if self.etcd is not None:
            self._must_be_complete(node, "came back")

    def leads(self, node: "Node", epoch: int) -> None:
        """A node was elected: I2, and it must have everything that was ever acknowledged."""
        self.mark("elected")
        if self.leaders.setdefault(epoch, node.name) != node.name:
            raise Violation(f"{node.name} leads epoch {epoch}, as {self.leaders[epoch]} did")
        if epoch > 1:
            self.mark("failed_over")
        self._must_be_complete(node, "was elected", always=True)

    def members_changed(self, nodes: "list[Node]") -> None:
        """The registry has another SyncStateSet: whoever is in it has everything, I1."""
        for node in nodes:
            if node.up:
                self._must_be_complete(node, "is in the set")

    def _must_be_complete(
        self, node: "Node", what: str, always: bool = False, found_out: bool = False
    ) -> None:
        """I1: a member of the SyncStateSet holds every acknowledged put."""
        machine = node.master or node.slave
        assert self.etcd is not None, "asked of elected groups"
        assert machine is not None, "a node that runs"
        truth = self.etcd.truth
        members = truth.sync_state_set if truth is not None else frozenset()
        if not always and Replica(node.name, node.incarnation) not in members:
            return
        if not found_out and (node.older == "same run" or (node.older and not always)):
            return  # an older copy: the others will find it out
        entries, end = self.sure
        mine = machine.history.entries
        shared, _ = common_end(entries, end, mine, node.store.log.max_offset)
        if shared < end:
            raise Violation(f"{node.name} {what} with {shared} of {end} acknowledged bytes")
        if node.log_bytes(end - len(self.sure_tail), end) != self.sure_tail:
            raise Violation(f"{node.name} {what} with other bytes before {end}, acknowledged ones")

    def died(self, node: "Node") -> None:
        """A node ends."""
        self.confirmed.pop(node.name, None)

    def lost_power(self, node: "Node") -> None:
        """A machine ends."""
        self.mark("power_cut")
        self.heard.pop(node.name, None)

    def sync_failed(self, node: "Node") -> None:
        """A sync failed; its page cache is not what the platter has."""
        self.mark("sync_failed")
        node.lost_power = node.needs_reboot = node.tainted = True

    def disk_replaced(self, node: "Node") -> None:
        """A node's directory is an older copy now; what it has had stays true (acknowledgements
        of it may be on their way)."""
        self.heard.pop(node.name, None)
        self.promised.pop(node.name, None)

    def applied(self, node: "Node") -> None:
        """A slave took something in: its log must be the master's."""
        slave = node.slave
        assert slave is not None, "slaves apply"
        if slave.truncated_bytes > node.truncated_bytes:
            node.truncated_bytes = slave.truncated_bytes
            self.mark("truncated")
            log = node.store.log
            if slave.state is ConnectionState.HANDSHAKE and log.next_valid(log.max_offset):
                raise Violation(f"{node.name} cut its log, and records are left behind the cut")
        if slave.state is not ConnectionState.TRANSFER:
            return
        self._note(slave.epoch, node)
        if slave.epoch < self.promised.get(node.name, 0):
            raise Violation(f"{node.name} follows epoch {slave.epoch}, it had promised more")
        if node.older and self.etcd is not None:
            self._must_be_complete(node, "counts as a member", found_out=True)
        self.promised[node.name] = slave.epoch
        master = node.peers.get(node.follows)
        if master is None or not master.up or master.master is None:
            return
        if master.master.epoch == slave.epoch:
            end = node.store.log.max_offset
            if end > master.store.log.max_offset:
                raise Violation(f"{node.name} has {end}, its master {master.store.log.max_offset}")
            start = max(node.store.log.min_offset, end - 2048)
            if node.log_bytes(start, end) != master.log_bytes(start, end):
                raise Violation(f"{node.name} holds other bytes than its master in {start}..{end}")
            if end == master.store.log.max_offset:
                node.lost_power = False
                node.older = master.older

    def _note(self, epoch: int, node: "Node") -> None:
        key = (epoch, Replica(node.name, node.incarnation))
        store = node.store
        end = store.flushed_offset if self.durable else store.log.max_offset
        if end > self.held.get(key, 0):
            self.held[key] = end

    def acknowledged(self, node: "Node", end: int, master: Master) -> None:
        """A master says OK: enough nodes must hold the put, I4."""
        if end > self.safe_end:
            self._must_be_held(node, master.epoch, end, "acknowledged")
        if end > self.sure[1]:
            self.sure = (master.history.entries, end)
            self.sure_tail = node.log_bytes(end - TAIL_BYTES, end)

    def _must_be_held(self, node: "Node", epoch: int, end: int, what: str) -> None:
        self._note(epoch, node)
        needed = self.needed
        if self.etcd is not None and self.etcd.truth is not None:
            members = self.etcd.truth.sync_state_set
            self._whole_set_holds(node, epoch, end, what, members)
            if what == "confirmed":  # a group of one has nobody to wait for, and answers no put
                needed = min(needed, len(members))
        nodes = {r.node for (e, r), held in self.held.items() if e == epoch and held >= end}
        if len(nodes) < needed:
            raise Violation(
                f"{node.name} {what} {end} in epoch {epoch}, held by {sorted(nodes)} only"
            )
        self.safe_end = end

    def _whole_set_holds(
        self, node: "Node", epoch: int, end: int, what: str, members: SyncStateSet
    ) -> None:
        """I4: whoever the registry has in the set must hold it, whatever the master believes."""
        for replica in sorted(members):
            held = self.held.get((epoch, replica), 0)
            if held < end and not self._holds_by_a_later_epoch(node, epoch, end, replica):
                raise Violation(
                    f"{node.name} {what} {end} in epoch {epoch}, {replica} of the set has {held}"
                )

    def _holds_by_a_later_epoch(self, node: "Node", epoch: int, end: int, replica: Replica) -> bool:
        """Tell whether a replica got a master's bytes from that one's successor.

        An old master answers until its lease's deadline: what all had whom it asked, the next one
        has, and so has whoever came in under that one.
        """
        other = node.peers[replica.node]
        machine = other.master or other.slave
        if not other.up or other.incarnation != replica.incarnation or machine is None:
            return False
        if all(e <= epoch or held < end for (e, r), held in self.held.items() if r == replica):
            return False
        mine = node.master.history.entries if node.master is not None else ()
        shared, _ = common_end(mine, end, machine.history.entries, other.store.log.max_offset)
        return shared >= end

    def check(self, node: "Node") -> None:
        """After every event of a node: what must hold always."""
        store = node.store
        log = store.log
        heard = store.replicated_offset or 0
        if not node.older and heard > self.heard.get(node.name, 0):
            self.heard[node.name] = heard
        if store.flushed_offset > log.wrote_offset:
            raise Violation(f"{node.name} claims {store.flushed_offset} of {log.wrote_offset}")
        if node.master is not None:
            confirmed = store.replicated_offset or 0
            if confirmed < self.confirmed.get(node.name, 0):
                raise Violation(f"{node.name}: the confirm offset fell to {confirmed}")
            self.confirmed[node.name] = confirmed
            self._note(node.master.epoch, node)
            if confirmed > self.safe_end:
                self._must_be_held(node, node.master.epoch, confirmed, "confirmed")
            if confirmed > log.max_offset:
                raise Violation(f"{node.name} confirms {confirmed}, its log ends before")
        elif node.slave is not None and node.slave.state is ConnectionState.TRANSFER:
            self._note(node.slave.epoch, node)
