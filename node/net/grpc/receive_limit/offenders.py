"""Addresses of which connections were ended again and again: they get less patience, for a while.

An attacker that connects anew each time it is ended has, with each connection, what any new one
may have. No IO, no clock.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from duolog_server.node.net.networks import network_of
from duolog_server.store.clocks import MonoMs

OFFENCES = 3  # connections that were ended, within OFFENCE_MS
OFFENCE_MS = 10_000  # and so long after the last of them
NETWORKS_MAX = 200  # of which new connections wait to be looked at: each segment is compared
ADDRESSES_MAX = 1000  # then the one that was ended longest ago is forgotten


@dataclass(slots=True)
class Offenders:
    """The addresses; those of an IPv6 network count as one."""

    _ended: dict[str, deque[MonoMs]] = field(default_factory=dict)  # the latest one last

    def note(self, address: str, now_ms: MonoMs) -> None:
        """A connection of this address was ended."""
        client = network_of(address)
        found = self._ended.pop(client, None) or deque[MonoMs](maxlen=OFFENCES)
        found.append(now_ms)
        self._ended[client] = found
        if len(self._ended) > ADDRESSES_MAX:
            del self._ended[next(iter(self._ended))]

    def are_any(self, now_ms: MonoMs) -> bool:
        """Whether any address is one now; those that are over are forgotten."""
        while self._ended:
            first = next(iter(self._ended))
            if now_ms - self._ended[first][-1] < OFFENCE_MS:
                break
            del self._ended[first]
        return any(_offends(found, now_ms) for found in self._ended.values())

    def has(self, address: str, now_ms: MonoMs) -> bool:
        """Whether this address is one now."""
        found = self._ended.get(network_of(address))
        return found is not None and _offends(found, now_ms)

    def networks(self, now_ms: MonoMs) -> tuple[str, ...]:
        """The latest of them first, as network_of gives them; at most so many."""
        found = (name for name, ended in reversed(self._ended.items()) if _offends(ended, now_ms))
        return tuple(islice(found, NETWORKS_MAX))


def _offends(ended: deque[MonoMs], now_ms: MonoMs) -> bool:
    is_recent = now_ms - ended[-1] < OFFENCE_MS
    return is_recent and len(ended) == OFFENCES and ended[-1] - ended[0] < OFFENCE_MS


__all__ = ["Offenders"]
