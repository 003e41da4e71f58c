"""A simulated node, as its observers see it: what they read, and never change."""

import builtins
from collections.abc import Mapping
from typing import Protocol

from ha.failover import Failover
from ha.master import Master
from ha.slave import Slave
from sim.disk import SimDisk
from sim.platter import LogBytes
from store.clocks import MonoMs
from store.messagestore import MessageStore
from store.status import BrokerRole


class Watched(Protocol):
    """One replica. The observers clear its marks of loss once it has everything again."""

    name: str
    boot: int
    up: bool
    store: MessageStore
    disk: SimDisk
    bytes: LogBytes
    master: Master | None
    slave: Slave | None
    incarnation: int
    ordered: BrokerRole
    older: str
    adopted: builtins.bytes
    tainted: bool
    lost_power: bool
    lost_disk: bool
    needs_reboot: bool
    truncated_bytes: int

    @property
    def peers(self) -> "Mapping[str, Watched]":
        """All nodes, by name."""

    @property
    def machine(self) -> Failover | None:
        """Its failover machine, where masters are elected."""

    def mono(self) -> MonoMs:
        """Its monotonic clock."""
