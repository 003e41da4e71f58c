"""Links that viewers get: what the nodes are asked for them, and when."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import duolog
import pytest
from duolog.wire import duolog_pb2 as wire

from duolog_server.ops.console.app import ACTIONS, DOWNLOADS, PAGES
from duolog_server.ops.console.view import addresses as at
from duolog_server.ops.console.view.addresses import address
from duolog_server.ops.console.view.calls import CALLS
from duolog_server.ops.console.view.links import KNOWN_SECONDS, Rights

ALTER = address(at.TOPIC_ALTER, topic="T")
TAIL = address(at.TAIL, topic="T")


class Nodes:
    """Deny some methods. asked: how many calls each request was about."""

    def __init__(self, *denied: str) -> None:
        self.denied = denied
        self.asked: list[int] = []
        self.wrong: Exception | None = None
        self.held: asyncio.Event | None = None

    @property
    def access(self) -> "Nodes":
        return self

    async def _ask(self, make: Callable[..., Awaitable[wire.UserReply]]) -> wire.UserReply:
        return await make(self, 1.0)

    async def WhoAmI(self, request: wire.WhoAmIRequest, timeout: float) -> wire.UserReply:
        self.asked.append(len(request.calls))
        if self.wrong is not None:
            raise self.wrong
        denied = bytes(call.method in self.denied for call in request.calls)
        if self.held is not None:
            await self.held.wait()
        return wire.UserReply(user="alice", denied=denied, denial="no" if any(denied) else "")


class Page:
    """A page with two links. now: of the clock."""

    def __init__(self, nodes: Nodes, user: str = "alice") -> None:
        self.now = 100.0
        self.rights = Rights(user, cast(duolog.Client, nodes), lambda: self.now)

    def draw(self) -> str:
        return " ".join(one for one in (ALTER, TAIL) if self.rights.shows(one))


async def test_a_page_asks_once_for_all_its_links_and_again_later() -> None:
    nodes = Nodes("Admin/AlterTopic")
    page = Page(nodes)
    for _ in range(3):
        assert await page.rights.drawn(page.draw) == TAIL
    assert nodes.asked == [3]
    nodes.denied = ("Messages/Pull",)
    page.now += KNOWN_SECONDS + 1
    assert await page.rights.drawn(page.draw) == ALTER
    assert nodes.asked == [3, 3]


async def test_while_the_nodes_do_not_answer_the_last_answer_holds() -> None:
    nodes = Nodes("Admin/AlterTopic")
    page = Page(nodes)
    nodes.wrong = duolog.Unavailable("no")
    assert await page.rights.drawn(page.draw) == f"{ALTER} {TAIL}", "nothing is known"
    nodes.wrong = None
    assert await page.rights.drawn(page.draw) == TAIL
    page.now += KNOWN_SECONDS + 1
    nodes.wrong = duolog.Unavailable("no")
    assert await page.rights.drawn(page.draw) == TAIL
    assert await page.rights.drawn(page.draw, asks=False) == TAIL


async def test_what_follows_a_change_does_not_fail_where_the_nodes_do_not_answer() -> None:
    """A form whose work fails may be sent again, and its message would be there twice."""
    nodes = Nodes("Admin/AlterTopic")
    rights = Page(nodes).rights
    nodes.wrong = duolog.Unavailable("no")
    assert await rights.may(ALTER)
    assert await rights.allowed(["T"]) == ["T"]


async def test_an_answer_that_comes_late_does_not_bring_back_older_ones() -> None:
    nodes = Nodes()
    page = Page(nodes)
    assert await page.rights.may(ALTER)
    nodes.held = asyncio.Event()
    late = asyncio.ensure_future(page.rights.may(TAIL))
    await asyncio.sleep(0)
    held, nodes.held = nodes.held, None
    nodes.denied = ("Admin/AlterTopic",)
    page.now += KNOWN_SECONDS + 1
    assert not await page.rights.may(ALTER)
    held.set()
    assert await late
    assert not page.rights.shows(ALTER)


async def test_without_users_nothing_is_asked_and_pages_about_users_have_no_links() -> None:
    nodes = Nodes("Admin/AlterTopic")
    page = Page(nodes, user="")
    assert await page.rights.drawn(page.draw) == f"{ALTER} {TAIL}"
    await page.rights.check(at.TOPIC_ALTER, {"topic": "T"})
    assert nodes.asked == []
    assert not page.rights.shows(address(at.RIGHTS))


async def test_what_is_denied_is_not_done_and_says_why() -> None:
    rights = Rights("alice", cast(duolog.Client, Nodes("Admin/DeleteTopic")))
    await rights.check(at.TOPIC_ALTER, {"topic": "T"})
    with pytest.raises(duolog.NoPermission, match="user alice: no"):
        await rights.check(at.TOPIC_DELETE, {"topic": "T"})
    with pytest.raises(duolog.BadRequest):
        await rights.check(at.TOPIC_DELETE, {"topic": "\udcff"})


def test_every_page_and_action_says_what_it_calls() -> None:
    everybodys = {at.CLUSTER, at.TOPICS, at.GROUPS, at.DELAYED, at.HALVES}
    everybodys |= {at.SEARCH_STOP, at.SEARCH_AGAIN}
    assert CALLS.keys() == {*PAGES, *ACTIONS, *DOWNLOADS} - everybodys
