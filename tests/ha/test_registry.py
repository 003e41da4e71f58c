"""The registry's map: checks, revisions, leases."""

import pytest

from duolog_server.ha import registry
from duolog_server.ha.registry import (
    Changes,
    Check,
    Compacted,
    Delete,
    LeaseGone,
    Put,
    RegistryTable,
    Transaction,
)
from tests.known import known


def put(key: str, value: bytes = b"v", lease: int = 0) -> Transaction:
    return Transaction((), (Put(key, value, lease),))


def test_a_transaction_is_made_in_whole_or_not_at_all() -> None:
    table = RegistryTable()
    first = known(table.commit(put("k")))
    changes = (Put("k", b"2"), Put("other", b"1"))
    assert table.commit(Transaction((Check("k", first + 1),), changes)) is None
    assert "other" not in table.rows
    assert table.commit(Transaction((Check("k", first), Check("other", 0)), changes)) == first + 1
    assert table.rows["k"].value == b"2"
    assert table.rows["k"].create_revision == first


def test_a_key_that_was_removed_does_not_exist_for_a_check() -> None:
    table = RegistryTable()
    table.commit(put("k"))
    table.commit(Transaction((), (Delete("k"),)))
    assert table.commit(Transaction((Check("k", 0),), (Put("k", b"again"),))) is not None


def test_keys_vanish_with_their_lease_and_others_stay() -> None:
    table = RegistryTable()
    lease = table.grant(1000, 100)
    table.commit(put("bound", lease=lease))
    table.commit(put("too", lease=lease))
    table.commit(put("free"))
    assert table.renew(lease, 900) == 1000
    table.expire(1800)
    assert set(table.rows) == {"bound", "too", "free"}
    before = table.revision
    table.expire(1900)
    assert set(table.rows) == {"free"}
    assert table.revision == before + 1, "as in etcd: one change of the map"
    with pytest.raises(LeaseGone):
        table.renew(lease, 1900)
    with pytest.raises(LeaseGone):
        table.commit(put("bound", lease=lease))


def test_an_expired_lease_cannot_be_renewed_even_before_it_is_removed() -> None:
    table = RegistryTable()
    lease = table.grant(1000, 100)
    table.commit(put("bound", lease=lease))
    with pytest.raises(LeaseGone):
        table.renew(lease, 1100)
    assert not table.rows


def test_a_read_shows_one_prefix_as_of_one_revision() -> None:
    table = RegistryTable()
    table.commit(put("/a/1"))
    table.commit(put("/b/1"))
    snapshot = table.get("/a/")
    assert list(snapshot.rows) == ["/a/1"]
    assert snapshot.revision == table.revision


def test_changes_since_a_revision_are_rows_and_deleted_keys_until_it_is_compacted() -> None:
    table = RegistryTable()
    lease = table.grant(1000, 0)
    first = table.commit(Transaction((), (Put("/a/1", b"1", lease), Put("/b/1", b"1"))))
    assert first is not None
    second = table.commit(Transaction((), (Put("/a/2", b"2"),)))
    assert second is not None
    assert table.changes("/a/", second) == Changes(second, {})
    assert table.changes("/a/", first) == Changes(second, {"/a/2": table.rows["/a/2"]})
    table.expire(1000)
    assert table.changes("/a/", second) == Changes(second + 1, {"/a/1": None})
    table.commit(Transaction((), (Put("/a/1", b"3"), Delete("/a/2"), Delete("/a/none"))))
    assert table.changes("/a/", second).rows == {"/a/1": table.rows["/a/1"], "/a/2": None}
    with pytest.raises(Compacted):
        table.changes("/a/", table.revision + 1)
    table.compact()
    assert table.changes("/a/", table.revision).rows == {}
    with pytest.raises(Compacted):
        table.changes("/a/", table.revision - 1)


def test_a_table_remembers_so_many_deleted_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "GONE_MAX", 2)
    table = RegistryTable()
    keys = [f"/{number}" for number in range(3)]
    table.commit(Transaction((), tuple(Put(key, b"") for key in keys)))
    for key in keys:
        table.commit(Transaction((), (Delete(key),)))
    assert table.changes("/", table.revision - 1).rows == {"/2": None}
    with pytest.raises(Compacted):
        table.changes("/", table.revision - 2)
