"""Refusals that wait until it is known who takes puts."""

import asyncio

from duolog_server.node.replication import roles
from duolog_server.node.replication.roles import Refusals


class Node:
    """What a node knows."""

    def __init__(self) -> None:
        self.knows = False
        self.refusals = Refusals(lambda: self.knows)


async def test_a_refusal_waits_while_the_node_may_learn_who_takes_puts() -> None:
    node = Node()
    told = [node.refusals.told_later(1000) for _ in range(3)]
    node.refusals.release_if_settled()
    assert [one is not None and one.done() for one in told] == [False] * 3
    node.knows = True
    node.refusals.release_if_settled()
    assert [one is not None and one.done() for one in told] == [True] * 3
    node = Node()
    assert node.refusals.told_later(0) is None
    node.knows = True
    assert node.refusals.told_later(1000) is None
    node = Node()
    loop = asyncio.get_running_loop()
    began = loop.time()
    later = node.refusals.told_later(20)
    assert later is not None
    await asyncio.wait_for(later, 60)
    assert loop.time() - began >= 0.015
    later = node.refusals.told_later(3_600_000)
    assert later is not None
    due = node.refusals._waiting[later].when()
    assert due <= loop.time() + roles.PATIENCE_MS / 1000
    node.refusals.end()


async def test_only_so_many_wait() -> None:
    node = Node()
    told = [node.refusals.told_later(1000) for _ in range(roles.WAITING_MAX + 1)]
    assert [one is None for one in told[-2:]] == [False, True]
    node.refusals.end()
    assert all(one is None or one.done() for one in told)


async def test_a_node_that_stops_tells_all_and_lets_none_wait_any_more() -> None:
    node = Node()
    told = node.refusals.told_later(1000)
    assert told is not None
    told.cancel()  # its connection is gone
    other = node.refusals.told_later(1000)
    node.refusals.end()
    assert other is not None
    assert other.done()
    assert node.refusals.told_later(1000) is None
