"""Planted bugs of users, rights and quotas: of their tables, of the gate, and of the meters."""

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from duolog_server.node.api import guard
from duolog_server.node.api.access import AccessService
from duolog_server.node.api.guard import GuardedAppends
from duolog_server.node.api.native import NodeFacts
from duolog_server.node.api.rules import RULES
from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.identity.access import accesstokens
from duolog_server.node.identity.access.gate import Gate
from duolog_server.node.identity.access.guarding import Delivering
from duolog_server.node.identity.access.secrets import SALT_BYTES
from duolog_server.node.identity.access.users import User
from duolog_server.node.identity.quotas.meter import Meter
from duolog_server.node.identity.quotas.quotas import Direction, _Accounts
from duolog_server.store.accesstables import AccessTables
from duolog_server.store.metadata import Metadata
from duolog_server.store.status import BrokerRole
from sim.faults import ACCESS_ON, NODES, SERVICES_ON, Fault
from sim.mutants_services import with_services
from sim.planted import Bugs, Patch, left_out


def with_access(seed: int) -> list[Fault]:
    """A run's usual faults, and nodes with users, whose services are used by nobody else."""
    found = [*with_services(seed), Fault(0.0, ACCESS_ON, NODES[0])]
    return sorted(found, key=lambda fault: fault.at)


def _losing_segments(seed: int) -> list[Fault]:
    """Nodes with users; one loses a segment, and is killed soon after it has it again."""
    chance = random.Random(seed)
    node, at = chance.choice(NODES), chance.uniform(900, 1600)
    again = round(at + chance.uniform(250, 600), 3)
    return [
        Fault(0.0, SERVICES_ON, NODES[0]),
        Fault(0.0, ACCESS_ON, NODES[0]),
        Fault(round(at, 3), "lose_segment", node, lasts=100.0, level=round(chance.random(), 3)),
        Fault(again, "kill", node, lasts=50.0, level=0.3),
    ]


# -- the tables ------------------------------------------------------------------------------------


def _passed_over_by_slaves(*operations: str) -> Callable[[], list[Patch]]:
    """Some changes are applied by masters only."""

    def patches() -> list[Patch]:
        original = MetadataLog._apply

        def apply(self: Any, body: bytes) -> None:
            slave = self._store.role is BrokerRole.SLAVE
            if not (slave and json.loads(body)["op"] in operations):
                original(self, body)

        return [(MetadataLog, "_apply", apply)]

    return patches


def _snapshots_without_quotas() -> list[Patch]:
    original = Metadata.snapshot
    return [(Metadata, "snapshot", lambda self: replace(original(self), quotas={}))]


def _adopted_in_addition() -> list[Patch]:
    """Who takes the tables of its master keeps the users that these do not have."""

    def adopt(self: Any, other: Any) -> None:
        self.users = {**self.users, **other.users}
        self.rights = {**self.rights, **other.rights}
        self.changes += 1

    return [(AccessTables, "replace", adopt)]


def _saved_though_lacking() -> list[Patch]:
    """A slave saves tables without the records of a lost segment."""
    original = MetadataLog.save

    async def save(self: Any) -> None:
        self._lacking = False
        await original(self)

    return [(MetadataLog, "save", save)]


def _rights_outlive() -> list[Patch]:
    """A user that is created again has the rights of the one before."""

    def delete(self: Any, name: str) -> None:
        self.users.pop(name, None)
        self.changes += 1

    return [(AccessTables, "delete_user", delete)]


def _acknowledged_at_once() -> list[Patch]:
    """A change is answered before it is confirmed."""

    async def applied(self: Any, offset: int) -> None:
        return None

    return [(MetadataLog, "applied", applied)]


# -- the gate --------------------------------------------------------------------------------------


def _until_a_restart(*kept: str) -> Callable[[], list[Patch]]:
    """The gate goes on by some of what it once read."""

    def patches() -> list[Patch]:
        original = Gate._refresh

        def refresh(self: Any) -> None:
            before = [(name, dict(getattr(self, name))) for name in kept]
            original(self)
            for name, rows in before:
                getattr(self, name).update(rows)

        return [(Gate, "_refresh", refresh)]

    return patches


def _tokens_outlive_passwords() -> list[Patch]:
    original = accesstokens._words
    return [
        (
            accesstokens,
            "_words",
            lambda user, until_ms: original(replace(user, password=""), until_ms),
        )
    ]


def _salt_of_the_password() -> list[Patch]:
    """A password that a user has again has the hash that it had before."""

    def hashed(self: Any, request: Any, stored: str) -> str:
        salt = hashlib.sha256(request.password.encode()).digest()[:SALT_BYTES]
        return str(self._users().seal.hash_password(request.user, request.password, salt))

    return [(AccessService, "_hashed", hashed)]


def _disablings_forgotten() -> list[Patch]:
    """What ended when a user was disabled is good again when it is enabled."""
    return [(User, "credentials", property(lambda self: self.password))]


def _any_credentials() -> list[Patch]:
    """What proved a user once proves it on."""
    return [(Gate, "is_current", lambda self, principal: self.user(principal.name) is not None)]


def _first_user_stays() -> list[Patch]:
    original = Gate.user
    return [(Gate, "user", lambda self, name: original(self, name) or self._first(name))]


def _streams_go_on() -> list[Patch]:
    """Who was let in may send on."""

    def append(self: Any, request: Any, host: Any, bodies: Any = None) -> Any:
        return self._appends.append(request, host, bodies, self._principal.name)

    return [(GuardedAppends, "append", append)]


def _subscriptions_go_on() -> list[Patch]:
    """Who was let in is given messages on."""

    async def write(self: Any, message: Any) -> None:
        await self._context.write(message)

    return [(Delivering, "write", write)]


def _pulls_go_on() -> list[Patch]:
    """Who waits for messages gets them, whatever was changed meanwhile."""
    path = "/duolog.v1.Messages/Pull"
    rules = {**RULES, path: replace(RULES[path], again=False)}
    return [(guard, "RULES", rules)]


# -- quotas ----------------------------------------------------------------------------------------


def _anew_at_each_change() -> list[Patch]:
    """Any change of any quota fills all buckets."""
    original = _Accounts.replace

    def renew(self: Any, quotas: Any) -> bool:
        self.open = {}
        return original(self, quotas)

    return [(_Accounts, "replace", renew)]


def _as_before() -> list[Patch]:
    """Who was counted by a quota is counted by it on."""
    original = _Accounts.replace

    def keep(self: Any, quotas: Any) -> bool:
        before = self.open
        found = original(self, quotas)
        self.open = before
        return found

    return [(_Accounts, "replace", keep)]


def _refused_counts() -> list[Patch]:
    """What is refused uses the quota up."""
    original = Direction.take

    def take(self: Any, who: Any, topic: str, passing: tuple[int, int], now_ms: int) -> Any:
        wait = original(self, who, topic, passing, now_ms)
        if wait is not None:
            self.add(who, topic, passing, now_ms)
        return wait

    return [(Direction, "take", take)]


def _half_the_wait() -> list[Patch]:
    original = Direction.take

    def take(self: Any, who: Any, topic: str, passing: tuple[int, int], now_ms: int) -> Any:
        wait = original(self, who, topic, passing, now_ms)
        return wait._replace(ms=max(1, wait.ms // 2)) if wait is not None else None

    return [(Direction, "take", take)]


def _only_one_holds() -> list[Patch]:
    """Of several quotas, one counts."""
    original = Direction._of
    return [
        (Direction, "_of", lambda self, who, topic, now_ms: original(self, who, topic, now_ms)[:1])
    ]


def _twice_the_burst() -> list[Patch]:
    original = Meter.__init__

    def make(self: Any, a_second: int, burst_ms: int) -> None:
        original(self, a_second, 2 * burst_ms)

    return [(Meter, "__init__", make)]


_bug = Bugs(with_access)


ACCESS = [
    _bug(
        "access-slave-keeps-users",
        "a slave does not apply that a user is deleted",
        _passed_over_by_slaves("delete_user"),
    ),
    _bug(
        "access-rights-on-master",
        "rights are changed on the master only",
        _passed_over_by_slaves("rights", "delete_rights"),
    ),
    _bug(
        "quota-on-master",
        "quotas are changed on the master only",
        _passed_over_by_slaves("quota", "delete_quota"),
    ),
    _bug("quota-not-in-snapshots", "snapshots have no quotas", _snapshots_without_quotas),
    _bug("access-adopted-on-top", "adopted tables keep deleted users", _adopted_in_addition),
    _bug(
        "tables-saved-lacking",
        "a snapshot lacks the records of a lost segment",
        _saved_though_lacking,
        _losing_segments,
    ),
    _bug("access-rights-outlive", "rights outlive their user", _rights_outlive),
    _bug("access-answered-at-once", "a change is answered unconfirmed", _acknowledged_at_once),
    _bug(
        "access-users-until-restart",
        "a disabled user is let in until a restart",
        _until_a_restart("_users"),
    ),
    _bug(
        "access-rights-until-restart",
        "rights hold until a restart",
        _until_a_restart("_rights", "_decisions"),
    ),
    _bug("access-old-tokens", "a token outlives its password", _tokens_outlive_passwords),
    _bug("access-tokens-again", "a token of a password given again", _salt_of_the_password),
    _bug("access-tokens-enabled", "a token of a user enabled again", _disablings_forgotten),
    _bug("access-any-credentials", "a stream outlives its password", _any_credentials),
    _bug("access-first-user-stays", "the first user is never replaced", _first_user_stays),
    _bug("access-streams-go-on", "who was let in once may send on", _streams_go_on),
    _bug("access-subscriptions-go-on", "a subscription outlives rights", _subscriptions_go_on),
    _bug("access-pulls-go-on", "who waits gets messages without a right", _pulls_go_on),
    _bug(
        "access-slave-denies",
        "a node that may lack changes denies a call",
        left_out(NodeFacts, "check_knows"),
    ),
    _bug(
        "access-no-super-left",
        "the last super user is deleted",
        left_out(AccessService, "_check_supers"),
    ),
    _bug("quota-anew", "a quota begins anew at each change of any", _anew_at_each_change),
    _bug("quota-as-before", "a changed quota does not count", _as_before),
    _bug("quota-refused-counts", "what is refused uses a quota up", _refused_counts),
    _bug("quota-short-wait", "the wait that is told is too short", _half_the_wait),
    _bug("quota-one-holds", "of several quotas, one holds", _only_one_holds),
    _bug("quota-twice-the-burst", "twice the burst passes", _twice_the_burst),
    _bug("quota-not-told", "adopted quotas do not count", left_out(MetadataLog, "_tell_quotas")),
]
