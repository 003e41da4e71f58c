"""How a console is reached, and which nodes it calls."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """endpoints: nodes that are called. loopback: browsers reach the console on loopback only.
    port: that it listens on. secured: browsers reach it over TLS.
    """

    endpoints: Sequence[str]
    loopback: bool
    port: int
    secured: bool = False


__all__ = ["Settings"]
