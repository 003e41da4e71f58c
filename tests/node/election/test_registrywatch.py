"""What a node knows of all groups, and what it asks the registry for that."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duolog_server.chaos.localetcd import LocalEtcd
from duolog_server.ha import groupstate
from duolog_server.ha.groupstate import Keys, Registration, Replica, View, cluster_prefix, groups_of
from duolog_server.ha.registry import (
    Changes,
    Delete,
    Put,
    Registry,
    RegistryUnavailable,
    Snapshot,
    Transaction,
)
from duolog_server.node.election import registrywatch
from duolog_server.node.election.etcd import EtcdRegistry
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.node.election.registrywatch import RegistryWatch
from tests.etcd import need_etcd
from tests.until import wait_until

CLUSTER = "many"


class Counted:
    """A registry whose requests are counted, and whose watches can be broken."""

    def __init__(self, registry: MemoryRegistry | EtcdRegistry) -> None:
        self.inner = registry
        self.requests: Counter[str] = Counter()
        self.broken = threading.Event()
        self.deaf = threading.Event()
        self.before_watch: Callable[[], None] = lambda: None

    def get(self, prefix: str) -> Snapshot:
        self.requests["get"] += 1
        return self.inner.get(prefix)

    def changes(self, prefix: str, after_revision: int, seconds: float) -> Iterator[Changes]:
        self.requests["changes"] += 1
        self.before_watch()
        # Short watches: each one goes on from where the last one ended.
        for found in self.inner.changes(prefix, after_revision, 0.2):
            if self.broken.is_set():
                raise RegistryUnavailable("broken")
            if not self.deaf.is_set():
                yield found


def registered(group: int, node: str) -> Put:
    row = Registration(Replica(node, 1), f"{node}:1", f"{node}:2")
    return Put(Keys(CLUSTER, f"g{group:04}").replica(node), row.to_bytes())


def fill(registry: Registry, groups: int) -> None:
    for at in range(0, groups, 40):
        some = range(at, min(groups, at + 40))
        rows = tuple(registered(group, node) for group in some for node in "abc")
        assert registry.commit(Transaction((), rows)) is not None


@contextlib.contextmanager
def watching(registry: Counted) -> Iterator[list[dict[str, View]]]:
    """The views that a watch has reported, while it runs."""
    learnt: list[dict[str, View]] = []
    ended = threading.Event()
    watch = RegistryWatch(registry, CLUSTER, learnt.append)  # type: ignore[arg-type]
    thread = threading.Thread(target=watch.run, args=(ended,))
    thread.start()
    try:
        yield learnt
    finally:
        ended.set()
        thread.join(30)
        assert not thread.is_alive()


def nodes(views: list[dict[str, View]], group: int) -> set[str]:
    view = views[-1].get(f"g{group:04}") if views else None
    return set(view.replicas) if view is not None else set()


def check_is_current(views: list[dict[str, View]], registry: Registry) -> None:
    """Raise AssertionError unless the views are those of a reading from anew."""
    read = groups_of(registry.get(cluster_prefix(CLUSTER)), CLUSTER)
    assert list(views[-1]) == list(read)
    assert {k: v.replicas for k, v in views[-1].items()} == {k: v.replicas for k, v in read.items()}


def test_a_change_costs_one_groups_view_and_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryRegistry()
    fill(memory, 1000)
    registry = Counted(memory)
    made: list[str] = []
    view_of = groupstate.view_of

    def noted(snapshot: Snapshot, keys: Keys) -> View:
        made.append(keys.group)
        return view_of(snapshot, keys)

    monkeypatch.setattr(registrywatch, "view_of", noted)
    with watching(registry) as views:
        wait_until(lambda: bool(views) and len(views[-1]) == 1000, "all groups")
        made.clear()
        before = views[-1]
        keys = Keys(CLUSTER, "g0007")
        memory.commit(Transaction((), (Delete(keys.replica("b")),)))
        wait_until(lambda: nodes(views, 7) == {"a", "c"}, "the node that is gone")
        memory.commit(Transaction((), (registered(1000, "a"),)))
        wait_until(lambda: nodes(views, 1000) == {"a"}, "a new group")
        assert set(before["g0007"].replicas) == {"a", "b", "c"}, "readers keep what they hold"
        gone = tuple(Delete(Keys(CLUSTER, "g1000").replica(node)) for node in "a")
        memory.commit(Transaction((), gone))
        wait_until(lambda: "g1000" not in views[-1], "a group that has left")
        memory.commit(Transaction((), (Put(Keys(CLUSTER, "g0008").state, b"nonsense"),)))
        wait_until(lambda: "g0008" not in views[-1], "a group that cannot be read")
        memory.commit(Transaction((), (Delete(Keys(CLUSTER, "g0008").state),)))
        wait_until(lambda: "g0008" in views[-1], "the group again")
        assert made == ["g0007", "g1000", "g0008", "g0008"]
        check_is_current(views, memory)
    assert registry.requests["get"] == 1


def test_a_broken_watch_resumes_and_a_compacted_one_reads_anew() -> None:
    memory = MemoryRegistry()
    fill(memory, 3)
    registry = Counted(memory)
    with watching(registry) as views:
        wait_until(lambda: bool(views), "all groups")
        registry.broken.set()
        memory.commit(Transaction((), (Delete(Keys(CLUSTER, "g0001").replica("a")),)))
        tried = registry.requests["changes"]
        wait_until(lambda: registry.requests["changes"] >= tried + 2, "tries")
        assert nodes(views, 1) == {"a", "b", "c"}
        registry.broken.clear()
        wait_until(lambda: nodes(views, 1) == {"b", "c"}, "the change that was missed")
        assert registry.requests["get"] == 1, "nothing was read anew"

        def lose() -> None:
            registry.before_watch = lambda: None
            memory.commit(Transaction((), (Delete(Keys(CLUSTER, "g0002").replica("a")),)))
            memory.compact()

        registry.before_watch = lose
        wait_until(lambda: nodes(views, 2) == {"b", "c"}, "the change that was compacted")
        assert registry.requests["get"] == 2
        check_is_current(views, memory)


def test_what_no_watch_reported_is_read_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restore of the registry that has passed the known revision."""
    monkeypatch.setattr(registrywatch, "READ_SECONDS", 0.5)
    memory = MemoryRegistry()
    fill(memory, 3)
    registry = Counted(memory)
    with watching(registry) as views:
        wait_until(lambda: bool(views), "all groups")
        registry.deaf.set()
        memory.commit(Transaction((), (Delete(Keys(CLUSTER, "g0001").replica("a")),)))
        wait_until(lambda: nodes(views, 1) == {"b", "c"}, "the change that nobody reported")
        check_is_current(views, memory)


@pytest.mark.process
def test_groups_are_known_by_changes_from_etcd(tmp_path: Path) -> None:
    need_etcd()
    etcd = LocalEtcd(tmp_path)
    etcd.start()
    inner = EtcdRegistry(etcd.endpoints, 10.0)
    registry = Counted(inner)
    try:
        fill(inner, 200)
        lease = inner.lease(60).lease
        bound = registered(5, "leased")
        inner.commit(Transaction((), (Put(bound.key, bound.value, lease),)))
        with watching(registry) as views:
            wait_until(lambda: bool(views) and len(views[-1]) == 200, "all groups")
            assert nodes(views, 5) == {"a", "b", "c", "leased"}
            inner.drop(lease)
            wait_until(lambda: nodes(views, 5) == {"a", "b", "c"}, "the lease that ended")
            assert registry.requests["get"] == 1
            etcd.kill()
            etcd.start()
            inner.commit(Transaction((), (Delete(Keys(CLUSTER, "g0009").replica("a")),)))
            wait_until(lambda: nodes(views, 9) == {"b", "c"}, "a change after etcd was down")
            check_is_current(views, inner)
    finally:
        inner.close()
        etcd.stop()
