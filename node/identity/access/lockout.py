"""How often somebody may give a wrong password or signature. Pure.

Rules: failures are counted by the user that is named and the network that they come from: a few are
free, then one in a while. So nobody can lock a user out from other networks. While a user is locked
out in a network, right credentials are refused as well: otherwise their answers would sort guesses.
Only a connection over which the user has proved itself before stays open to it, until something
wrong comes over it. A network that fails for many users has one count for all the others of them,
so that it can neither try every name nor fill the memory.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from duolog import _errors as sdk

from duolog_server.node.identity.rights.policies import NAME_MAX
from duolog_server.node.net.networks import network_of
from duolog_server.store.clocks import MonoMs

FREE = 10  # failures of a user in a network
FAILURE_MS = 30_000  # until one of them is forgotten
USERS_MAX = 100  # of a network, that are counted each by itself
COUNTS_MAX = 20_000  # of all networks; the network that failed last the longest ago is forgotten
PROVED_MAX = 20_000  # connections and users
OTHERS = "*"  # no user's name


@dataclass(frozen=True, slots=True)
class Login:
    """Somebody who proves to be a user. address: where from. connection: its address with the port;
    empty where it may not last.
    """

    user: str
    address: str
    connection: str = ""


@dataclass(slots=True)
class _Failures:
    """Failures of a user in one network. free_at: when all are forgotten. told: it was reported."""

    free_at: MonoMs
    told: bool = False


class Lockout:
    """Counts failed logins.

    Attributes:
        failures: logins that were wrong.
        refused: logins that were not looked at.
        locked: called with a login whose user is locked out from now on, there; `OTHERS` for all
            users of the network that are not counted each by itself.
    """

    def __init__(self, mono_ms: Callable[[], MonoMs]) -> None:
        self._mono_ms = mono_ms
        self._networks: OrderedDict[str, dict[str, _Failures]] = OrderedDict()
        self._counts = 0
        self._proved: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.failures = 0
        self.refused = 0
        self.locked: list[Callable[[Login], None]] = []

    def validate(self) -> str:
        """The violated bound or count; empty if all hold."""
        counts = sum(map(len, self._networks.values()))
        if counts != self._counts or not all(self._networks.values()):
            return f"{counts} users of networks have failed, and {self._counts} are counted"
        if counts > COUNTS_MAX or len(self._proved) > PROVED_MAX:
            return f"{counts} counts and {len(self._proved)} connections are kept"
        return ""

    def left_ms(self, login: Login) -> int:
        """How long a login must wait until it is looked at, ms; 0: it need not."""
        if not self._networks:
            return 0
        found = self._found(login)
        if found is None:
            return 0
        return max(0, found.free_at - self._mono_ms() - (FREE - 1) * FAILURE_MS)

    def check(self, login: Login) -> None:
        """Raise Throttled where a login must wait."""
        left = self.left_ms(login)
        if left and (login.connection, login.user) not in self._proved:
            self.refused += 1
            raise sdk.Throttled(
                f"user {login.user[:NAME_MAX]!r}: too many logins from {login.address} failed; try "
                f"again in {-(-left // 1000)} s. Open connections of that user stay open",
                left,
            )

    def begins(self, login: Login) -> None:
        """A login that was let through counts as failed until it `ended`: of many at the same time,
        no more are looked at than may fail.
        """
        now = self._mono_ms()
        self._forget(now)
        network = network_of(login.address)
        users = self._networks.setdefault(network, {})
        self._networks.move_to_end(network)
        if len(users) >= USERS_MAX:
            self._forget_users(users, now)  # it may never be the first one of the order
        name = self._name(users, login.user)
        if name not in users:
            users[name] = _Failures(now)
            self._counts += 1
            self._make_room()
        found = users[name]
        found.free_at = MonoMs(max(found.free_at, now) + FAILURE_MS)

    def ended(self, login: Login, *, is_right: bool) -> None:
        """Note whether a login was right. A right one takes back its own count alone, and its
        connection stays open to it, whatever others do.
        """
        found = self._found(login)
        if not is_right:
            self.failures += 1
            self._proved.pop((login.connection, login.user), None)
            if found is not None and not found.told and self.left_ms(login):
                found.told = True
                named = self._name(self._networks[network_of(login.address)], login.user)
                for tell in self.locked:
                    tell(replace(login, user=named))
            return
        self.proved(login)
        if found is not None:
            found.free_at = MonoMs(found.free_at - FAILURE_MS)
            if found.free_at <= self._mono_ms():
                self._remove(network_of(login.address), login.user)

    def proved(self, login: Login) -> None:
        """Note that a login was right and needed no comparison. During a lock-out that proves
        nothing anew: over a connection of several clients, one of them would let another guess.
        """
        key = login.connection, login.user
        if key in self._proved:
            self._proved.move_to_end(key)  # the ones that are used no more go first
        if not login.connection or key in self._proved or self.left_ms(login):
            return
        self._proved[key] = None
        if len(self._proved) > PROVED_MAX:
            self._proved.popitem(last=False)

    def guarded(self, login: Login, is_right: Callable[[], bool]) -> bool:
        """Check a login that is compared at once: whether it is right.

        Raises Throttled where it must wait.
        """
        self.check(login)
        if is_right():
            self.proved(login)
            return True
        self.begins(login)
        self.ended(login, is_right=False)
        return False

    @property
    def locked_out(self) -> int:
        """How many users are locked out now, in how many networks."""
        latest = self._mono_ms() + (FREE - 1) * FAILURE_MS
        return sum(
            one.free_at > latest for users in self._networks.values() for one in users.values()
        )

    # -- counts --------------------------------------------------------------------------------

    @staticmethod
    def _name(users: dict[str, _Failures], user: str) -> str:
        """The user, or all others of the network."""
        named = user in users or (len(users) < USERS_MAX and len(user) <= NAME_MAX)
        return user if named and user != OTHERS else OTHERS

    def _found(self, login: Login) -> _Failures | None:
        users = self._networks.get(network_of(login.address))
        return users.get(self._name(users, login.user)) if users else None

    def _remove(self, network: str, user: str) -> None:
        users = self._networks[network]
        del users[self._name(users, user)]
        self._counts -= 1
        if not users:
            del self._networks[network]

    def _forget(self, now: MonoMs) -> None:
        """Forget networks that failed long ago, the first ones of the order."""
        while self._networks:
            network, users = next(iter(self._networks.items()))
            self._forget_users(users, now)
            if users:
                return
            del self._networks[network]

    def _forget_users(self, users: dict[str, _Failures], now: MonoMs) -> None:
        for name in [name for name, one in users.items() if one.free_at <= now]:
            del users[name]
            self._counts -= 1

    def _make_room(self) -> None:
        while self._counts > COUNTS_MAX:
            _, users = self._networks.popitem(last=False)
            self._counts -= len(users)
