"""Whether a node that is in touch with its master has heard of changes in time."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from duolog_server.ha.progress import ConnectionState
from sim.intouch import LOOK_MS, SOON_MS, InTouch
from sim.network import Network
from sim.stage import Stage
from sim.witness import Violation
from sim.world import World


def process(name: str, applied: int) -> Any:
    tables = SimpleNamespace(applied=applied)
    broker = SimpleNamespace(metadata=SimpleNamespace(tables=tables))
    store = SimpleNamespace(log=SimpleNamespace(max_offset=100), confirm_offset=100)
    return SimpleNamespace(
        name=name,
        up=True,
        stopped=False,
        older="",
        lost_disk=False,
        sync_ms=1.0,
        standstill=SimpleNamespace(on=False),
        disk=SimpleNamespace(full=False),
        services=SimpleNamespace(broker=broker),
        store=store,
        master=None,
        slave=None,
    )


def group(applied: int) -> Any:
    """A master that has applied all of five changes, and a slave."""
    world = World(1)
    master, slave = process("a", 5), process("b", applied)
    master.master = SimpleNamespace(epoch=3, epoch_confirmed=True)
    slave.slave = SimpleNamespace(state=ConnectionState.TRANSFER, master_node="a", epoch=3)
    keeper = SimpleNamespace(master=master)
    nodes = [master, slave]
    return SimpleNamespace(world=world, network=Network(world), keeper=keeper, nodes=nodes)


def watched(stage: Any, until: float) -> None:
    touch = InTouch(cast(Stage, stage))
    touch.look()
    touch.acknowledged(5)
    stage.world.run_until(until, lambda: None)


def test_a_slave_that_has_all_changes_is_in_time() -> None:
    stage = group(5)
    watched(stage, 3 * SOON_MS)
    assert stage.world.events > SOON_MS / LOOK_MS


def test_a_slave_in_touch_that_lacks_a_change_after_a_second_is_a_violation() -> None:
    watched(group(4), SOON_MS - LOOK_MS)
    with pytest.raises(Violation, match="b has applied 4 changes, 5 were acknowledged"):
        watched(group(4), SOON_MS + 2 * LOOK_MS)


def cut(stage: Any) -> None:
    stage.network.cuts.add(("a", "b"))


def pause(stage: Any) -> None:
    stage.nodes[0].standstill.on = True


def fill(stage: Any) -> None:
    stage.nodes[1].disk.full = True


def behind(stage: Any) -> None:
    stage.nodes[1].store.log.max_offset = 99


def elsewhere(stage: Any) -> None:
    stage.nodes[1].slave.epoch = 2


@pytest.mark.parametrize("hinder", [cut, pause, fill, behind, elsewhere])
def test_a_slave_that_is_held_up_may_lack_it(hinder: Any) -> None:
    stage = group(4)
    hinder(stage)
    watched(stage, 3 * SOON_MS)
    assert stage.world.events > 2 * SOON_MS / LOOK_MS
