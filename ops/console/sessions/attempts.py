"""How often somebody may try to log in.

Rules: an address may fail a few times, then once in a while; a login that does not fail gives back
its own try alone, so that who may log in cannot try the passwords of others either.
"""

from collections import OrderedDict
from collections.abc import Callable

from duolog_server.node.net.networks import network_of

ATTEMPTS = 10  # that an address may fail
ATTEMPT_SECONDS = 30.0  # until one of them is forgotten
ADDRESSES_MAX = 10_000


class Attempts:
    """Failed logins by network: a few are free, then one in ATTEMPT_SECONDS."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._free_at: OrderedDict[str, float] = OrderedDict()  # when all of them are forgotten

    def left_seconds(self, address: str) -> float:
        """How long an address must wait until it may try; 0: it may."""
        behind = self._free_at.get(network_of(address), 0.0) - self._seconds()
        return max(0.0, behind - (ATTEMPTS - 1) * ATTEMPT_SECONDS)

    def failed(self, address: str) -> None:
        """An address tried."""
        now, network = self._seconds(), network_of(address)
        self._free_at[network] = max(self._free_at.get(network, now), now) + ATTEMPT_SECONDS
        self._free_at.move_to_end(network)
        if len(self._free_at) > ADDRESSES_MAX:
            self._free_at.popitem(last=False)

    def passed(self, address: str) -> None:
        """A try of an address did not fail; its other ones did."""
        network = network_of(address)
        free_at = self._free_at.get(network, 0.0) - ATTEMPT_SECONDS
        if free_at > self._seconds():
            self._free_at[network] = free_at
        else:
            self._free_at.pop(network, None)
