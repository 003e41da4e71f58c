"""Light queues: additional places of a record, which survive everything the topic's queues do."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.store import lightqueues
from duolog_server.store.columns import Columns
from duolog_server.store.kernels import scan
from duolog_server.store.messagestore import MessageStore, PutBatch
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.reader import Wanted
from duolog_server.store.record import decode_properties
from duolog_server.store.status import PutMessageStatus
from tests.known import known
from tests.oracle import java_hash
from tests.support import (
    NOW,
    crash,
    drain,
    open_noisily,
    open_store,
    options,
    put,
    put_ok,
    read_all,
)

A, B = "%LMQ%$T$a", "%LMQ%$T$b"


def test_kernels_know_light_queues_by_the_same_name() -> None:
    assert scan.LIGHT_START.tobytes().decode() == lightqueues.START


def offsets(store: MessageStore, name: str) -> list[tuple[int, int]]:
    """(queue offset from the queue's first on, physical offset) of every entry."""
    queue = store.queues.get(name, 0)
    if queue is None:
        return []
    table = queue.entries(queue.min_offset, 1 << 20)
    return list(enumerate(table[0].tolist()))


def bodies(store: MessageStore, name: str) -> list[bytes]:
    queue = known(store.queues.get(name, 0))
    result = store.get(name, 0, queue.min_offset, Wanted(1 << 20, 1 << 30))
    return [body for _, body, _ in result.rows()]


def test_a_message_is_in_its_topics_queue_and_in_its_light_queues(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, [b"0"], light_queues=(A,), properties=[b"k\x01v\x02"])
    put_ok(store, [b"1"])
    put_ok(store, [b"2"], light_queues=(A, B))
    assert read_all(store) == [b"0", b"1", b"2"]
    assert (bodies(store, A), bodies(store, B)) == ([b"0", b"2"], [b"2"])
    first = 0  # where the log ended
    assert store.queue_range(A, 0) == (first, first + 2)
    record = known(store.record_at(A, 0, QueueOffset(first + 1)))
    assert record.topic == "T"
    assert record.properties["INNER_MULTI_DISPATCH"] == f"{A},{B}"
    third = store.queue_range(B, 0)[0]
    assert record.properties["INNER_MULTI_QUEUE_OFFSET"] == f"{first + 1},{third}"
    assert int(third) == int(record.physical_offset)  # it begins where its first record lies
    text = next(store.get("T", 0, QueueOffset(0), Wanted(1)).rows())[2]
    assert decode_properties(text.decode())["k"] == "v"
    arrived = {(a.topic, a.queue_offset) for a in store.take_arrivals()}
    assert (B, third + 1) in arrived
    assert not (tmp_path / "consumequeue" / A).exists()  # RocketMQ wants files of one size there


def test_light_queues_are_found_again_after_a_stop_and_after_a_crash(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for k in range(300):  # several segments
        put_ok(store, [b"%d" % k * 50], light_queues=(f"%LMQ%$T${k % 7}",))
    before = {f"%LMQ%$T${k}": offsets(store, f"%LMQ%$T${k}") for k in range(7)}
    assert sum(map(len, before.values())) == 300
    store.shutdown()
    store = open_store(tmp_path)
    assert {name: offsets(store, name) for name in before} == before
    store.shutdown()
    (tmp_path / "abort").touch()
    shutil.rmtree(tmp_path / "lightqueue")
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "checkpoint").unlink()
    store = open_store(tmp_path)
    assert {name: offsets(store, name) for name in before} == before
    put_ok(store, [b"next"], light_queues=("%LMQ%$T$0",))
    assert bodies(store, "%LMQ%$T$0")[-1] == b"next"


def test_a_forgotten_queue_begins_again_past_what_any_node_may_have(tmp_path: Path) -> None:
    opened = open_noisily(tmp_path)
    store = opened.store
    put_ok(store, [b"old"], light_queues=(A,))
    put_ok(store, [b"old"], light_queues=(A,))
    store.hold_light_queues([A])
    held = put(store, [b"new"], light_queues=(B, A))
    assert held.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    store.release_light_queues([A], forgotten=True)
    put_ok(store, [b"new"], light_queues=(A,))
    assert bodies(store, A) == [b"new"]
    put_ok(store, [b"newer"], light_queues=(A,))
    store.hold_light_queues([A])
    store.release_light_queues([A], forgotten=False)
    put_ok(store, [b"newest"], light_queues=(A,))
    store.shutdown()
    shutil.rmtree(tmp_path / "lightqueue")
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").unlink()
    store = open_store(tmp_path)  # the whole log goes by: the old entries first
    assert bodies(store, A) == [b"new", b"newer", b"newest"]
    assert opened.problems == []


def test_the_files_of_dropped_entries_may_still_be_synced(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, [b"old"], light_queues=(A,))
    job = known(store.queues_flush_job(0))
    store.release_light_queues([A], forgotten=True)
    put_ok(store, [b"new"], light_queues=(A,))
    job.run()
    store.queues_flushed(job, True)
    job = known(store.queues_flush_job(0))
    job.run()
    assert bodies(store, A) == [b"new"]
    names = [path.name for path in (tmp_path / "lightqueue" / A / "0").iterdir()]
    assert len(names) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"INNER_MULTI_DISPATCH\x01%LMQ%$T$a\x02INNER_MULTI_QUEUE_OFFSET\x017\x02",
        b"INNER_MULTI_QUEUE_OFFSET\x017",
    ],
)
def test_only_the_store_may_write_places_in_light_queues(store: MessageStore, text: bytes) -> None:
    for texts in ([text], [b"", b"a\x01b", text], [b"a\x01b\x02" + text, b""]):
        result = put(store, [b"x"] * len(texts), properties=texts)
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "only be written by the store" in result.reason
    assert store.queues.get(A, 0) is None


def test_other_properties_may_have_those_names_in_them(tmp_path: Path) -> None:
    texts = [
        b"a\x01INNER_MULTI_DISPATCH",
        b"MY_INNER_MULTI_DISPATCH\x01b\x02INNER_MULTI_DISPATCHED\x01c",
        b"",
        b"INNER_MULTI_QUEUE_OFFSETS\x01INNER_MULTI_QUEUE_OFFSET",
        b"A_INNER_MULTI_QUEUE_OFFSET\x01d",
    ]
    store = open_store(tmp_path)
    put_ok(store, [b"x"] * len(texts), properties=texts)
    assert store.get("T", 0, QueueOffset(0)).count == len(texts)


@pytest.mark.parametrize(
    "names", [("T",), ("%LMQ%$T/a",), ("%LMQ%$a,b",), ("%LMQ%$" + "x" * 250,), ("%LMQ%$\x01",)]
)
def test_invalid_light_queue_names_are_refused(store: MessageStore, names: tuple[str, ...]) -> None:
    result = put(store, [b"x"], light_queues=names)
    assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert put(store, [b"x", b"y"], light_queues=(A,)).status is PutMessageStatus.MESSAGE_ILLEGAL


def test_the_number_of_light_queues_is_limited(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(max_lmq_consume_queue_num=2))
    put_ok(store, [b"x"], light_queues=(A,))
    put_ok(store, [b"x"], light_queues=(B,))
    put_ok(store, [b"x"], light_queues=(B,))
    result = put(store, [b"x"], light_queues=("%LMQ%$T$c",))
    assert result.status is PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
    store.release_light_queues([A], forgotten=True)
    put_ok(store, [b"x"], light_queues=("%LMQ%$T$c",))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=3), min_size=1, max_size=60
    ),
    st.integers(0, 60),
)
def test_light_queues_agree_with_the_log_after_truncation_and_redispatch(
    tmp_path_factory: pytest.TempPathFactory, places: list[list[str]], cut: int
) -> None:
    store = open_store(tmp_path_factory.mktemp("store"))
    wanted: dict[str, list[int]] = {}
    ends = []
    for k, names in enumerate(places):
        light = tuple(f"%LMQ%$T${name}" for name in names)
        result = store.put(PutBatch("T", 0, Columns.of([b"%d" % k]), NOW, light_queues=light), NOW)
        assert result.status is PutMessageStatus.PUT_OK
        ends.append(result.physical_offset)
        for name in light:
            wanted.setdefault(name, []).append(result.physical_offset)
    drain(store)
    if cut < len(places):
        store.truncate(ends[cut])
        drain(store)
        kept = {name: [p for p in found if p < ends[cut]] for name, found in wanted.items()}
        wanted = {name: found for name, found in kept.items() if found}
    for name in ("%LMQ%$T$a", "%LMQ%$T$b", "%LMQ%$T$c"):
        assert [p for _, p in offsets(store, name)] == wanted.get(name, [])
    store.shutdown()


def test_offsets_of_messages_that_a_lost_segment_held_are_not_given_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for k in range(300):  # several segments; the light queue's last message is in the third
        put_ok(store, [b"%d" % k * 50], light_queues=(A,) if k < 120 else ())
    end = store.queue_range(A, 0)[1]
    held = known(store.log.queue.find(offsets(store, A)[-1][1]))
    assert held is not store.log.queue.last
    crash(store)
    (tmp_path / "commitlog" / f"{held.start:020d}").unlink()
    store = open_store(tmp_path)
    assert store.queue_range(A, 0)[1] == end
    put_ok(store, [b"next"], light_queues=(A,))
    assert store.queue_range(A, 0)[1] == end + 1
    assert bodies(store, A)[-1] == b"next"


def test_extension_units_of_the_topics_queue_leave_light_queues_their_tags(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(enable_consume_queue_ext=True))
    put_ok(store, [b"red"], light_queues=(A,), properties=[b"TAGS\x01red\x02"])
    put_ok(store, [b"blue"], light_queues=(A,), properties=[b"TAGS\x01blue\x02"])
    for topic in ("T", A):
        wanted = Wanted(tags_codes=np.array([java_hash("red")]))
        first, _ = store.queue_range(topic, 0)
        found = [body for _, body, _ in store.get(topic, 0, first, wanted).rows()]
        assert found == [b"red"], topic
