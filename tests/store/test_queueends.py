"""Where queues end: the table finds its light queues without scanning all queues."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.store.columns import Columns
from duolog_server.store.lightqueues import is_light
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.queueends import QueueEnds
from duolog_server.store.status import PutMessageStatus
from tests.support import NOW, open_store, options

NAMES = st.sampled_from(["T", "U", "%LMQ%$T$a", "%LMQ%$T$b", "%LMQ%$U$a", "%LMQ%$$", "%LMQ%"])


@given(st.lists(st.tuples(NAMES, st.booleans())))
def test_light_queues_are_counted_and_named_without_any_scan(steps: list[tuple[str, bool]]) -> None:
    table, plain = QueueEnds(), dict[tuple[str, int], int]()
    for k, (name, stays) in enumerate(steps):
        if stays:
            table[name, 0] = plain[name, 0] = k
        else:
            table.forget((name, 0))
            plain.pop((name, 0), None)
    assert table == plain
    light = [name for name, _ in plain if is_light(name)]
    assert (table.light_count, sorted(table.light_names())) == (len(light), sorted(light))
    for topic in ("T", "U"):
        wanted = [name for name in light if name.startswith(f"%LMQ%${topic}$")]
        assert sorted(table.light_of(topic)) == sorted(wanted)
    assert QueueEnds(plain.items()).light_count == len(light)


def test_a_new_light_queue_scans_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, options(max_lmq_consume_queue_num=3))

    def scanned(table: Any) -> Any:
        raise AssertionError("all queues were gone through")

    monkeypatch.setattr(QueueEnds, "__iter__", scanned, raising=False)
    found = []
    for k in range(5):
        batch = PutBatch("T", 0, Columns.of([b"x"]), NOW, light_queues=(f"%LMQ%$T${k}",))
        found.append(store.put(batch, NOW).status)
    full = PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
    assert found == [PutMessageStatus.PUT_OK] * 3 + [full] * 2
    store.release_light_queues(["%LMQ%$T$1"], forgotten=True)
    again = PutBatch("T", 0, Columns.of([b"x"]), NOW, light_queues=("%LMQ%$T$9",))
    assert store.put(again, NOW).status is PutMessageStatus.PUT_OK
    monkeypatch.undo()
