"""The doors of the native API, with and without users."""

from dataclasses import replace

from node.access.frameskeys import FramesKeys
from node.access.gate import Gate, Principal
from node.api.guard import Appending, GuardedAppends
from store.record import Host


class FramesDoor:
    """Admits frames connections by the keys that were handed out."""

    def __init__(self, keys: FramesKeys, appends: Appending, gate: Gate | None):
        """gate: None where there are no users."""
        self._keys = keys
        self._appends = appends
        self._gate = gate

    def admit(self, key: bytes, host: Host) -> tuple[Principal | None, Appending] | None:
        """Whose connection begins with that key, and what stores its appends; None: nobody's.

        A key that one address asked for is good from another one, whose rights then count.
        """
        found, principal = self._keys.take(key)
        if not found:
            return None
        if self._gate is None or principal is None:
            return None, self._appends
        principal = replace(principal, source=host.address)
        return principal, GuardedAppends(self._appends, self._gate, principal)


__all__ = ["FramesDoor"]
