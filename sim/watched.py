"""A simulated node, as its observers see it: what they read, and never change."""

import builtins
from collections.abc import Mapping
from typing import Protocol

from duolog_server.ha.failover import Failover
from duolog_server.ha.master import Master
from duolog_server.ha.slave import Slave
from duolog_server.store.clocks import MonoMs
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.status import BrokerRole
from sim.disk import SimDisk
from sim.platter import LogBytes


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
    unreachable: bool

    @property
    def peers(self) -> "Mapping[str, Watched]":
        """All nodes, by name."""

    @property
    def machine(self) -> Failover | None:
        """Its failover machine, where masters are elected."""

    def mono(self) -> MonoMs:
        """Its monotonic clock."""
