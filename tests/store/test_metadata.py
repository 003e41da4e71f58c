"""Changes of the metadata tables."""

import json
from typing import Any

from duolog_server.store.metadata import Metadata


def changed(*changes: dict[str, Any]) -> Metadata:
    tables = Metadata()
    for change in changes:
        assert tables.apply(json.dumps(change).encode()) is not None
    return tables


def offsets(offset: int, *done: list[int], **how: bool) -> dict[str, Any]:
    return {
        "op": "offsets",
        "group": "G",
        "offsets": {"T": {"0": offset}},
        "done": {"T": {"0": list(done)}} if done else {},
        **how,
    }


def test_a_commit_that_only_goes_forward_changes_nothing_below_the_groups_offset() -> None:
    tables = changed(offsets(5, [7, 9]), offsets(3, forward=True))
    assert tables.offsets["T", "G"] == {0: 5}
    assert tables.acknowledged("G", "T", 0) == [[7, 9]], "those are acknowledged, and stay so"
    assert changed(offsets(5), offsets(8, forward=True)).offsets["T", "G"] == {0: 8}


def test_a_commit_after_a_seek_backwards_moves_the_group_back() -> None:
    assert changed(offsets(5, [7, 9]), offsets(3)).offsets["T", "G"] == {0: 3}
