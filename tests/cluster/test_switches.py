"""Orders to switch that a group refuses: given again, told, and not for ever."""

import duolog
import pytest

from duolog_server.chaos.run import SWITCH_ORDERS, Invalid, ordered


class Group:
    """Refuses so many orders."""

    def __init__(self, refusals: int) -> None:
        self.left = refusals
        self.told: list[str] = []

    async def order(self) -> None:
        if self.left:
            self.left -= 1
            raise duolog.BadRequest("no node can take over")

    async def refused(self, why: str) -> None:
        self.told.append(why)


async def test_an_order_that_is_refused_is_given_again_and_told() -> None:
    group = Group(SWITCH_ORDERS - 1)
    await ordered(group.order, group.refused)
    assert group.told == ["no node can take over"] * (SWITCH_ORDERS - 1)


async def test_a_healthy_group_that_refuses_every_order_ends_the_run() -> None:
    group = Group(SWITCH_ORDERS)
    with pytest.raises(Invalid, match="4 orders to switch were refused: no node can take over"):
        await ordered(group.order, group.refused)
    assert not group.left
