"""Rows of queues that move: their keys, their JSON, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ha.groupstate import groups_of
from duolog_server.ha.moverevents import Row, Seen
from duolog_server.ha.queuerows import (
    BadRow,
    row_from_bytes,
    row_key,
    row_to_bytes,
    rows_of,
    rows_prefix,
    seen_in,
)
from duolog_server.ha.registry import Put, RegistryTable, Transaction
from duolog_server.store.moves import Place

NAME, AT = Place("a", 3), Place("b", 4)
KEY = row_key("c", "T", NAME)
PLACES = st.builds(Place, st.text(min_size=1), st.integers(0, 65535))


def test_a_row_has_its_place_beside_the_groups_of_the_cluster() -> None:
    assert KEY == "/duolog-queues/c/T/a/3"
    assert KEY.startswith(rows_prefix("c"))
    table = RegistryTable()
    table.commit(Transaction((), (Put(KEY, row_to_bytes(Row(NAME, AT))),)))
    assert groups_of(table.get("/"), "c") == {}
    assert row_to_bytes(Row(NAME, AT)) == b'{"name":["a",3],"at":["b",4]}'


@given(PLACES, PLACES, st.sampled_from([("", ""), ("a-1-1", "b")]))
def test_a_row_is_read_as_it_was_written(name: Place, at: Place, move: tuple[str, str]) -> None:
    row = Row(name, at, *move)
    assert row_from_bytes(KEY, row_to_bytes(row)) == row


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b'{"name":["a",3]}',
        b'{"name":["a",3],"at":["b",-1]}',
        b'{"name":["a",3],"at":["b",4,5]}',
        b'{"name":["a",3],"at":["b",true]}',
        b'{"name":["a",3],"at":[1,4]}',
        b'{"name":["a",3],"at":["b",4],"move":"m"}',
        b'{"name":["b",3],"at":["b",4]}',  # of another key
    ],
)
def test_what_is_no_row_is_an_error_that_names_its_key(value: bytes) -> None:
    table = RegistryTable()
    good = row_key("c", "U", NAME)
    written = Put(good, row_to_bytes(Row(NAME, AT, "m", "b")))
    table.commit(Transaction((), (Put(KEY, value), written)))
    found, bad = rows_of(table.get(rows_prefix("c")), "c")
    assert found == {("U", NAME): Seen(Row(NAME, AT, "m", "b"), 2)}
    assert [error.key for error in bad] == [KEY]
    if value != b'{"name":["b",3],"at":["b",4]}':
        with pytest.raises(BadRow, match="cannot read /duolog-queues/c/T/a/3"):
            seen_in(table.get(KEY), KEY)


def test_a_row_that_is_not_there_has_no_revision() -> None:
    assert seen_in(RegistryTable().get(KEY), KEY) == Seen()
