"""How a console is reached, and which nodes it calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from duolog_server.ops.console.masking.seen import Seeing


@dataclass(frozen=True, slots=True)
class Settings:
    """endpoints: nodes that are called. loopback: browsers reach the console on loopback only.
    port: that it listens on. secured: browsers reach it over TLS. origins: under which browsers see
    it, where a proxy is before it; empty: there is none, and any name that leads here will do.
    seeing: how messages are shown.
    """

    endpoints: Sequence[str]
    loopback: bool
    port: int
    secured: bool = False
    origins: Sequence[str] = ()
    seeing: Seeing = field(default_factory=Seeing)
