"""What one etcd carries: the leases of many replica groups, and what a node reads of them.

python -m bench.registry [--groups 1000] [--seconds 10]

Each group has three registrations. Measured are readings of them and changes; then each gets a
lease that is renewed three times in its life, as nodes do it, from a few processes. At last a tenth
of the leases expires at once: how long until a watcher of all groups, the code of a node, knows all
of them? etcd is started on this machine, on 127.0.0.1 only, with its disk in TMPDIR.
"""

import argparse
import multiprocessing
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import grpc

from bench.harness import Figure, fresh_directory, print_table
from bench.shards import cpu_seconds
from duolog_server.chaos.localetcd import LocalEtcd
from duolog_server.ha.groupstate import Keys, Registration, Replica, View, cluster_prefix
from duolog_server.ha.registry import Put, Transaction
from duolog_server.node.election.etcd import EtcdRegistry
from duolog_server.node.election.leasekeeper import RENEWALS
from duolog_server.node.election.registrywatch import RegistryWatch
from duolog_server.node.runtime.config import RegistrySection
from duolog_server.node.wire import etcd_pb2 as wire
from duolog_server.node.wire import etcd_pb2_grpc as stubs

CLUSTER = "bench"
NODES = 3  # of a group
LEASE_SECONDS = RegistrySection().lease_seconds
PROCESSES = 4  # that hold the leases
EXPIRES = 10  # one lease of so many
WATCHERS = 50
PUTS = 100  # in a transaction
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Part:
    """The leases of one process: those of every PROCESSES-th group."""

    endpoint: str
    first: int
    groups: int

    @property
    def registrations(self) -> list[tuple[str, bytes]]:
        """Keys and values."""
        found = []
        for group in range(self.first, self.groups, PROCESSES):
            keys = Keys(CLUSTER, f"group-{group:05d}")
            for node in range(NODES):
                name = f"node-{group:05d}-{node}"
                row = Registration(Replica(name, group), f"{name}:8081", f"{name}:8082")
                found.append((keys.replica(name), row.to_bytes()))
        return found


def renewal(lease: int) -> wire.LeaseKeepAliveRequest:
    """The request."""
    return wire.LeaseKeepAliveRequest(ID=lease)


def hold(part: Part, registered: Barrier, expire: Event, ended: Event) -> None:
    """Register and renew, evenly over the time. After `expire`, a tenth of the leases is renewed
    once more, together, and no more.
    """
    held: list[int] = []

    def requests() -> Iterator[wire.LeaseKeepAliveRequest]:
        let_go: set[int] = set()
        while not ended.wait(0.001):
            began, leases = time.monotonic(), list(held)
            for number, lease in enumerate(leases):
                due = began + number * LEASE_SECONDS / RENEWALS / len(leases)
                if ended.wait(max(0.0, due - time.monotonic())):
                    return
                if expire.is_set() and not let_go:
                    let_go.update(held[::EXPIRES])
                    yield from map(renewal, let_go)
                if lease not in let_go:
                    yield renewal(lease)

    with grpc.insecure_channel(part.endpoint) as channel:
        leases, kv = stubs.LeaseStub(channel), stubs.KVStub(channel)
        answers = leases.LeaseKeepAlive(requests())
        renewing = threading.Thread(target=lambda: deque(answers, maxlen=0))
        renewing.start()  # before the first of many leases expires
        for key, value in part.registrations:
            lease = leases.LeaseGrant(wire.LeaseGrantRequest(TTL=LEASE_SECONDS)).ID
            put = wire.PutRequest(key=key.encode(), value=value, lease=lease)
            kv.Txn(wire.TxnRequest(success=[wire.RequestOp(request_put=put)]))
            held.append(lease)
        registered.wait()
        renewing.join()


@contextmanager
def holders(endpoint: str, groups: int) -> Iterator[Event]:
    """Processes that have registered and renew; the event lets a tenth expire."""
    context = multiprocessing.get_context("spawn")
    registered, expire, ended = context.Barrier(PROCESSES + 1), context.Event(), context.Event()
    parts = [Part(endpoint, first, groups) for first in range(PROCESSES)]
    processes = [
        context.Process(target=hold, args=(part, registered, expire, ended), daemon=True)
        for part in parts
    ]
    for process in processes:
        process.start()
    try:
        registered.wait(PATIENCE_SECONDS + groups / 5)
        yield expire
    finally:
        ended.set()
        for process in processes:
            process.join(10)
            process.kill()


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has ended")


class Watcher:
    """A node's view of all groups, in a thread."""

    def __init__(self, registry: EtcdRegistry) -> None:
        self.views: dict[str, View] = {}
        self.changes = 0
        self._ended = threading.Event()
        watch = RegistryWatch(registry, CLUSTER, self._learn)
        self._thread = threading.Thread(target=watch.run, args=(self._ended,), daemon=True)
        self._thread.start()

    def _learn(self, views: dict[str, View]) -> None:
        self.views, self.changes = views, self.changes + 1

    @property
    def alive(self) -> int:
        """Registered nodes of all groups."""
        return sum(len(view.replicas) for view in self.views.values())

    def until(self, alive: int) -> float:
        """Wait for so many nodes; seconds. Raises ValueError."""
        began = time.monotonic()
        while self.alive != alive:
            if time.monotonic() - began > PATIENCE_SECONDS:
                raise ValueError(f"{self.alive} nodes are registered instead of {alive}")
            time.sleep(0.002)
        return time.monotonic() - began

    def stop(self) -> None:
        """End, after the registry was closed."""
        self._ended.set()
        self._thread.join(10)


def measured(groups: int, seconds: float) -> list[Figure]:
    """The figures."""
    with fresh_directory() as root:
        etcd = LocalEtcd(root)
        etcd.start()
        registry = EtcdRegistry(etcd.endpoints, 30.0)
        pid = etcd.pids[0]
        idle = rss_mib(pid)
        watcher = Watcher(registry)
        try:
            for first in range(PROCESSES):
                held = Part("", first, groups).registrations
                for at in range(0, len(held), PUTS):
                    rows = tuple(Put(*row) for row in held[at : at + PUTS])
                    registry.commit(Transaction((), rows))
            watcher.until(groups * NODES)
            figures = [
                reading(registry, pid, Keys(CLUSTER, "group-00000").prefix, 1000),
                reading(registry, pid, cluster_prefix(CLUSTER), 20),
                changes(registry, watcher, pid),
            ]
            with holders(etcd.endpoints[0], groups) as expire:
                figures.append(renewals(groups, seconds, pid, idle))
                return [*figures, expiry(groups, watcher, pid, expire)]
        finally:
            registry.close()
            watcher.stop()
            etcd.stop()


def renewals(groups: int, seconds: float, pid: int, idle_mib: float) -> Figure:
    """What etcd takes while leases are renewed and nothing changes."""
    began, cpu = time.monotonic(), cpu_seconds([pid])
    time.sleep(seconds)
    share = (cpu_seconds([pid]) - cpu) / (time.monotonic() - began)
    rate = groups * NODES * RENEWALS / LEASE_SECONDS
    now = rss_mib(pid)
    return Figure(
        f"{groups * NODES:,} leases renewed",
        "",
        f"{rate:,.0f} renewals/s, {share:.1%} of a core, {1e6 * share / rate:,.0f} us each",
        f"etcd {now:,.0f} MiB, idle {idle_mib:,.0f} MiB",
        True,
        {"renewals_per_s": rate, "cpu_share": share, "rss_mib": now, "idle_rss_mib": idle_mib},
    )


def reading(registry: EtcdRegistry, pid: int, prefix: str, rounds: int) -> Figure:
    """Readings of keys, one after the other."""
    began, cpu = time.monotonic(), cpu_seconds([pid])
    for _ in range(rounds):
        rows = registry.get(prefix).rows
    took, used = (time.monotonic() - began) / rounds, (cpu_seconds([pid]) - cpu) / rounds
    size = sum(len(key) + len(row.value) for key, row in rows.items())
    return Figure(
        f"{len(rows):,} keys read",
        "",
        f"{1e3 * took:,.2f} ms, {1e6 * used:,.0f} us of etcd",
        f"{size:,} bytes",
        True,
        {"seconds": took, "cpu_s": used, "bytes": size},
    )


def changes(registry: EtcdRegistry, watcher: Watcher, pid: int) -> Figure:
    """A change with one watcher and with many: what one more costs."""
    alone, took = change(registry, watcher, pid)
    revision = registry.get(cluster_prefix(CLUSTER)).revision
    stop = threading.Event()

    def follow() -> None:
        for _ in registry.changes(cluster_prefix(CLUSTER), revision, PATIENCE_SECONDS):
            if stop.is_set():
                return

    others = [threading.Thread(target=follow, daemon=True) for _ in range(WATCHERS)]
    for other in others:
        other.start()
    change(registry, watcher, pid)  # all of them watch now
    many, took_many = change(registry, watcher, pid)
    stop.set()
    change(registry, watcher, pid, rounds=1)
    each = max(0.0, many - alone) / WATCHERS
    return Figure(
        "a change until a watcher knows it",
        "",
        f"{1e3 * took:.2f} ms, {1e6 * alone:,.0f} us of etcd, {1e6 * each:.1f} us more a watcher",
        f"beside {WATCHERS} others {1e3 * took_many:.2f} ms",
        True,
        {"change_s": took, "cpu_s": alone, "watcher_cpu_s": each},
    )


def change(
    registry: EtcdRegistry, watcher: Watcher, pid: int, rounds: int = 200
) -> tuple[float, float]:
    """Processor time of etcd for a change, and seconds until the watcher knows it."""
    began, cpu, keys = time.monotonic(), cpu_seconds([pid]), Keys(CLUSTER, "group-00000")
    for _ in range(rounds):
        before = watcher.changes
        registry.commit(Transaction((), (Put(keys.drained("nobody"), b"{}"),)))
        while watcher.changes == before:
            time.sleep(0.0001)
    return (cpu_seconds([pid]) - cpu) / rounds, (time.monotonic() - began) / rounds


def expiry(groups: int, watcher: Watcher, pid: int, expire: Event) -> Figure:
    """A tenth of the leases expires; counted from the first expiry that the watcher learns."""
    parts = [Part("", first, groups).registrations for first in range(PROCESSES)]
    gone = sum(len(held[::EXPIRES]) for held in parts)
    whole = groups * NODES
    if watcher.alive != whole:
        raise ValueError(f"{whole - watcher.alive} leases expired early: this machine is too busy")
    expire.set()
    asked, cpu = time.monotonic(), cpu_seconds([pid])
    while watcher.alive == whole:
        if time.monotonic() - asked > PATIENCE_SECONDS:
            raise ValueError("no lease expired")
        time.sleep(0.002)
    first = time.monotonic()
    watcher.until(whole - gone)
    known, total = time.monotonic() - first, time.monotonic() - asked
    used = cpu_seconds([pid]) - cpu
    return Figure(
        f"{gone:,} leases expire at once",
        "",
        f"all known {known:.2f} s after the first, {total:.2f} s after the last renewals",
        f"lease {LEASE_SECONDS} s, {used / total:.1%} of a core",
        True,
        {"leases": gone, "known_s": known, "total_s": total, "cpu_share": used / total},
    )


def main(words: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of renewals")
    given = parser.parse_args(words)
    print_table(measured(given.groups, given.seconds))


if __name__ == "__main__":
    main()
