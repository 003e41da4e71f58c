"""What a store says of its queues to those who only read them."""

from duolog_server.store.lightqueues import lite_queue
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import PhyOffset, QueueOffset
from tests.support import NOW, put_ok


def test_a_queue_that_nobody_stored_in(store: MessageStore) -> None:
    assert store.queue_range("T", 0) == (0, 0)
    assert store.next_offset("T", 0) == 0
    assert store.entries("T", 0, 0, 10).shape == (3, 0)
    assert store.offset_in_log("T", 0, PhyOffset(0)) == 0
    assert [store.store_time("T", 0, offset) for offset in (-1, 0)] == [-1, -1]
    assert (store.queue_keys(), store.queue_ends("T"), store.topics_with_messages()) == (
        [],
        {},
        set(),
    )
    store.shutdown()


def test_offsets_entries_and_times_of_what_is_stored(store: MessageStore) -> None:
    places = [put_ok(store, [b"x"], now=NOW + k).physical_offset for k in range(4)]
    put_ok(store, [b"y"], "U", 3)
    assert store.dispatched_offset == store.max_offset > places[-1]
    assert store.entries("T", 0, 1, 2)[0].tolist() == places[1:3]
    assert [store.store_time("T", 0, k) for k in range(-1, 5)] == [
        -1,
        *(NOW + k for k in range(4)),
        -1,
    ]
    found = [store.offset_in_log("T", 0, PhyOffset(at)) for at in (0, places[1], places[1] + 1)]
    assert found == [0, 1, 2]
    assert store.offset_in_log("T", 0, store.max_offset) == 4
    assert (store.next_offset("T", 0), store.next_offset("U", 3)) == (4, 1)
    assert (store.queue_ends("T"), store.queue_ends("U")) == ({0: 4}, {3: 1})
    assert store.topics_with_messages() == {"T", "U"}
    assert sorted(store.queue_keys()) == [("T", 0), ("U", 3)]
    store.shutdown()


def test_hidden_messages_have_no_time_and_are_passed_over(store: MessageStore) -> None:
    put_ok(store, [b"x"] * 4)
    store.raise_floor("T", 0, QueueOffset(2))
    assert [store.store_time("T", 0, k) for k in range(4)] == [-1, -1, NOW, NOW]
    assert store.offset_in_log("T", 0, PhyOffset(0)) == 2
    store.remove_topic("T")
    assert store.queue_keys() == []
    assert store.next_offset("T", 0) == 4
    store.shutdown()


def test_what_is_stored_and_not_confirmed_counts_and_is_not_read(store: MessageStore) -> None:
    end = put_ok(store, [b"x"]).end_offset
    store.replicated_offset = end
    put_ok(store, [b"x"])
    assert store.dispatched_offset == end < store.max_offset
    assert (store.queue_range("T", 0), store.next_offset("T", 0)) == ((0, 1), 2)
    store.shutdown()


def test_light_queues_by_topic(store: MessageStore) -> None:
    queue = lite_queue("P", "a")
    put_ok(store, [b"x"], "P", light_queues=(queue,))
    assert (store.light_names(), store.light_of("P"), store.light_of("Q")) == ([queue], [queue], [])
    store.shutdown()


def test_a_fenced_store_is_not_writeable(store: MessageStore) -> None:
    assert store.writeable
    store.fence("a test")
    assert not store.writeable
    store.shutdown()
