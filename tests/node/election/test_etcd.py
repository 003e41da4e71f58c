"""The registry adapters: etcd, the server in memory and the table behave the same."""

import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.chaos.localetcd import LocalEtcd
from duolog_server.demo.registryserver import RegistryServer
from duolog_server.ha.registry import (
    Check,
    Compacted,
    Delete,
    LeaseGone,
    Put,
    Registry,
    RegistryUnavailable,
    Row,
    Transaction,
)
from duolog_server.node.election.etcd import EtcdRegistry
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.node.runtime import certificates as certificates_of
from duolog_server.node.runtime.tls import Tls
from duolog_server.node.wire import etcd_pb2 as wire
from tests.certificates import certificates
from tests.etcd import need_etcd
from tests.until import slowness, wait_until

pytestmark = pytest.mark.process
PATIENCE_SECONDS = 10.0  # a disk that others use, too, syncs in seconds


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    need_etcd()
    cluster = LocalEtcd(tmp_path_factory.mktemp("etcd"))
    cluster.start()
    yield cluster
    cluster.stop()


def connected(registry: EtcdRegistry) -> EtcdRegistry:
    """Once it has a connection: an etcd that stands still for 0.2 s takes none at the first try."""

    def answers() -> bool:
        try:
            return bool(registry.get("/").revision)
        except RegistryUnavailable:
            return False

    wait_until(answers, "a connection to etcd")
    return registry


@pytest.fixture(params=["etcd", "server", "memory"])
def registry(request: pytest.FixtureRequest) -> Iterator[Registry]:
    if request.param == "memory":
        yield MemoryRegistry()
        return
    server = None
    if request.param == "etcd":
        endpoints = request.getfixturevalue("etcd").endpoints
    else:
        server = RegistryServer()
        server.start()
        endpoints = (server.endpoint,)
    made = connected(EtcdRegistry(endpoints, PATIENCE_SECONDS))
    yield made
    made.close()
    if server is not None:
        server.stop()


def test_a_member_that_does_not_answer_is_named_while_another_one_does() -> None:
    server = RegistryServer()
    server.start()
    down = free_endpoint()
    registry = connected(EtcdRegistry((server.endpoint, down), PATIENCE_SECONDS))
    alone = connected(EtcdRegistry((server.endpoint,), PATIENCE_SECONDS))
    try:
        (address,) = found = registry.silent()
        assert (address, alone.silent()) == (down, {})
        assert "UNAVAILABLE" in found[address]
        assert registry.get("/").revision
    finally:
        registry.close()
        alone.close()
        server.stop()


@pytest.mark.parametrize(("code", "silent"), [("PERMISSION_DENIED", []), ("NOT_FOUND", ["a", "b"])])
def test_a_member_whose_users_may_not_read_every_key_answers(
    code: str, silent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: object, timeout: float) -> None:
        raise Failure(grpc.StatusCode[code], "refused")

    registry = EtcdRegistry(("a", "b"), 1.0)
    for endpoint in registry._endpoints:
        monkeypatch.setattr(endpoint.kv, "Range", refuse)
    try:
        assert sorted(registry.silent()) == silent
    finally:
        registry.close()


def put(key: str, value: bytes, lease: int = 0) -> Transaction:
    return Transaction((), (Put(key, value, lease),))


def test_transactions_are_checked_and_committed_changes_read(registry: Registry) -> None:
    revision = registry.commit(put("/t1/k", b"v"))
    snapshot = registry.get("/t1/")
    assert snapshot.rows["/t1/k"].value == b"v"
    assert snapshot.rows["/t1/k"].mod_revision == revision
    assert snapshot.revision >= (revision or 0)
    assert registry.get("/t1/other").rows == {}
    first = registry.commit(put("/t2/k", b"1"))
    assert first is not None
    stale = Transaction((Check("/t2/k", first - 1),), (Put("/t2/k", b"2"), Put("/t2/l", b"2")))
    assert registry.commit(stale) is None
    assert set(registry.get("/t2/").rows) == {"/t2/k"}
    missing = Transaction((Check("/t2/l", 0), Check("/t2/k", first)), (Delete("/t2/k"),))
    assert registry.commit(missing) is not None
    assert registry.get("/t2/").rows == {}


def test_a_lease_ends_and_takes_its_keys_with_it(registry: Registry) -> None:
    lease = registry.lease(20).lease
    registry.commit(put("/t3/k", b"v", lease))
    assert registry.get("/t3/").rows["/t3/k"].lease == lease
    assert registry.renew(lease) == 20
    registry.drop(lease)
    assert registry.get("/t3/").rows == {}
    with pytest.raises(LeaseGone):
        registry.renew(lease)
    with pytest.raises(LeaseGone):
        registry.commit(put("/t3/k", b"v", lease))
    registry.drop(lease)  # none is no error
    lease = registry.lease(2).lease
    registry.commit(put("/t4/k", b"v", lease))
    revision = registry.get("/t4/").revision
    until = time.monotonic() + 30
    while registry.get("/t4/").rows:
        assert time.monotonic() < until
        any(registry.changes("/t4/", revision, 1.0))


class Failure(grpc.RpcError):
    """A failed call."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


def test_a_lease_is_gone_by_the_code_of_the_answer_whatever_its_words() -> None:
    registry = EtcdRegistry(("127.0.0.1:1",), 1.0)
    try:
        with pytest.raises(LeaseGone, match="no such lease"), registry._call():
            raise Failure(grpc.StatusCode.NOT_FOUND, "no such lease")
        with pytest.raises(RegistryUnavailable), registry._call():
            raise Failure(grpc.StatusCode.UNAVAILABLE, "proxy: requested lease not found")
    finally:
        registry.close()


def test_a_lease_of_a_second_is_granted_and_one_below_the_minimum_is_longer(
    etcd: LocalEtcd, tmp_path: Path
) -> None:
    registry = connected(EtcdRegistry(etcd.endpoints, PATIENCE_SECONDS))

    def renewed() -> int:
        """Seconds; 0 where the machine stood still for as long as the lease."""
        granted = registry.lease(1)
        assert granted.ttl_seconds == 1
        try:
            return registry.renew(granted.lease)
        except (LeaseGone, RegistryUnavailable):
            return 0

    wait_until(lambda: renewed() == 1, "a lease that is renewed in its time")
    assert registry._renewal_timeout < 0.6, "there is nobody else to ask"
    registry.close()
    registry = connected(EtcdRegistry((*etcd.endpoints, *etcd.endpoints), PATIENCE_SECONDS))
    registry.lease(1)
    assert registry._renewal_timeout < 0.4, "there is time to ask another member"
    registry.close()
    slow = LocalEtcd(tmp_path, election_ms=2500)
    slow.start()
    try:
        registry = connected(EtcdRegistry(slow.endpoints, PATIENCE_SECONDS))
        assert registry.lease(1).ttl_seconds == 4
        registry.close()
    finally:
        slow.stop()


def test_a_watch_shows_all_changes_since_a_revision(registry: Registry) -> None:
    revision = registry.get("/t5/").revision
    assert not any(registry.changes("/t5/", revision, 0.2))
    lease = registry.lease(60).lease
    registry.commit(put("/t5/a", b"1", lease))
    registry.commit(put("/t5/b", b"2"))
    registry.commit(put("/elsewhere", b"3"))
    registry.commit(Transaction((), (Delete("/t5/b"), Put("/t5/c", b"4"))))
    found: dict[str, Row | None] = {}
    watch = registry.changes("/t5/", revision, 20.0)

    def until(count: int) -> int:
        for changes in watch:
            found.update(changes.rows)
            if len(found) == count and found["/t5/b"] is None:
                return changes.revision
        raise AssertionError(f"the watch ended with {found}")

    seen = until(3)  # they were made before the watch began
    rows = registry.get("/t5/").rows
    assert found == {**rows, "/t5/b": None}
    assert seen <= registry.get("/t5/").revision
    registry.drop(lease)
    for changes in registry.changes("/t5/", seen, 20.0):
        assert changes.rows == {"/t5/a": None}
        break
    with pytest.raises(Compacted):
        any(registry.changes("/t5/", registry.get("/").revision + 1000, 1.0))


def test_etcd_reports_a_compacted_revision(etcd: LocalEtcd) -> None:
    registry = connected(EtcdRegistry(etcd.endpoints, PATIENCE_SECONDS))
    revision = registry.commit(put("/t6/a", b"1"))
    last = registry.commit(put("/t6/a", b"2"))
    assert revision is not None
    with grpc.insecure_channel(etcd.endpoints[0]) as channel:
        compact: Any = channel.unary_unary("/etcdserverpb.KV/Compact")
        # A CompactionRequest has its revision where this one has its id.
        compact(wire.LeaseRevokeRequest(ID=last).SerializeToString(), timeout=PATIENCE_SECONDS)
    with pytest.raises(Compacted):
        any(registry.changes("/t6/", revision - 1, PATIENCE_SECONDS))
    registry.close()


def test_an_answer_may_be_larger_than_the_usual_limit_of_grpc(etcd: LocalEtcd) -> None:
    registry = connected(EtcdRegistry(etcd.endpoints, PATIENCE_SECONDS))
    for number in range(5):
        assert registry.commit(put(f"/t7/{number}", bytes(1 << 20))) is not None
    assert len(registry.get("/t7/").rows) == 5
    registry.close()


def test_etcd_and_the_table_agree_on_any_script(etcd: LocalEtcd) -> None:
    """The same random transactions give the same answers and entries."""
    registry, memory = connected(EtcdRegistry(etcd.endpoints, PATIENCE_SECONDS)), MemoryRegistry()
    chance = random.Random(5)
    keys = [f"/script/{name}" for name in "abcd"]
    leases = [(registry.lease(60).lease, memory.lease(60).lease) for _ in range(2)]

    def rows(which: Any) -> dict[str, tuple[bytes, bool, bool]]:
        found = which.get("/script/").rows
        newest = max((row.mod_revision for row in found.values()), default=0)
        return {
            key: (row.value, row.mod_revision == newest, row.create_revision == row.mod_revision)
            for key, row in found.items()
        }

    for step in range(120):
        known = [which.get("/script/").rows for which in (registry, memory)]
        script: list[Transaction] = []
        plan = [(chance.choice(keys), chance.random() < 0.7) for _ in range(chance.randint(0, 2))]
        writes = [
            (key, chance.random() < 0.75, chance.choice((None, 0, 1)))
            for key in chance.sample(keys, chance.randint(1, 3))
        ]
        for side in (0, 1):
            checks = []
            for key, right in plan:
                row = known[side].get(key)
                revision = row.mod_revision if row is not None else 0
                checks.append(Check(key, revision if right else revision + 1))
            changes: list[Put | Delete] = []
            for key, write, which in writes:
                lease = leases[which][side] if which is not None else 0
                changes.append(Put(key, b"%d" % step, lease) if write else Delete(key))
            script.append(Transaction(tuple(checks), tuple(changes)))
        answers = [registry.commit(script[0]) is None, memory.commit(script[1]) is None]
        assert answers[0] == answers[1], (step, script)
        assert rows(registry) == rows(memory), step
        if step == 80:
            registry.drop(leases[0][0])
            memory.drop(leases[0][1])
            leases[0] = (registry.lease(60).lease, memory.lease(60).lease)
            assert rows(registry) == rows(memory)
    registry.close()


def test_the_next_endpoint_answers_when_one_is_gone(etcd: LocalEtcd) -> None:
    registry = connected(EtcdRegistry(("127.0.0.1:1", *etcd.endpoints), PATIENCE_SECONDS))
    lease = registry.lease(20).lease
    assert registry.renew(lease) == 20
    assert registry.get("/nowhere/").rows == {}
    registry.close()


def test_no_answer_is_an_error_in_time_and_a_commit_is_sent_once(tmp_path: Path) -> None:
    registry = EtcdRegistry(("127.0.0.1:1", "127.0.0.1:2"), 0.3)
    began = time.monotonic()
    for call in (
        lambda: registry.get("/"),
        lambda: registry.lease(3),
        lambda: registry.commit(put("/k", b"v")),
        lambda: any(registry.changes("/", 1, 0.3)),
    ):
        with pytest.raises(RegistryUnavailable):
            call()
    assert time.monotonic() - began < 10 * slowness()
    registry.close()


def test_a_cluster_goes_on_without_one_member_and_not_without_two(tmp_path: Path) -> None:
    need_etcd()
    cluster = LocalEtcd(tmp_path, 3)
    cluster.start()
    try:
        registry = connected(EtcdRegistry(cluster.endpoints, 3.0))
        assert registry.commit(put("/m/k", b"1")) is not None
        cluster.kill(0)
        until = time.monotonic() + 40
        while True:
            try:
                assert registry.commit(put("/m/k", b"2")) is not None
                break
            except RegistryUnavailable:
                assert time.monotonic() < until
        assert registry.get("/m/").rows["/m/k"].value == b"2"
        cluster.kill(1)
        with pytest.raises(RegistryUnavailable):
            registry.get("/m/")  # linearizable: a minority does not answer from its memory
        registry.close()
    finally:
        cluster.stop()


def test_etcd_over_tls_with_a_certificate_of_our_own(tmp_path: Path) -> None:
    need_etcd()
    tls = certificates(tmp_path)
    cluster = LocalEtcd(tmp_path, tls=tls)
    cluster.start()
    try:
        registry = connected(EtcdRegistry(cluster.endpoints, PATIENCE_SECONDS, tls))
        assert registry.commit(put("/tls/k", b"v")) is not None
        assert registry.renew(registry.lease(20).lease) == 20
        registry.close()
        stranger = EtcdRegistry(cluster.endpoints, 0.5, Tls(tls.ca))
        with pytest.raises(RegistryUnavailable):
            stranger.get("/tls/")
        stranger.close()
    finally:
        cluster.stop()


def test_new_certificates_are_used_once_the_connection_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_etcd()
    monkeypatch.setattr(certificates_of, "LOOK_SECONDS", 0.0)
    tls, other = certificates(tmp_path), certificates(tmp_path / "other")
    cluster = LocalEtcd(tmp_path, tls=tls)
    cluster.start()
    try:
        registry = connected(EtcdRegistry(cluster.endpoints, 2.0, tls))
        assert registry.commit(put("/new/k", b"v")) is not None
        for new, old in zip(other.files.paths, tls.files.paths, strict=True):
            shutil.copy(new, old)
        assert registry.get("/new/").rows  # over the open connection
        cluster.kill()
        with pytest.raises(RegistryUnavailable):
            registry.get("/new/")
        cluster.start_member(0)
        until = time.monotonic() + 20
        while True:
            try:
                assert registry.get("/new/").rows
                break
            except RegistryUnavailable:
                assert time.monotonic() < until
        assert registry._left == []
        registry.close()
    finally:
        cluster.stop()


def test_certificates_that_cannot_be_read_are_an_error_at_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        EtcdRegistry(("127.0.0.1:1",), 1.0, Tls(tmp_path / "none"))


def test_a_registry_that_was_closed_is_unavailable(etcd: LocalEtcd) -> None:
    registry = connected(EtcdRegistry(etcd.endpoints, PATIENCE_SECONDS))
    watched: list[Exception] = []

    def watch() -> None:
        try:
            any(registry.changes("/closed/", registry.get("/").revision, 30.0))
        except RegistryUnavailable as error:
            watched.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    registry.get("/")
    registry.close()
    thread.join(10)
    assert not thread.is_alive()
    assert watched
    with pytest.raises(RegistryUnavailable):
        registry.get("/")
    with pytest.raises(RegistryUnavailable):
        registry.commit(Transaction((), (Put("/x", b""),)))
    with pytest.raises(RegistryUnavailable):
        any(registry.changes("/", 1, 1.0))
