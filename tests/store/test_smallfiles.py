"""JSON tables and metadata."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.store import jsontext
from duolog_server.store.errors import BadMessage, BadStoreFile
from duolog_server.store.metadata import (
    Metadata,
    TopicConfig,
    altered,
    check_group,
    check_queues,
    new_group,
)
from duolog_server.store.osdisk import OsDisk
from tests.support import FaultDisk

# -- JSON --------------------------------------------------------------------------------------


def test_tables_are_written_as_fastjson_writes_them() -> None:
    assert jsontext.dumps({"offsetTable": {"T@G": {0: 250, 1: 3}}}) == (
        '{\n\t"offsetTable":{\n\t\t"T@G":{\n\t\t\t0:250,\n\t\t\t1:3\n\t\t}\n\t}\n}'
    )
    assert jsontext.dumps({}) == "{}"


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{"T@G":{0:250,1:3}}}',
        '{"offsetTable":{"T@G":{"0":250,"1":3}}}',
        '{\n\t"offsetTable":{\n\t\t"T@G":{ 0:250,\n\t\t1 : 3}}}',
    ],
)
def test_bare_and_quoted_integer_keys_are_read(text: str) -> None:
    assert jsontext.loads(text) == {"offsetTable": {"T@G": {"0": 250, "1": 3}}}


def test_text_that_looks_like_a_bare_key_is_left_unchanged() -> None:
    value = {"a": '{1:2,3:4} "x" \\'}
    assert jsontext.loads(jsontext.dumps(value)) == value


_values = st.recursive(
    st.integers(-(2**53), 2**53) | st.text(max_size=8) | st.booleans(),
    lambda inner: st.dictionaries(st.text(max_size=6), inner, max_size=4) | st.lists(inner),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=6), _values, max_size=4))
def test_any_table_survives_writing_and_reading(value: dict[str, object]) -> None:
    assert jsontext.loads(jsontext.dumps(value)) == value


@given(st.text(max_size=60))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    try:
        jsontext.loads(text)
    except ValueError:
        pass


def test_deep_nesting_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="deep"):
        jsontext.loads('{"a":' * 100_000)


def test_saving_keeps_the_old_version_as_backup(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    jsontext.save(disk, "config/x.json", {"v": 1})
    jsontext.save(disk, "config/x.json", {"v": 2})
    assert jsontext.load(disk, "config/x.json") == {"v": 2}
    assert json.loads((tmp_path / "config/x.json.bak").read_text()) == {"v": 1}


@pytest.mark.parametrize("damage", [b"", b"{", b'{"v":2', b"\xff\xfe", b"[1]", b'{"v":2}}'])
def test_a_broken_file_falls_back_to_its_backup(tmp_path: Path, damage: bytes) -> None:
    disk = OsDisk(tmp_path)
    jsontext.save(disk, "config/x.json", {"v": 1})
    jsontext.save(disk, "config/x.json", {"v": 2})
    (tmp_path / "config/x.json").write_bytes(damage)
    assert jsontext.load(disk, "config/x.json") == {"v": 1}


def test_a_missing_file_loads_as_none_and_an_unreadable_one_is_named(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    assert jsontext.load(disk, "config/x.json") is None
    (tmp_path / "config").mkdir()
    (tmp_path / "config/x.json").write_text("{{{")
    with pytest.raises(BadStoreFile, match=r"config/x\.json"):
        jsontext.load(disk, "config/x.json")


def test_a_save_that_fails_at_any_call_leaves_the_old_or_the_new_content(tmp_path: Path) -> None:
    for number in range(1, 8):
        path = tmp_path / str(number)
        disk = FaultDisk(path)
        jsontext.save(disk, "config/x.json", {"v": "old"})
        disk.calls, disk.fail_at = 0, number
        try:
            jsontext.save(disk, "config/x.json", {"v": "new"})
        except OSError:
            assert disk.failed
        disk.fail_at = 0
        found = jsontext.load(OsDisk(path), "config/x.json")
        assert found in ({"v": "old"}, {"v": "new"})
    assert not disk.failed  # the last rounds had no call left to fail


# -- metadata ----------------------------------------------------------------------------------


def changed(**change: object) -> bytes:
    return json.dumps(change).encode()


def filled() -> Metadata:
    tables = Metadata()
    tables.apply(changed(op="topic", topic=TopicConfig("T", 3).to_json()))
    tables.apply(changed(op="group", group=new_group("G")))
    tables.apply(changed(op="offsets", group="G", offsets={"T": {"0": 5, "2": 7}}))
    return tables


def test_applying_a_change_again_changes_nothing() -> None:
    tables = filled()
    before = (dict(tables.topics), {k: dict(v) for k, v in tables.offsets.items()})
    tables.apply(changed(op="offsets", group="G", offsets={"T": {"0": 5, "2": 7}}))
    tables.apply(changed(op="topic", topic=TopicConfig("T", 3).to_json()))
    assert (tables.topics, tables.offsets) == before


def test_deleting_a_topic_forgets_its_offsets_and_remembers_its_floor() -> None:
    tables = filled()
    tables.apply(changed(op="delete_topic", topic="T", floors={"0": 9}))
    assert tables.topics == {}
    assert tables.offsets == {}
    assert tables.floors == {"T": {0: 9}}


def test_an_invalid_number_is_skipped() -> None:
    assert Metadata().apply(b'{"op":"delays","offsets":{"1":1e999}}') is None


@given(st.binary(max_size=60))
def test_a_record_of_any_bytes_is_applied_or_skipped(body: bytes) -> None:
    Metadata().apply(body)


@given(
    st.dictionaries(
        st.sampled_from(["op", "topic", "group", "offsets", "floors"]),
        st.sampled_from(["topic", "offsets", "group", "delete_topic", "delete_group", 5, None])
        | st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2),
    )
)
def test_a_change_of_any_shape_is_applied_or_skipped(change: dict[str, object]) -> None:
    Metadata().apply(json.dumps(change).encode())


@pytest.mark.parametrize("name", ["", "x" * 256, "a b", "a/b", "ü"])
def test_invalid_group_names_are_refused(name: str) -> None:
    with pytest.raises(BadMessage):
        check_group(name)


def test_the_number_of_queues_never_shrinks() -> None:
    assert altered(TopicConfig("T", 4), 8, 0).queues == 8
    with pytest.raises(BadMessage, match="not shrink"):
        altered(TopicConfig("T", 4), 3, 0)
    for queues, perm in ((0, 6), (1025, 6), (4, 0), (4, 8)):
        with pytest.raises(BadMessage):
            check_queues(queues, perm)
