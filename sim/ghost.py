"""The omniscient observer: what it knows, and the invariants that it checks after every event.

It trusts bytes only. Where a log ends, how much of it is on disk, what is confirmed and what a node
has promised is read from the simulated disks (`sim.platter`), and compared with what the code under
test claims.
"""

from collections import Counter
from collections.abc import Iterable

from duolog_server.ha.groupstate import Replica, SyncStateSet
from duolog_server.ha.master import Master
from duolog_server.ha.progress import ConnectionState
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.queueends import QueueKey
from duolog_server.store.record import Record
from duolog_server.store.status import BrokerRole
from sim.etcd import SimEtcd
from sim.watched import Watched
from sim.witness import Violation, Witness

__all__ = ["Ghost", "Violation"]

# Epoch, node and its process: roles by hand may give a number twice, an older copy even to the same
# node.
Mastership = tuple[int, str, int]


class Ghost:
    """Who has ever held what, and what was promised.

    logs: the bytes of each mastership, as its master wrote them. held: per mastership and replica,
    how many of these the replica has had (on disk, where acknowledgements are durable) while it
    followed or led. safe: the bytes that were confirmed, and what an ASYNC_MASTER wrote: its
    slaves show what they have of it, and it loses nothing meanwhile. sure: those that were
    acknowledged.
    """

    def __init__(self, needed: int, durable: bool, etcd: SimEtcd | None = None) -> None:
        """etcd: of an elected group, whose SyncStateSet says who must hold what."""
        self.needed = needed
        self.durable = durable
        self.etcd = etcd
        self.logs: dict[Mastership, bytearray] = {}
        self.held: dict[tuple[Mastership, Replica], int] = {}
        self.leaders: dict[tuple[str, int], str] = {}
        self.safe = bytearray()
        self.sure = bytearray()
        self.confirmed: dict[str, int] = {}
        self.told: dict[str, int] = {}  # what each node knows to be confirmed
        self.marks: Counter[str] = Counter()
        self.light_ends: dict[str, set[int]] = {}  # where light queues were forgotten
        self.witness = Witness()
        self._proved: dict[str, int] = {}  # how much of what a node shows is known to be safe
        self._noted_at: dict[tuple[Mastership, Replica], tuple[int, ...]] = {}
        self._archive: dict[QueueKey, list[Record]] = {}
        self._opened = etcd is None

    def mark(self, what: str) -> None:
        """Count an event that a large number of runs must meet."""
        self.marks[what] += 1

    def forgotten(self, name: str, end: int) -> None:
        """A light queue was forgotten: its messages below the end need not be kept."""
        self.mark("forgotten")
        self.light_ends.setdefault(name, set()).add(end)

    # -- events --------------------------------------------------------------------------

    def started(self, node: Watched) -> None:
        """A node begins."""
        self._forget(node)
        if self.etcd is not None:
            self._must_be_complete(node, "came back")

    def leads(self, node: Watched, epoch: int) -> None:
        """A node was elected: I2; it must have everything that was ever acknowledged."""
        self.mark("elected")
        assert node.machine is not None, "an elected node"
        group = node.machine.membership.group_id
        if self.leaders.setdefault((group, epoch), node.name) != node.name:
            first = self.leaders[group, epoch]
            raise Violation(f"{node.name} leads epoch {epoch}, as {first} did")
        if epoch > 1:
            self.mark("failed_over")
        if node.older:
            self.mark("older_copy_led")  # it told readers of an end before what they had read
        self.witness.leads(node, epoch)
        truth = self.etcd.truth if self.etcd is not None else None
        if truth is None or truth.epoch <= epoch:
            self._must_be_complete(node, "was elected", always=True)
        else:  # paused since it won: the lease is over, and the next master has acknowledged more
            self.mark("led_too_late")

    def members_changed(self, nodes: Iterable[Watched]) -> None:
        """The registry has another SyncStateSet: every member has everything, I1."""
        for node in nodes:
            if node.up:
                self._must_be_complete(node, "is in the set")

    def _must_be_complete(
        self, node: Watched, what: str, always: bool = False, found_out: bool = False
    ) -> None:
        """I1: a member of the SyncStateSet holds every acknowledged put."""
        assert self.etcd is not None, "asked of elected groups"
        truth = self.etcd.truth
        members = truth.sync_state_set if truth is not None else frozenset()
        if not always and Replica(node.name, node.incarnation) not in members:
            return
        if not found_out and (node.older == "same run" or (node.older and not always)):
            return  # an older copy: the others will detect it
        missing = self._first_missing(node, self.sure, durable=False)
        if missing < len(self.sure):
            raise Violation(
                f"{node.name} {what} with {missing} of {len(self.sure)} acknowledged bytes"
            )

    @staticmethod
    def _first_missing(
        node: Watched, wanted: bytearray, durable: bool, start: int = 0, end: int | None = None
    ) -> int:
        """How far a node's log is these bytes, from an offset on and until another."""
        first = max(node.bytes.first, start)
        return node.bytes.same_until(first, wanted[first:end], durable)

    def failed(self, node: Watched) -> None:
        """A node's disk fails in the middle of an event: what it has confirmed by then counts."""
        if node.master is not None:
            self._check_master(node, node.bytes.end())

    def died(self, node: Watched) -> None:
        """A node ends."""
        self._forget(node)

    def _forget(self, node: Watched) -> None:
        self.confirmed.pop(node.name, None)
        self._proved.pop(node.name, None)
        self.witness.forget(node)

    def lost_power(self, node: Watched) -> None:
        """A machine ends."""
        self.mark("power_cut")
        self.told.pop(node.name, None)

    def sync_failed(self, node: Watched) -> None:
        """A sync failed; its page cache is not what the platter has."""
        self.mark("sync_failed")
        node.lost_power = node.needs_reboot = node.tainted = True

    def disk_replaced(self, node: Watched) -> None:
        """A node's directory is an older copy now, or an empty one.

        What it has had stays true: acknowledgements of it may be on their way.
        """
        self._forget(node)
        self.told.pop(node.name, None)
        self.witness.disk_replaced(node)

    def applied(self, node: Watched) -> None:
        """A slave applied bytes: its log must equal the master's."""
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
        self.witness.follows(node, slave.epoch)
        if node.older and self.etcd is not None:
            self._must_be_complete(node, "counts as a member", found_out=True)
        key = self._followed(node)
        end = node.bytes.end()
        self._note(key, node, end)
        wrote = self.logs.get(key)
        if wrote is None:
            raise Violation(f"{node.name} follows {key}, which has never begun")
        if end > len(wrote):
            raise Violation(f"{node.name} has {end}, its master {len(wrote)}")
        start = max(node.bytes.first, end - 2048)
        if node.bytes.same_until(start, wrote[start:end]) < end:
            raise Violation(f"{node.name} holds other bytes than its master in {start}..{end}")
        if end == len(wrote):
            node.lost_power = node.lost_disk = False
            master = node.peers[slave.master_node]
            if master.up and master.boot == key[2]:
                node.older = master.older

    # -- what expires ------------------------------------------------------------------

    def archive(self, store: MessageStore) -> None:
        """Keep all records that queues of a node show, before it deletes the first of them."""
        for topic, queue_id in store.queue_keys():
            low, high = store.queue_range(topic, queue_id)
            found = (store.record_at(topic, queue_id, QueueOffset(k)) for k in range(low, high))
            self._archive[topic, queue_id] = [record for record in found if record is not None]

    def expired(self, node: Watched, topic: str, queue_id: int, offset: int = 0) -> list[Record]:
        """What a node showed of a queue from an offset on, and has deleted since."""
        first = node.store.log.min_offset
        kept = self._archive.get((topic, queue_id), ()) if first else ()
        return [r for r in kept if r.physical_offset < first and r.queue_offset >= offset]

    # -- copies ------------------------------------------------------------------------

    @staticmethod
    def _followed(node: Watched) -> Mastership:
        """Whose log a slave copies; the tables that came with the handshake name the process."""
        assert node.slave is not None, "slaves follow"
        process = node.adopted.rpartition(b" ")[2]
        return node.slave.epoch, node.slave.master_node, int(process or 0)

    def _capture(self, node: Watched, end: int) -> Mastership:
        """Read what a master has written since the last check."""
        assert node.master is not None, "masters write"
        key = (node.master.epoch, node.name, node.boot)
        if key not in self.logs:  # what has expired on it was confirmed
            self.logs[key] = self.safe[: node.bytes.first]
        wrote = self.logs[key]
        if end < len(wrote):
            raise Violation(f"{node.name} wrote {len(wrote)} bytes in epoch {key[0]}, has {end}")
        if end > len(wrote):
            wrote += node.bytes.read(len(wrote), end).tobytes()
        self._note(key, node, end)
        return key

    def _note(self, key: Mastership, node: Watched, end: int) -> None:
        wrote = self.logs.get(key)
        if wrote is None:
            return
        who = (key, Replica(node.name, node.incarnation))
        before = self.held.get(who, 0)
        if before >= len(wrote):
            return
        # Only these change what it has of that: reading the bytes is costly.
        state = (len(wrote), end, node.disk.changes, node.disk.syncs)
        if self._noted_at.get(who) != state:
            self._noted_at[who] = state
            self.held[who] = max(before, self._first_missing(node, wrote, self.durable, before))

    def accepts(self, node: Watched, master: Master, needed: int) -> None:
        """A master stores a put, or lets it wait: as many nodes as it says must be with it."""
        key = self._capture(node, node.bytes.end())
        nodes = {replica.node for (k, replica) in self.held if k == key}
        if len(nodes) < needed:
            raise Violation(f"{node.name} counts {needed} replicas, only {sorted(nodes)} joined")

    def acknowledged(self, node: Watched, body: bytes) -> None:
        """A master acknowledges a put: enough nodes must hold it, I4."""
        key = self._capture(node, node.bytes.end())
        end = node.bytes.record_end(body)
        if end < 0:
            raise Violation(f"{node.name} acknowledged {body[:24]!r}, which is not in its log")
        if end > len(self.safe) or node.ordered is BrokerRole.ASYNC_MASTER:
            self._must_be_held(node, key, end, "acknowledged")
        self._take(self.sure, key, end, f"{node.name} acknowledged")

    @staticmethod
    def stored(node: Watched, body: bytes) -> None:
        """A master says that a put is stored, and not that it is safe: it is in its log."""
        if node.bytes.record_end(body) < 0:
            raise Violation(f"{node.name} says that it stored {body[:24]!r}, which it did not")

    def _take(self, known: bytearray, key: Mastership, end: int, what: str) -> None:
        """More bytes are acknowledged; they follow those before them."""
        wrote = self.logs[key]
        common = min(len(known), end)
        if known[:common] != wrote[:common]:
            raise Violation(f"{what} {end} bytes in epoch {key[0]}, others than before")
        known += wrote[len(known) : end]

    def _must_be_held(self, node: Watched, key: Mastership, end: int, what: str) -> None:
        needed = 1 if node.ordered is BrokerRole.ASYNC_MASTER else self.needed
        if self.etcd is not None and self.etcd.truth is not None:
            for members in {state.sync_state_set for state in self.etcd.possible_states()}:
                self._whole_set_holds(node, key, end, what, members)
            if what == "confirmed":  # a group of one has nobody to wait for, and answers no put
                needed = min(needed, len(self.etcd.truth.sync_state_set))
        nodes = {r.node for (k, r), held in self.held.items() if k == key and held >= end}
        if len(nodes) < needed:
            raise Violation(
                f"{node.name} {what} {end} in epoch {key[0]}, held by {sorted(nodes)} only"
            )

    def _whole_set_holds(
        self, node: Watched, key: Mastership, end: int, what: str, members: SyncStateSet
    ) -> None:
        """I4: whoever the registry has in the set must hold it, whatever the master believes.

        An old master answers until its lease's deadline: what all had whom it asked, the next one
        has, and so has whoever came in under that one; so what a disk holds now counts as well.
        """
        for replica in sorted(members):
            if self.held.get((key, replica), 0) >= end:
                continue
            other = node.peers[replica.node]
            wrote = self.logs[key][:end]
            if (
                other.incarnation != replica.incarnation
                or self._first_missing(other, wrote, self.durable) < end
            ):
                held = self.held.get((key, replica), 0)
                raise Violation(
                    f"{node.name} {what} {end} in epoch {key[0]}, {replica} of the set has {held}"
                )

    # -- after every event ---------------------------------------------------------------------

    def check(self, node: Watched) -> None:
        """The invariants that always hold, during and after every event of a node."""
        told = node.store.replicated_offset or 0
        if not node.older and told > self.told.get(node.name, 0):
            self.told[node.name] = told
        end = node.bytes.end()
        self.witness.check(node, end)
        if node.master is not None:
            self._check_master(node, end)
        elif node.slave is not None and node.slave.state is ConnectionState.TRANSFER:
            self._note(self._followed(node), node, end)
        self._nothing_unsafe_shows(node, end)

    def settled(self, node: Watched) -> None:
        """An event was processed completely."""
        self.check(node)
        wrong = node.master.validate(node.mono()) if node.master is not None else ""
        wrong = wrong or (node.slave.validate() if node.slave is not None else "")
        wrong = wrong or (node.machine.validate() if node.machine is not None else "")
        if wrong:
            raise Violation(f"{node.name}: {wrong}")

    def _check_master(self, node: Watched, log_end: int) -> None:
        key = self._capture(node, log_end)
        confirmed = node.store.replicated_offset or 0
        if node.ordered is BrokerRole.ASYNC_MASTER:
            self._begin_again()
            end = node.store.log.before_blank(len(self.logs[key]))
            self._take(self.safe, key, end, f"{node.name} wrote")
        before = self.confirmed.get(node.name, 0)
        if confirmed < before:
            raise Violation(f"{node.name}: the confirm offset fell to {confirmed}")
        if confirmed > before:  # the next mastership may begin in the place of a blank
            self.confirmed[node.name] = node.store.log.before_blank(confirmed)
        if confirmed > log_end:
            raise Violation(f"{node.name} confirms {confirmed}, its log ends before")
        self._waits_for_all(node)
        # No message is lost with the blank at the end: another mastership may begin in its place.
        end = node.store.log.before_blank(confirmed) if confirmed > len(self.safe) else confirmed
        if end > len(self.safe):
            self._must_be_held(node, key, end, "confirmed")
            self._begin_again()
            self._take(self.safe, key, end, f"{node.name} confirmed")

    def _waits_for_all(self, node: Watched) -> None:
        """I4: a master requires whoever its own changes may bring in, before they are answered."""
        etcd, master = self.etcd, node.master
        if etcd is None or master is None or master.mandate is None or etcd.restored:
            return
        required = master.mandate.required
        for state in etcd.possible_states():
            if (state.master.node, state.epoch) != (node.name, master.epoch):
                continue
            missing = state.sync_state_set - required
            if missing:
                raise Violation(f"{node.name} does not wait for {sorted(missing)}, who may be in")

    def _begin_again(self) -> None:
        """Before a group is opened its only node may lose its log, and begin anew."""
        truth = self.etcd.truth if self.etcd is not None else None
        if truth is not None and truth.opened:
            self._opened = True
        if not self._opened:
            self.safe.clear()

    def _nothing_unsafe_shows(self, node: Watched, end: int) -> None:
        """Whatever its role, a node's readers see no byte that was not confirmed by enough."""
        if not self._opened:
            return
        shown = max(
            node.store.confirm_offset, node.store.known_confirmed, self.witness.noted_by(node)
        )
        proved = min(self._proved.get(node.name, 0), end)
        if shown > proved:
            proved = self._first_missing(node, self.safe, False, proved, shown)
            while proved < shown and (known := _damage_at(node, proved)):
                proved = self._first_missing(node, self.safe, False, known, shown)
            if proved < node.store.log.before_blank(shown):
                raise Violation(
                    f"{node.name} takes {shown} for confirmed, only {proved} of it is safe"
                )
        self._proved[node.name] = proved


def _damage_at(node: Watched, offset: int) -> int:
    """Where damage ends that a node knows of, and shows nobody; 0 for none at an offset."""
    known = node.store.log.corrupt_ranges
    return next((found.end for found in known if found.start <= offset < found.end), 0)
