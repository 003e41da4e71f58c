"""The audit log, searched back in time."""

import json
from dataclasses import dataclass
from typing import Any, cast

import pytest
from duolog import BadRequest, QueueStats, Start, TopicDescription
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ops.inspection import auditlog as module
from duolog_server.ops.inspection.auditlog import AuditPage, AuditSearch, audit_page, row_of
from duolog_server.store.metadata import AUDIT_TOPIC

BATCH_MAX = 7  # messages of one answer, as a node cuts it by bytes


@dataclass
class Stored:
    """An entry in the topic."""

    queue_offset: int
    store_time_ms: int
    body: bytes


class Nodes:
    """Replica groups with their entries: times, and who did it. pulled: entries they sent."""

    def __init__(self, groups: dict[str, list[tuple[int, str]]], begin: int = 0) -> None:
        self.begin = begin
        self.pulled = 0
        self.groups = {
            group: [
                Stored(begin + number, at_ms, json.dumps({"user": user}).encode())
                for number, (at_ms, user) in enumerate(entries)
            ]
            for group, entries in groups.items()
        }

    async def topics(self, names: list[str], *, system: bool) -> list[TopicDescription]:
        assert (names, system) == ([AUDIT_TOPIC], True)
        return [
            TopicDescription(
                AUDIT_TOPIC, group, 1, stats=(QueueStats(0, self.begin, self.begin + len(held)),)
            )
            for group, held in self.groups.items()
        ]

    async def offset_at_time(self, topic: str, queue: int, at: int | Start, *, group: str) -> int:
        assert isinstance(at, int)
        return self.begin + sum(one.store_time_ms < at for one in self.groups[group])

    async def pull(
        self, topic: str, queue: int, offset: int, *, max_messages: int, group: str
    ) -> list[Stored]:
        first = offset - self.begin
        found = self.groups[group][first : first + min(max_messages, BATCH_MAX)]
        self.pulled += len(found)
        return found

    @property
    def admin(self) -> "Nodes":
        return self


async def look(nodes: Nodes, search: AuditSearch, count: int) -> AuditPage:
    return await audit_page(cast(Any, nodes), search, count)


async def whole(nodes: Nodes, count: int, **search: Any) -> list[tuple[int, str]]:
    """All pages of a search."""
    rows, place = [], ""
    for _ in range(1000):
        page = await look(nodes, AuditSearch(place=place, **search), count)
        assert len(page.rows) <= count
        rows += [(row.time_ms, row.user) for row in page.rows]
        place = page.next
        if not place:
            return rows
    raise AssertionError("it does not end")


ENTRIES = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["ann", "bob"])), max_size=40)


@given(st.lists(ENTRIES, min_size=1, max_size=3), st.integers(1, 9), st.booleans(), st.data())
async def test_pages_have_every_entry_once_in_order(
    groups: list[list[tuple[int, str]]], count: int, filtered: bool, data: st.DataObject
) -> None:
    held = {f"g:{number}": sorted(entries) for number, entries in enumerate(groups)}
    nodes = Nodes(held, begin=data.draw(st.integers(0, 5)))
    before = data.draw(st.none() | st.integers(0, 31))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ENTRIES_SCANNED", data.draw(st.integers(3, 50)))
        patch.setattr(module, "ENTRIES_AT_ONCE", data.draw(st.integers(1, 10)))
        found = await whole(nodes, count, user="BO" if filtered else "", before_ms=before)
    wanted = [
        (at_ms, user)
        for entries in held.values()
        for at_ms, user in entries
        if (before is None or at_ms < before) and (user == "bob" or not filtered)
    ]
    assert sorted(found) == sorted(wanted)
    assert [at_ms for at_ms, _ in found] == sorted((at_ms for at_ms, _ in found), reverse=True)


async def test_a_search_for_what_is_rare_ends_and_says_how_far_it_came() -> None:
    nodes = Nodes({"g": [(number, "ann") for number in range(20_000)]})
    page = await look(nodes, AuditSearch(user="nobody"), 100)
    assert (len(page.rows), page.scanned) == (0, module.ENTRIES_SCANNED)
    assert nodes.pulled == module.ENTRIES_SCANNED
    assert page.next == f"g:{20_000 - module.ENTRIES_SCANNED}"
    assert not (await look(Nodes({}), AuditSearch(), 100)).kept


@pytest.mark.parametrize("place", ["g", "g:-1", "g:x", f"g:{10**30}", "g:\u0663"])
async def test_a_place_that_is_none(place: str) -> None:
    with pytest.raises(BadRequest):
        await look(Nodes({"g": []}), AuditSearch(place=place), 100)


@pytest.mark.parametrize(
    ("body", "user", "decision", "times", "more"),
    [
        (b'{"user": "a", "decision": "denied", "times": 3}', "a", "denied", 3, ""),
        (b'{"user": "a", "request": {"queues": 3}}', "a", "", 1, '{"queues": 3}'),
        (b'{"newer": [1], "request": {}}', "", "", 1, '{"newer": [1], "request": {}}'),
        (b'{"user": 5, "times": "x"}', "5", "", 1, ""),
        (b"[1]", "", "", 1, "[1]"),
        (b"\xff\x1b[2J", "", "", 1, "\ufffd\x1b[2J"),
    ],
)
def test_entries(body: bytes, user: str, decision: str, times: int, more: str) -> None:
    row = row_of(cast(Any, Stored(0, 5, body)))
    assert (row.user, row.decision, row.times, row.more) == (user, decision, times, more)
    assert row.time_ms == 5
