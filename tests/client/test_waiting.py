"""Pages of what waits, joined from several replica groups."""

from dataclasses import replace

import pytest
from duolog import BadRequest, DelayedMessage
from duolog._waiting import (
    END,
    PartOfWaiting,
    delayed_page_of,
    halves_page_of,
    joined_rows,
    places_in,
)
from duolog.wire import duolog_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

ROW = DelayedMessage("T", 0, 0, "w", 0, 0, 0, 0, "", "", "", "a")
GROUPS = ("a", "b", "c")
Held = dict[str, list[tuple[int, bool]]]  # due times, and whether a message is wanted


def rows_of(group: str, held: list[tuple[int, bool]]) -> list[DelayedMessage]:
    """All messages of a group, in order."""
    return [
        replace(ROW, due_ms=due, queue_offset=k, group=group)
        for k, (due, _) in enumerate(sorted(held))
    ]


def answer(group: str, held: list[tuple[int, bool]], after: str, limit: int, looks: int):  # type: ignore[no-untyped-def]
    """As a node that looks at few messages for a page."""
    rows = rows_of(group, held)
    begin = [row.place for row in rows].index(after) + 1 if after else 0
    found: list[DelayedMessage] = []
    for k in range(begin, len(rows)):
        if sorted(held)[k][1]:
            found.append(rows[k])
        if (len(found) == limit or k + 1 - begin == looks) and k + 1 < len(rows):
            return PartOfWaiting(group, found, rows[k].place, rows[k].order)
    return PartOfWaiting(group, found, "", ())


@given(
    st.fixed_dictionaries(
        {
            name: st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12)
            for name in GROUPS
        }
    ),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_pages_have_each_row_once_in_order(held: Held, limit: int, looks: int) -> None:
    wanted = [
        row
        for group, some in held.items()
        for row, (_, asked) in zip(rows_of(group, some), sorted(some), strict=True)
        if asked
    ]
    found: list[DelayedMessage] = []
    after = ""
    for _ in range(200):
        begun = places_in(after)
        parts = [
            answer(group, held[group], begun.get(group, ""), limit, looks)
            for group in GROUPS
            if begun.get(group) != END
        ]
        rows, after = joined_rows(parts, begun, limit)
        assert len(rows) <= limit
        found += rows
        if not after:
            break
    assert found == sorted(wanted, key=lambda row: row.order)


def test_what_is_no_end_of_a_page_is_refused() -> None:
    with pytest.raises(BadRequest):
        places_in("x")
    with pytest.raises(BadRequest):
        places_in("&".join(f"g{number}=1/0/0" for number in range(2000)))


def test_a_page_sums_up_what_waits_in_all_groups() -> None:
    def told(group: str, waiting: int, first: int, last: int) -> wire.ListDelayedReply:
        """As a node tells what it examined."""
        reply = wire.ListDelayedReply(group=group, waiting=waiting, examined=waiting + 1)
        reply.first_due_time, reply.last_due_time = first, last
        return reply

    replies = [told("a", 2, 70, 80), told("b", 3, 50, 60), told("c", 0, 0, 0)]
    page = delayed_page_of(replies, {}, 5)
    assert (page.waiting, page.examined) == (5, 8)
    assert (page.first_due_ms, page.last_due_ms) == (50, 80), "a group without any has no first"
    assert delayed_page_of(replies[2:], {}, 5).first_due_ms == 0
    assert delayed_page_of([], {}, 5).waiting is None


def test_a_page_of_half_messages_ends_where_a_group_has_more() -> None:
    rows = [wire.HalfMessage(half=k) for k in (3, 7)]
    more = wire.ListHalvesReply(group="a", messages=rows, next="7", waiting=9, checks_max=15)
    rest = wire.ListHalvesReply(group="b", messages=rows[:1], waiting=1, checks_max=4)
    page = halves_page_of([more, rest], {}, 5)
    assert [(row.group, row.half) for row in page.rows] == [("a", 3), ("a", 7)]
    assert places_in(page.next) == {"a": "7"}, "what is of b comes behind what is left of a"
    assert (page.waiting, page.checks_max) == (10, 15)
    assert halves_page_of([], {}, 5).checks_max == 0
