"""Connections of simulated programs: their end is reported, or noticed after a while."""

from collections.abc import Callable
from random import Random
from typing import Any

import grpc
import pytest

from duolog_server.node.net.methods import Methods
from sim.channels import CLIENT, KEEPALIVE_MS, Call, SimServer
from sim.network import Network
from sim.world import World


class Standing:
    """A node whose process stands still: it does nothing that it is told."""

    name = "a"
    boot = 1
    up = True

    def __init__(self) -> None:
        self.chance_of_reset = Random(1)
        self.rpc = SimServer(self, Methods(), lambda work: pytest.fail("it begins"), self.failed)

    @staticmethod
    def failed(problem: Exception) -> None:
        raise problem

    @property
    def services(self) -> "Standing | None":
        return self if self.up else None

    def guarded(self, do: Callable[..., None]) -> Callable[..., None]:
        return lambda *arguments: None

    def die(self) -> None:
        self.up = False
        self.rpc.stop()


def called() -> tuple[World, Network, Standing, Call]:
    """A call that has reached the machine of a node that stands still."""
    world = World(1)
    network, node = Network(world), Standing()
    call = Call(network, node, "/S/M")
    call.begin()
    world.run_until(50.0, lambda: None)
    return world, network, node, call


def ended(call: Call) -> Any:
    """How the program sees it."""
    return None if call.status is None else call.status[0]


def test_a_call_to_a_process_that_stands_still_ends_when_that_dies() -> None:
    world, _, node, call = called()
    assert ended(call) is None
    node.die()
    world.run_until(50.0 + 2 * KEEPALIVE_MS, lambda: None)
    assert ended(call) is grpc.StatusCode.UNAVAILABLE


def test_a_reset_that_is_lost_is_noticed_later() -> None:
    world, network, node, call = called()
    network.cuts.add((node.name, CLIENT))
    node.die()
    world.run_until(50.0 + KEEPALIVE_MS / 2, lambda: None)
    assert ended(call) is None
    world.run_until(50.0 + 2 * KEEPALIVE_MS, lambda: None)
    assert ended(call) is grpc.StatusCode.UNAVAILABLE
