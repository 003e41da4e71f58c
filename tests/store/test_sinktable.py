"""The table of sinks: repeated records, forgotten sinks, records of older versions."""

import json
from typing import Any

import pytest

from duolog_server.store import metadata
from duolog_server.store.metadata import Metadata


def publish(tables: Metadata, sink: str, batch: int, **more: Any) -> None:
    change = {"op": "publish", "sink": sink, "batch": batch, "staged": [batch], **more}
    tables.apply(json.dumps(change).encode())


def published(tables: Metadata, sink: str, batch: int, **more: Any) -> None:
    change = {"op": "published", "sink": sink, "batch": batch, "done": 1, **more}
    tables.apply(json.dumps(change).encode())


def test_records_that_are_applied_again_count_once() -> None:
    tables = Metadata()
    for _ in range(3):  # a node applies records again that its snapshot has already
        publish(tables, "s", 0, messages=5, contents="c")
        published(tables, "s", 0, lost=1)
        publish(tables, "s", 1, messages=7, contents="c", publisher="p")
        published(tables, "s", 1)
    row = tables.sinks["s"]
    assert (row["batches"], row["messages"], row["batchMessages"], row["lost"]) == (2, 12, 7, 1)
    assert (row["contents"], row["publisher"], row["staged"]) == ("c", "p", [])


def test_another_users_batch_changes_nothing() -> None:
    tables = Metadata()
    publish(tables, "s", 0, contents="c")
    publish(tables, "old", 0)  # as versions before contents wrote them
    before = json.dumps(tables.sinks)
    for contents in ("", "d"):
        publish(tables, "s", 1, contents=contents)
    publish(tables, "old", 1, contents="c")
    assert json.dumps(tables.sinks) == before
    publish(tables, "old", 1)
    assert tables.sinks["old"]["batch"] == 1


def test_sinks_with_declared_contents_are_forgotten_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "SINKS_MAX", 4)
    tables = Metadata()
    for name, contents in (("waits", ""), ("named", "c"), ("named too", "c")):
        publish(tables, name, 0, contents=contents)
        if name != "waits":
            published(tables, name, 0)
    for number in range(10):
        publish(tables, f"batch-{number}", 0)
        published(tables, f"batch-{number}", 0)
    assert list(tables.sinks) == ["waits", "named", "named too", "batch-9"]
    for number in range(3):
        publish(tables, f"more {number}", 0, contents="c")
        published(tables, f"more {number}", 0)
    assert list(tables.sinks) == ["waits", "more 0", "more 1", "more 2"]
