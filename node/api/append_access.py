"""Where batches come in: what stores those of a call or of a connection, and whose they are."""

from collections.abc import Callable
from dataclasses import replace

from duolog import _errors as sdk

from duolog_server.node.api.appends import Appends
from duolog_server.node.api.guard import MethodGuard
from duolog_server.node.appending import Appending
from duolog_server.node.core.throttle import Throttle
from duolog_server.node.identity.access.frameskeys import FramesKeys
from duolog_server.node.identity.access.gate import PRINCIPAL, Principal
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.store.record import Host


def appends_of_call(appends: Appends, guard: MethodGuard | None) -> Callable[[], Appending]:
    """Tells what stores the batches of the call that runs in this task.

    guard: None where there are no users.
    """

    def of_call() -> Appending:
        principal = PRINCIPAL.get()
        if guard is None or principal is None:
            return appends
        return guard.appends_of(principal, appends)

    return of_call


class FramesAuthenticator:
    """Admits frames connections by the keys that were handed out."""

    def __init__(
        self, keys: FramesKeys, appends: Appends, guard: MethodGuard | None, throttle: Throttle
    ) -> None:
        """guard: None where there are no users."""
        self._keys = keys
        self._appends = appends
        self._guard = guard
        self._throttle = throttle

    def admit(
        self, key: bytes, host: Host, certificate: str
    ) -> tuple[Principal | None, Appending] | None:
        """Whose connection begins with that key, and what stores its appends; None: nobody's.

        A key that one address asked for is good from another one, whose rights then count. A
        client's certificate must name the user whose key it is.
        """
        found, principal = self._keys.take(key)
        if not found:
            return None
        if self._guard is None:
            return None, self._appends
        assert principal is not None, "where there are users, each key is for one of them"
        if certificate and certificate != principal.name:
            whose = sdk.Unauthenticated(
                f"the certificate is that of {certificate!r}, the key is another user's"
            )
            self._guard.denied(replace(principal, source=host.address), "frames", "", whose)
            return None
        principal = replace(principal, source=host.address)
        return principal, self._guard.appends_of(principal, self._appends)

    def joined(self, principal: object, host: Host, peer: str) -> None:
        """A connection that was admitted begins. Raises Throttled where it may not."""
        self._throttle.joined(_who(principal, host), peer)

    def left(self, principal: object, host: Host, peer: str) -> None:
        """It ended."""
        self._throttle.left(_who(principal, host), peer)


def _who(principal: object, host: Host) -> Who:
    user = principal.name if isinstance(principal, Principal) else ""
    return Who.at(user, host.address)
