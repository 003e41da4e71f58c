"""Places: the kernels find those that the records name."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.store.columns import Columns
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import EMPTY_I64, I64
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.places import PlaceFinder, places_of
from duolog_server.store.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from duolog_server.store.status import PutMessageStatus
from tests.support import NOW, open_store

Places = dict[tuple[str, int], list[tuple[int, int]]]  # queue offsets and physical ones, by queue

SENDS = st.lists(
    st.tuples(
        st.sampled_from(["T", "U"]),
        st.integers(0, 2),
        st.sampled_from([0, 0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK]),
        st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=3),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=40)
@given(SENDS)
def test_the_places_of_a_stretch_are_those_that_its_records_name(
    tmp_path_factory: pytest.TempPathFactory, sends: list[tuple[str, int, int, list[str]]]
) -> None:
    store = open_store(tmp_path_factory.mktemp("store"))
    own: Places = {}
    wanted: Places = {}
    for topic, queue_id, kind, names in sends:
        hidden = kind in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
        light = () if hidden else tuple(f"%LMQ%${topic}${name}" for name in names)
        batch = PutBatch(topic, queue_id, Columns.of([b"m"]), NOW, sysflag=kind, light_queues=light)
        result = store.put(batch, NOW)
        assert result.status is PutMessageStatus.PUT_OK
        places = places_of(store.log.get_message(PhyOffset(result.physical_offset)))
        assert [name for name, _, _ in places] == [topic, *light]
        for name, number, offset in () if hidden else places:
            wanted.setdefault((name, number), []).append((offset, result.physical_offset))
        if not hidden:
            own.setdefault((topic, queue_id), []).append((places[0][2], result.physical_offset))
    mapped = store.log.queue.files[0]
    rows: I64 = np.empty((scan.COLUMNS, 100), np.int64)
    state: I64 = np.zeros(2, np.int64)
    scan.scan(mapped.memory, 0, mapped.readable, 0, True, EMPTY_I64, rows, state)
    n = int(state[0])
    assert n == len(sends)
    finder = PlaceFinder(n)
    found: Places = {}
    for places_found in finder.all(mapped.memory, rows, n):
        for key, chosen in places_found:
            table = places_found.rows[[scan.QUEUE_OFFSET, scan.PHY]][:, chosen]
            assert key not in found
            found[key] = [(offset, phy) for offset, phy in table.T.tolist()]
    assert found == wanted
    of_topics = finder.own(mapped.memory, rows, n)
    assert {key for key, _ in of_topics} == own.keys()
    assert sum(len(chosen) for _, chosen in of_topics.records()) == len(sends)
    firsts = [row for _, row in of_topics.firsts()]
    assert firsts == sorted(firsts)
    assert len(of_topics) == len(firsts) == len({(topic, q) for topic, q, _, _ in sends})
