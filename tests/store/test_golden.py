"""Directories written by the real RocketMQ 4.9.8 store, and how that store read them."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.store import dump
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk
from tests.support import open_noisily, put_ok, read_all

ARCHIVE = Path(__file__).parent.parent / "data" / "golden.tar.xz"
OPTIONS = StoreOptions(
    mapped_file_size_commit_log=262_144,
    mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=2000,
    max_index_num=8000,
)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(path, filter="data")
    return path


@pytest.fixture(params=["clean", "crash"])
def directory(
    golden: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[Path, dict[str, Any]]:
    import shutil

    copy = tmp_path / request.param
    shutil.copytree(golden / request.param, copy)
    return copy, json.loads((golden / f"{request.param}.json").read_text())


def queries_of(said: dict[str, Any]) -> list[tuple[str, str]]:
    return [(query["topic"], query["key"]) for query in said["queries"]]


def test_every_entry_and_query_equals_rocketmqs(directory: tuple[Path, dict[str, Any]]) -> None:
    path, said = directory
    opened = open_noisily(path, OPTIONS)
    store = opened.store
    assert opened.problems == []
    assert (store.log.min_offset, store.log.max_offset) == (said["min_phy"], said["max_phy"])
    for name, expected in said["queues"].items():
        topic, _, number = name.rpartition("/")
        queue = store.queues.get(topic, int(number))
        if queue is None:
            assert expected["max"] == 0
            continue
        assert (queue.min_offset, queue.max_offset) == (expected["min"], expected["max"])
        assert queue.entries(0, 1 << 20).T.tolist() == expected["entries"]
    for query in said["queries"]:
        found = store.lookups.by_key(query["topic"], query["key"])
        assert [record.physical_offset for record in found] == query["phy"]
        assert all(query["key"] in record.properties["KEYS"].split() for record in found)


def test_writing_goes_on_in_rocketmqs_directory(directory: tuple[Path, dict[str, Any]]) -> None:
    path, said = directory
    store = open_noisily(path, OPTIONS).store
    before = read_all(store, "flights", 0)
    now = 1_900_000_000_000
    for number in range(2000):
        put_ok(
            store, [b"new %d" % number], "flights", 0, now=now,
            properties=[b"KEYS\x01new%d" % number],
        )  # fmt: skip
    store.shutdown()
    again = open_noisily(path, OPTIONS)
    assert again.problems == []
    assert read_all(again.store, "flights", 0) == before + [b"new %d" % n for n in range(2000)]
    assert again.store.lookups.by_key("flights", "new1999")[0].body == b"new 1999"
    for query in said["queries"]:
        found = again.store.lookups.by_key(query["topic"], query["key"])
        assert [record.physical_offset for record in found] == query["phy"]
    again.store.shutdown()


@pytest.mark.parametrize("index_sizes_known", [True, False])
def test_dump_prints_exactly_what_rocketmq_read(
    directory: tuple[Path, dict[str, Any]], index_sizes_known: bool
) -> None:
    path, said = directory
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    chosen = OPTIONS if index_sizes_known else StoreOptions()
    found = dump.dump(OsDisk(path, read_only=True), chosen, queries_of(said))
    assert found == said
    assert list(found["queues"]) == list(said["queues"])
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def test_check_finds_nothing_wrong_and_stats_counts(directory: tuple[Path, dict[str, Any]]) -> None:
    path, _ = directory
    found = dump.check(OsDisk(path, read_only=True), OPTIONS)
    assert found["problems"] == []
    assert found["clean_stop"] is (path.name == "clean")
    assert found["records"] == 4320
    stats = dump.stats(OsDisk(path, read_only=True), OPTIONS)
    assert stats["topics"]["flights"]["messages"] == 4300


def test_dump_of_a_damaged_directory_shows_what_recovery_would_find(
    directory: tuple[Path, dict[str, Any]],
) -> None:
    path, said = directory
    (path / "consumequeue/flights/1/00000000000000000000").write_bytes(b"short")
    for name in (path / "index").iterdir():
        name.write_bytes(b"")
    segment = path / "commitlog/00000000000000262144"
    data = bytearray(segment.read_bytes())
    data[1000:1100] = bytes(100)
    segment.write_bytes(bytes(data))
    found = dump.dump(OsDisk(path, read_only=True), OPTIONS, queries_of(said))
    store = open_noisily(path, OPTIONS).store
    assert found["max_phy"] == store.log.max_offset == said["max_phy"]
    for name, queue in found["queues"].items():
        topic, _, number = name.rpartition("/")
        opened = store.queues.get(topic, int(number))
        entries = opened.entries(0, 1 << 20).T.tolist() if opened else []
        # A lost record may keep its entry in the file; the view shows a blank one.
        shown = [
            kept if view == [0, 0x7FFFFFFF, 0] else view
            for view, kept in zip(queue["entries"], entries, strict=True)
        ]
        assert shown == entries
    assert dump.check(OsDisk(path, read_only=True), OPTIONS)["problems"]


@given(
    damage=st.lists(
        st.tuples(st.integers(0, 8), st.floats(0, 1), st.binary(min_size=1, max_size=40)),
        min_size=1,
        max_size=4,
    )
)
def test_dump_and_check_survive_any_damage(
    golden: Path,
    tmp_path_factory: pytest.TempPathFactory,
    damage: list[tuple[int, float, bytes]],
) -> None:
    import shutil

    copy = tmp_path_factory.mktemp("damaged") / "store"
    shutil.copytree(golden / "crash", copy)
    files = sorted(p for p in copy.rglob("*") if p.is_file() and p.stat().st_size > 4)
    for which, where, data in damage:
        path = files[which * 3 % len(files)]
        content = bytearray(path.read_bytes())
        at = int(where * (len(content) - 1))
        content[at : at + len(data)] = data
        path.write_bytes(bytes(content))
    found = dump.dump(OsDisk(copy, read_only=True), OPTIONS, [("flights", "UA1696")])
    assert found["max_phy"] <= 7 * 262_144
    dump.check(OsDisk(copy, read_only=True), OPTIONS)
    shutil.rmtree(copy)
