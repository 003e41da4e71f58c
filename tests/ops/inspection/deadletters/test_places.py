"""Places of dead letters as links, and the pages between them."""

from itertools import pairwise

import pytest
from duolog import BadRequest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ops.inspection.deadletters.letters import Span, _back, _behind, _from, _runs
from duolog_server.ops.inspection.messages.places import Place, place_of

QUEUES = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2))
OFFSETS = st.integers(0, 20)
PLACES = st.builds(lambda queue, offset: Place(queue[0], queue[1], offset), QUEUES, OFFSETS)
SPANS = st.lists(
    st.builds(
        lambda queue, begin, count: Span(queue[0], queue[1], begin, begin + count),
        QUEUES,
        st.integers(0, 10),
        st.integers(0, 10),
    ),
    unique_by=lambda span: span.queue,
).map(lambda spans: sorted(spans, key=lambda span: span.queue))


def all_of(spans: list[Span]) -> list[Place]:
    return [span.at(offset) for span in spans for offset in range(span.begin, span.end)]


@given(PLACES)
def test_a_place_is_read_as_it_is_written(place: Place) -> None:
    assert place_of(str(place)) == place


@pytest.mark.parametrize(
    "text", ["", "a", "a/1", "a/b/c", "a/1/-1", "a/1/\u0663", f"a/{1 << 31}/0", f"a/0/{1 << 63}"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        place_of(text)


@given(SPANS, PLACES)
def test_the_rest_begins_at_a_place(spans: list[Span], at: Place) -> None:
    assert all_of(list(_from(spans, at))) == [place for place in all_of(spans) if place >= at]
    assert all_of(list(_from(spans, None))) == all_of(spans)


@given(SPANS, st.data(), st.integers(1, 8))
def test_a_page_back_ends_where_this_one_begins(
    spans: list[Span], data: st.DataObject, limit: int
) -> None:
    places = all_of(spans)
    if not places:
        return
    number = data.draw(st.integers(1, len(places)))
    if number < len(places):
        assert sum(_behind(span, places[number]) for span in spans) == number
    assert _back(spans, number, limit) == places[max(0, number - limit)]


@given(st.lists(PLACES))
def test_runs_have_each_place_once(places: list[Place]) -> None:
    runs = list(_runs(places))
    assert all_of(runs) == sorted(set(places))
    assert all(one.at(one.end) != two.at(two.begin) for one, two in pairwise(runs))
