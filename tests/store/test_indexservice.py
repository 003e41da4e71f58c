"""IndexService and IndexFile."""

import errno
import struct
from pathlib import Path

import pytest

from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.errors import BadStoreDirectory
from duolog_server.store.indexservice import IndexHeader, IndexService
from duolog_server.store.messagestore import MessageStore, PutBatch
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.record import TRANSACTION_ROLLBACK
from duolog_server.store.status import PutMessageStatus
from tests import oracle
from tests.known import known
from tests.support import NOW, crash, drain, open_store, options, put_ok


def keys_of(*keys: str) -> bytes:
    return b"KEYS\x01" + " ".join(keys).encode()


def found(store: object, key: str, **how: int) -> list[bytes]:
    return [record.body for record in store.lookups.by_key("T", key, **how)]  # type: ignore[attr-defined]


def test_header_slots_chains_and_entries_are_where_rocketmq_has_them(tmp_path: Path) -> None:
    chosen = options(max_hash_slot_num=10, max_index_num=40, enabled_append_prop_crc=False)
    store = open_store(tmp_path, chosen)
    phys = []
    for n, key in enumerate(["k1", "k2", "k3", "k1"]):
        phys.append(
            put_ok(store, [b"x"], "TopicA", properties=[keys_of(key)], now=NOW + 1500 * n)
            .physical_offset
        )  # fmt: skip
    (path,) = (tmp_path / "index").iterdir()
    assert len(path.name) == 17
    data = path.read_bytes()
    assert len(data) == 40 + 10 * 4 + 40 * 20
    slots_used = {oracle.index_hash(f"TopicA#{key}") % 10 for key in ("k1", "k2", "k3")}
    assert struct.unpack(">qqqqii", data[:40]) == (
        NOW, NOW + 4500, phys[0], phys[3], len(slots_used), 5,
    )  # fmt: skip
    hashed = oracle.index_hash("TopicA#k1")
    assert hashed == 0x717125C9
    (newest,) = struct.unpack_from(">i", data, 40 + (hashed % 10) * 4)
    entry = 40 + 40 + newest * 20
    assert struct.unpack_from(">iqii", data, entry)[:3] == (hashed, phys[3], 4)
    chain = []
    while newest:
        key_hash, phy, _, newest = struct.unpack_from(">iqii", data, 40 + 40 + newest * 20)
        if key_hash == hashed:
            chain.append(phy)
    assert chain == [phys[3], phys[0]]


@pytest.mark.parametrize("field", range(6))
def test_each_header_field_is_read_from_its_own_place(field: int) -> None:
    import numpy as np

    values = [0] * 6
    values[field] = 77
    header = IndexHeader.read(np.frombuffer(struct.pack(">qqqqii", *values), np.uint8))
    names = ["begin_time", "end_time", "begin_phy", "end_phy", "slot_count", "index_count"]
    assert [getattr(header, name) for name in names] == values


def test_unique_key_and_every_token_of_keys_are_indexed(store: MessageStore) -> None:
    put_ok(store, [b"one"], properties=[keys_of("a", "b")], producer=b"p" * 10, sequence=1)
    put_ok(store, [b"two"], properties=[b"KEYS\x01b  c "])
    assert found(store, "a") == [b"one"]
    assert found(store, "b") == [b"one", b"two"]
    assert found(store, "c") == [b"two"]
    assert found(store, "") == []
    key = (b"p" * 10 + (1).to_bytes(6, "big")).hex().upper()
    record = known(store.lookups.by_unique_key("T", key))
    assert record.body == b"one"
    assert store.lookups.by_unique_key("T", "a") is None


def test_clashing_hashes_find_only_the_right_messages(store: MessageStore) -> None:
    assert oracle.java_hash("T#Aa") == oracle.java_hash("T#BB")
    put_ok(store, [b"first"], properties=[keys_of("Aa")])
    put_ok(store, [b"second"], properties=[keys_of("BB")])
    assert found(store, "Aa") == [b"first"]
    assert found(store, "BB") == [b"second"]


def test_rolled_back_messages_are_not_indexed(store: MessageStore) -> None:
    put_ok(store, [b"x"], properties=[keys_of("k")], sysflag=TRANSACTION_ROLLBACK)
    assert store.index.find("T", "k", 32, 0, 1 << 62) == []


def test_keys_continue_in_the_next_file_when_one_is_full(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(max_index_num=7, max_hash_slot_num=3))
    for n in range(20):
        put_ok(store, [b"%d" % n], properties=[keys_of(f"k{n}", "all")], now=NOW + n)
    assert len(store.index.files) == 7
    for n in range(20):
        assert found(store, f"k{n}") == [b"%d" % n]
    assert len(found(store, "all")) == 20
    assert len(found(store, "all", count=5)) == 5
    first, second = store.index.files[:2]
    assert first.header.index_count == 7
    assert second.header.begin_phy >= first.header.begin_phy


def test_a_query_keeps_to_its_time_range_to_the_millisecond(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(max_index_num=9))
    for n in range(30):
        put_ok(store, [b"%d" % n], properties=[keys_of("k")], now=NOW + 700 * n)
    inside = found(store, "k", begin_ms=NOW + 7000, end_ms=NOW + 14_000)
    assert inside == [b"%d" % n for n in range(10, 21)]


def test_the_newest_matches_are_answered_up_to_the_limit(store: MessageStore) -> None:
    for n in range(100):
        put_ok(store, [b"%d" % n], properties=[keys_of("k")])
    assert found(store, "k", count=1000) == [b"%d" % n for n in range(36, 100)]


def test_every_key_is_found_after_a_crash(tmp_path: Path) -> None:
    chosen = options(max_index_num=50)
    store = open_store(tmp_path, chosen)
    for n in range(150):
        put_ok(store, [b"%d" % n], properties=[keys_of(f"k{n}")], now=NOW + 100 * n)
    for _ in range(2):  # two of the files are full and synced
        job = known(store.index.flush_full_job())
        job.run()
        store.index.flushed_full()
        store.checkpoint.index_msg_timestamp = job.store_time
    store.checkpoint.flush()
    crash(store)
    store = open_store(tmp_path, chosen)
    assert [found(store, f"k{n}") for n in range(150)] == [[b"%d" % n] for n in range(150)]


@pytest.mark.parametrize("size", [0, 1, 39, 40, 1000])
def test_an_index_file_of_another_size_is_rebuilt(tmp_path: Path, size: int) -> None:
    store = open_store(tmp_path)
    for n in range(30):
        put_ok(store, [b"%d" % n], properties=[keys_of(f"k{n}")])
    (path,) = (tmp_path / "index").iterdir()
    store.shutdown()
    with path.open("r+b") as file:
        file.truncate(size)
    store = open_store(tmp_path)
    assert [found(store, f"k{n}") for n in range(30)] == [[b"%d" % n] for n in range(30)]
    store.shutdown()


def test_missing_index_files_are_rebuilt(store: MessageStore, tmp_path: Path) -> None:
    put_ok(store, [b"x"], properties=[keys_of("k")])
    store.shutdown()
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    store = open_store(tmp_path)
    assert found(store, "k") == [b"x"]
    store.shutdown()


def test_a_foreign_file_among_the_index_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "README").write_bytes(b"x")
    service = IndexService(OsDisk(tmp_path), options())
    with pytest.raises(BadStoreDirectory, match="README"):
        service.load(None)


def test_index_files_below_the_logs_minimum_are_removed_but_never_the_last(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(max_index_num=11))
    for n in range(40):
        put_ok(store, [b"%d" % n], properties=[keys_of(f"k{n}")])
    removed = store.index.delete_before(1 << 40)
    assert removed == 3
    assert len(store.index.files) == 1


def test_an_index_file_that_cannot_be_created_is_retried_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, options(max_hash_slot_num=10, max_index_num=6))
    create, tries = store.disk.create, []

    def failing(path: str, size: int, *told: int) -> object:
        if path.startswith("index/"):
            tries.append(path)
            raise OSError(errno.ENOSPC, "no room", path)
        return create(path, size, *told)

    monkeypatch.setattr(store.disk, "create", failing)
    for n in range(30):
        batch = PutBatch("T", 0, Columns.of([b"%d" % n], [keys_of(f"k{n}")]), NOW + n)
        assert store.put(batch, WallMs(NOW + n)).status is PutMessageStatus.PUT_OK
    for _ in range(100):
        drain(store)
    assert len(tries) >= 100
    assert list((tmp_path / "index").iterdir() if (tmp_path / "index").exists() else []) == []
    monkeypatch.undo()
    drain(store)
    assert [found(store, f"k{n}") for n in range(30)] == [[b"%d" % n] for n in range(30)]
