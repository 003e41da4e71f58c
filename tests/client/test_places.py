"""Where queues lie that moved: what nodes tell of it, of whom some are late."""

from duolog._places import Places
from duolog.wire import duolog_pb2 as wire

A3, A9, B4, C7 = ("a", 3), ("a", 9), ("b", 4), ("c", 7)


def guest(queue_id: int, first: int, sealed: bool = False) -> wire.GuestQueue:
    return wire.GuestQueue(
        queue_id=queue_id, first=first, name_group="a", name_queue_id=3, sealed=sealed
    )


def test_a_queue_that_did_not_move_lies_where_it_was_made() -> None:
    places = Places()
    places.list_guests("T", "b", [])
    assert places.of("T", A3) == A3
    assert places.names("T") == []


def test_a_queue_lies_where_the_last_of_its_spans_is() -> None:
    for order in ((0, 1), (1, 0)):
        places = Places()
        told = [("b", [guest(4, 100, sealed=True)]), ("c", [guest(7, 150)])]
        for k in order:
            places.list_guests("T", *told[k])
        assert places.of("T", A3) == C7
        assert places.of("T", ("a", 2)) == ("a", 2)
        assert places.of("U", A3) == A3
    places.list_guests("T", "a", [guest(9, 180)])
    assert places.of("T", A3) == A9, "it came back, under another id"
    assert places.names("T") == [A3]


def test_of_two_spans_that_begin_at_one_offset_the_open_one_takes_messages() -> None:
    for first in ("b", "c"):
        places = Places()
        for group in (first, "c" if first == "b" else "b"):
            sealed = group == "b"
            places.list_guests("T", group, [guest(4 if sealed else 7, 100, sealed)])
        assert places.of("T", A3) == C7


def test_a_stored_message_tells_of_a_place_and_an_old_answer_changes_nothing() -> None:
    places = Places()
    places.note_stored("T", A3, B4, 120)
    assert places.of("T", A3) == B4
    places.note_stored("T", A3, C7, 150)
    places.note_stored("T", A3, B4, 149)
    places.list_guests("T", "b", [guest(4, 100)])
    assert places.of("T", A3) == C7


def test_a_group_that_has_a_queue_no_more_is_not_asked_for_it() -> None:
    """The topic was deleted, and may have been made again."""
    places = Places()
    places.list_guests("T", "b", [guest(4, 100)])
    places.list_guests("T", "c", [])
    assert places.of("T", A3) == B4
    places.list_guests("T", "b", [])
    assert places.of("T", A3) == A3


def test_a_queue_that_is_not_where_it_was_reported_is_where_it_was_made() -> None:
    places = Places()
    places.note_stored("T", ("a", 3), ("b", 4), 7)
    places.forget("T", ("a", 3))
    places.forget("T", ("a", 2))
    places.forget("U", ("a", 3))
    assert places.of("T", ("a", 3)) == ("a", 3)
    assert places.names("T") == []
