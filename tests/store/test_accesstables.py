"""Users and rights as tables of the metadata."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from duolog_server.store.accesstables import AccessTables
from duolog_server.store.metadata import Metadata

NAMES = st.sampled_from(["alice", "bob", "User:eve"])
CHANGES = st.one_of(
    st.builds(
        lambda name, n: {"op": "user", "user": {"username": name, "n": n}}, NAMES, st.integers()
    ),
    st.builds(lambda name: {"op": "delete_user", "user": name}, NAMES),
    st.builds(
        lambda name, n: {"op": "rights", "rights": {"subject": f"User:{name}", "n": n}},
        NAMES,
        st.integers(),
    ),
    st.builds(lambda name: {"op": "delete_rights", "user": name}, NAMES),
)


def tables_of(changes: list[dict[str, Any]]) -> Metadata:
    tables = Metadata()
    for change in changes:
        assert tables.apply(json.dumps(change).encode()) is not None
    return tables


@given(st.lists(CHANGES))
def test_rights_belong_to_users_and_a_snapshot_has_both(changes: list[dict[str, Any]]) -> None:
    tables = tables_of(changes)
    assert tables.validate() == ""
    assert tables.access.changes <= len(changes)
    again = Metadata()
    again.access.put_user({"username": "gone"})
    before = again.access.changes
    again.adopt(tables.snapshot().to_bytes())
    assert again.access.rows() == tables.access.rows()
    assert again.access.changes > before, "what was decided before is decided anew"


@given(st.lists(CHANGES), CHANGES)
def test_a_change_that_is_applied_again_changes_nothing(
    changes: list[dict[str, Any]], last: dict[str, Any]
) -> None:
    once, twice = tables_of([*changes, last]), tables_of([*changes, last, last])
    assert once.access.rows() == twice.access.rows()


def test_a_user_that_is_deleted_takes_its_rights_along() -> None:
    tables = tables_of(
        [
            {"op": "user", "user": {"username": "alice"}},
            {"op": "rights", "rights": {"subject": "User:alice"}},
            {"op": "delete_user", "user": "alice"},
            {"op": "user", "user": {"username": "alice"}},
        ]
    )
    assert tables.access.rights == {}


def test_tables_of_a_version_without_users_have_none() -> None:
    snapshot = json.loads(Metadata().snapshot().to_bytes())
    del snapshot["access"]
    assert Metadata.from_json(snapshot).access == AccessTables()


def test_rights_without_their_user_are_not_kept() -> None:
    tables = tables_of([{"op": "rights", "rights": {"subject": "User:alice"}}])
    assert tables.access.rights == {}


def test_a_table_with_users_alone_is_not_empty() -> None:
    assert not tables_of([{"op": "user", "user": {"username": "alice"}}]).empty
