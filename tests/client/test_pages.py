"""Pages of lists: what several replica groups answer becomes one list, by name."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf
from typing import Any, cast

import duolog
import pytest
from duolog._admin import Admin
from duolog._connection import Connection
from duolog._router import Router
from duolog.wire import duolog_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.api.pages import page_of
from duolog_server.node.core.slices import Slices

NAMES = st.sets(st.text("abAB%", min_size=1, max_size=3), max_size=12)
ANY = st.text("abAB", max_size=2)


class Holding:
    """A connection with a replica group that holds these names, as topics and as groups."""

    def __init__(self, group: str, names: set[str], old: bool = False) -> None:
        """old: its node is of a version that does not know of pages."""
        self.group = group
        self.names = names
        self.old = old
        self.gone: set[str] = set()  # deleted between the choice of names and their rows
        self.admin = self
        self.error: duolog.DuologError | None = None

    async def call(self, make: Any, timeout: float, **how: object) -> Any:
        if self.error is not None:
            raise self.error
        return await make(timeout)

    async def _chosen(self, request: Any, reply: Any) -> list[str]:
        if self.old:
            return list(self.names)
        page = await page_of(self.names, lambda name: True, request, Slices())
        reply.total, reply.next = page.total, page.next
        return [name for name in page.names if name not in self.gone]

    async def ListTopics(
        self, request: wire.ListTopicsRequest, timeout: float
    ) -> wire.ListTopicsReply:
        reply = wire.ListTopicsReply()
        for name in await self._chosen(request, reply):
            reply.topics.add(topic=name, group=self.group)
        return reply

    async def ListGroups(
        self, request: wire.ListGroupsRequest, timeout: float
    ) -> wire.ListGroupsReply:
        reply = wire.ListGroupsReply()
        for name in await self._chosen(request, reply):
            group = reply.groups.add(group=name)
            group.queues.add(topic="T", replica_group=self.group)
        return reply


def admin_of(*holding: Holding) -> Admin:
    router = Router(("127.0.0.1:1",))
    router._routes = {one.group: wire.GroupRoute(group=one.group) for one in holding}
    router._connections = {one.group: cast(Connection, one) for one in holding}
    router._fresh_until = inf
    return Admin(router, 1.0)


def holding(names: list[set[str]], old: list[bool]) -> list[Holding]:
    return [
        Holding(f"g{number}", held, is_old)
        for number, (held, is_old) in enumerate(zip(names, old, strict=True))
    ]


async def walked(get: Callable[..., Awaitable[duolog.Page[Any]]], **how: Any) -> list[Any]:
    """All pages, one after the other."""
    pages = [await get(**how)]
    while pages[-1].next:
        pages.append(await get(**how, after=pages[-1].next))
        assert pages[-1].next > pages[-2].next or not pages[-1].next, "it goes on"
    return pages


GROUPS = st.integers(1, 3).flatmap(
    lambda count: st.builds(
        holding,
        st.lists(NAMES, min_size=count, max_size=count),
        st.lists(st.booleans(), min_size=count, max_size=count),
    )
)


@given(GROUPS, ANY, st.integers(0, 5))
async def test_pages_show_each_topic_once_and_those_of_one_name_together(
    groups: list[Holding], contains: str, limit: int
) -> None:
    pages = await walked(admin_of(*groups).topics_page, contains=contains, limit=limit)
    expected = sorted(
        (name, one.group)
        for one in groups
        for name in one.names
        if contains.lower() in name.lower()
    )
    assert [(row.topic, row.group) for page in pages for row in page.rows] == expected
    shown = [len({row.topic for row in page.rows}) for page in pages]
    assert all(count == limit for count in shown[:-1])
    assert not limit or shown[-1] <= limit
    names = {name for name, _ in expected}
    largest = max(sum(contains.lower() in name.lower() for name in one.names) for one in groups)
    assert all(largest <= page.total <= len(names) for page in pages)
    if len(groups) == 1 or len(pages) == 1:
        assert {page.total for page in pages} == {len(names)}


@given(GROUPS, ANY, st.integers(0, 5))
async def test_pages_show_each_consumer_group_once_with_its_queues_everywhere(
    groups: list[Holding], contains: str, limit: int
) -> None:
    pages = await walked(admin_of(*groups).groups_page, contains=contains, limit=limit)
    rows = [row for page in pages for row in page.rows]
    names = {n for one in groups for n in one.names if contains.lower() in n.lower()}
    assert [row.group for row in rows] == sorted(names)
    for row in rows:
        held = [one.group for one in groups if row.group in one.names]
        assert [queue.replica_group for queue in row.queues] == held


@given(GROUPS, st.integers(1, 3), st.data())
async def test_what_is_deleted_meanwhile_hides_nothing_else(
    groups: list[Holding], limit: int, data: st.DataObject
) -> None:
    """A page may then be short of rows, and the next one still begins where it ended."""
    everything = {(name, one.group) for one in groups for name in one.names}
    gone = data.draw(st.sets(st.sampled_from(sorted(everything)))) if everything else set()
    for one in groups:
        one.gone = {name for name, group in gone if group == one.group and not one.old}
    pages = await walked(admin_of(*groups).topics_page, limit=limit)
    left = sorted((name, one.group) for one in groups for name in one.names - one.gone)
    assert [(row.topic, row.group) for page in pages for row in page.rows] == left


async def test_a_page_is_a_value_that_begins_behind_a_name_that_need_not_exist() -> None:
    admin = admin_of(Holding("g", {"a", "c", "d"}))
    page = await admin.topics_page(after="b", limit=1)
    assert ([row.topic for row in page.rows], page.total, page.next) == (["c"], 3, "c")
    page = await admin.topics_page(after="c", limit=1)
    assert ([row.topic for row in page.rows], page.total, page.next) == (["d"], 3, "")
    value = duolog.Page(("a", "b"), 3, "b")
    assert replace(value) == value
    with pytest.raises(AttributeError):
        value.total = 4  # type: ignore[misc]


@pytest.mark.parametrize("old", [False, True])
async def test_a_page_of_all_groups_fails_where_one_does(old: bool) -> None:
    """As the whole list does: rows would be missing."""
    fine, failing = Holding("a", {"x"}), Holding("b", {"y"}, old)
    failing.error = duolog.Unavailable("nobody answers")
    admin = admin_of(fine, failing)
    for get in (admin.topics_page, admin.topics, admin.groups_page, admin.groups):
        with pytest.raises(duolog.Unavailable, match="nobody answers"):
            await cast(Callable[[], Awaitable[Any]], get)()


@pytest.mark.parametrize("limit", [-1, 1 << 32])
async def test_a_limit_that_is_none_is_refused(limit: int) -> None:
    admin = admin_of(Holding("g", {"a"}))
    for asked in (admin.topics_page(limit=limit), admin.groups_page(limit=limit)):
        with pytest.raises(duolog.BadRequest, match="limit is"):
            await asked
