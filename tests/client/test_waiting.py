"""Pages of what waits, joined from several replica groups."""

from dataclasses import replace

import pytest
from duolog import BadRequest, DelayedMessage
from duolog._waiting import END, PartOfWaiting, joined_rows, places_in
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
