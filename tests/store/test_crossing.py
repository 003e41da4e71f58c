"""What lets a consumer group into a span; tests/sim/test_movemodel.py explores every order."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.store.crossing import (
    Close,
    Crossed,
    Progress,
    go_back,
    gone_back,
    may_read,
    on_answer,
    on_close,
    on_closed,
    on_crossed,
    to_close,
    to_tell,
)
from duolog_server.store.metadata import Metadata, TopicConfig


def test_a_group_is_let_into_a_guest_once_it_has_an_offset_there() -> None:
    assert may_read(Progress(), is_guest=False)
    assert not may_read(Progress(), is_guest=True)
    assert may_read(on_crossed(Progress(), Crossed(10, 0)), is_guest=True)


def test_a_crossing_is_told_from_the_end_on_until_it_is_answered() -> None:
    assert to_tell(Progress(), 10) is None
    assert to_tell(Progress(9), 10) is None
    told = to_tell(Progress(10), 10)
    assert told == Crossed(10, 0)
    assert to_tell(on_answer(Progress(10), told), 10) is None


def test_a_crossing_moves_a_group_forward_only() -> None:
    assert on_crossed(Progress(14), Crossed(10, 0)) == Progress(14)


def test_what_was_told_before_a_reset_does_not_count_after_it() -> None:
    closed = on_close(Progress(14), Close(1))
    assert not may_read(closed, is_guest=True)
    assert on_crossed(closed, Crossed(10, 0)) == closed
    assert on_crossed(closed, Crossed(10, 1)) == Progress(10, 1)
    assert on_close(Progress(12, 1), Close(1)) == Progress(12, 1)
    assert on_answer(Progress(10, 1), Crossed(10, 0)) == Progress(10, 1)


def test_a_reset_closes_all_later_spans_the_last_one_first() -> None:
    assert to_close([0, 10, 20, 30], 5) == [3, 2, 1]
    assert to_close([0, 10, 20, 30], 10) == [3, 2]
    assert to_close([0, 10, 20, 30], 35) == []


def test_a_reset_lets_nobody_read_until_it_is_done() -> None:
    begun = go_back(Progress(10, 0, 0), 3, is_guest=False)
    assert begun is not None
    assert not may_read(begun, is_guest=False)
    assert to_tell(begun, 10) is None
    assert on_crossed(begun, Crossed(2, 5)) == begun
    assert gone_back(begun) == Progress(3, 1)


def test_no_reset_where_the_group_has_not_come() -> None:
    assert go_back(Progress(), 12, is_guest=True) is None
    assert go_back(Progress(), 2, is_guest=False) == Progress(None, 1, -1, 2)


def test_a_reset_takes_a_later_number_than_one_that_it_meets() -> None:
    here = Progress(10, 1, going_back=3)
    assert on_closed(here, Progress(None, 1)) == (here, True)
    assert on_closed(here, Progress(15, 1)) == (Progress(10, 2, going_back=3), False)
    assert on_closed(here, Progress(15, 4)) == (Progress(10, 5, going_back=3), False)
    assert on_closed(here, Progress(15, 0)) == (Progress(10, 2, going_back=3), False)
    assert on_closed(here, Progress(None, 4)) == (here, True)


# -- the tables --------------------------------------------------------------------------------

QUEUE = {"topic": "T", "queue": 4}
PLACE = {**QUEUE, "group": "g"}
TOPIC = {"op": "topic", "topic": TopicConfig("T", 4).to_json()}
GUEST = {"op": "guest", **QUEUE, "group": "a", "of": 3, "from": ["a", 3], "move": "m"}
OPEN = {"op": "open", **QUEUE, "first": 70, "move": "m"}


def changed(*changes: dict[str, Any], tables: Metadata | None = None) -> Metadata:
    tables = tables or Metadata()
    for change in changes:
        assert tables.apply(json.dumps(change).encode()) is not None, change
    return tables


def commit(offset: int, **how: Any) -> dict[str, Any]:
    return {"op": "offsets", "group": "g", "offsets": {"T": {"4": offset}}, **how}


@pytest.mark.parametrize("how", [{}, {"forward": True}, {"absent": True, "forward": True}])
def test_only_a_crossing_lets_a_group_into_a_guest(how: dict[str, Any]) -> None:
    tables = changed(TOPIC, GUEST, OPEN, commit(80, **how))
    assert tables.committed("g", "T", 4) == -1
    assert not tables.may_read("g", "T", 4)
    assert list(tables.readable("g", "T")) == [0, 1, 2, 3]
    assert list(tables.readable("", "T")) == [0, 1, 2, 3, 4]
    changed({"op": "crossed", **PLACE, "offset": 70, "resets": 0}, tables=tables)
    assert list(tables.readable("g", "T")) == [0, 1, 2, 3, 4]
    assert list(tables.readable("h", "T")) == [0, 1, 2, 3]
    changed(commit(80), tables=tables)
    assert tables.committed("g", "T", 4) == 80


def test_a_queue_that_never_moved_is_read_as_ever() -> None:
    tables = changed(TOPIC, commit(80))
    assert tables.committed("g", "T", 4) == 80
    assert tables.readable("g", "T") == range(4)
    assert tables.readable("g", "U") == range(0)
    assert "moves" not in tables.snapshot().tables()


def test_what_is_done_beyond_an_offset_is_forgotten_where_a_reset_closes_the_place() -> None:
    tables = changed(TOPIC, GUEST, OPEN, {"op": "crossed", **PLACE, "offset": 70, "resets": 0})
    changed(commit(71, done={"T": {"4": [[73, 75]]}}), tables=tables)
    changed({"op": "close", **PLACE, "resets": 1}, tables=tables)
    assert tables.progress_of("g", "T", 4) == Progress(None, 1)
    assert tables.acknowledged("g", "T", 4) == []
    assert tables.validate() == ""


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("offsets"), st.integers(70, 75), st.just(0)),
        st.tuples(
            st.sampled_from(("crossed", "close", "go_back", "gone_back")),
            st.integers(70, 75),
            st.integers(0, 3),
        ),
    ),
    max_size=12,
)


@given(STEPS)
def test_records_change_the_tables_as_the_rules_say(steps: list[tuple[str, int, int]]) -> None:
    """Also those of masters that did not know of each other; and snapshots have all of it."""
    tables, here = changed(TOPIC, GUEST, OPEN), Progress()
    for op, offset, resets in steps:
        match op:
            case "offsets":
                change = commit(offset)
                here = replace(here, committed=offset) if may_read(here, True) else here
            case "crossed":
                change = {"op": op, **PLACE, "offset": offset, "resets": resets}
                here = on_crossed(here, Crossed(offset, resets))
            case "close":
                change = {"op": op, **PLACE, "resets": resets}
                here = on_close(here, Close(resets))
            case "go_back":
                change = {"op": op, **PLACE, "offset": offset, "resets": resets}
                if resets > here.resets:
                    here = replace(here, resets=resets, going_back=offset)
            case _:
                change = {"op": op, **PLACE, "resets": resets}
                if here.going_back is not None and here.resets == resets:
                    here = gone_back(here)
        changed(change, tables=tables)
        assert tables.progress_of("g", "T", 4) == replace(here, crossed=-1)
        assert tables.validate() == ""
    found = Metadata.from_json(json.loads(tables.snapshot().to_bytes()))
    assert found.progress_of("g", "T", 4) == tables.progress_of("g", "T", 4)
    assert found.moves == tables.moves


@pytest.mark.parametrize(
    "change",
    [
        {"op": "delete_group", "group": "g"},
        {"op": "delete_topic", "topic": "T", "floors": {}, "birth": 9, "low": 0},
    ],
)
def test_a_deleted_group_or_topic_leaves_no_resets(change: dict[str, Any]) -> None:
    tables = changed(TOPIC, GUEST, OPEN, {"op": "close", **PLACE, "resets": 3})
    assert tables.moves.resets
    assert not changed(change, tables=tables).moves.resets
