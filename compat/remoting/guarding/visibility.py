"""What users may see and do, for those who serve requests: by the users and rights of now.

The rules of requests are looked at before a request is served. This is for what shows only then:
the topic of a message that was named by its place, or the clients that the node itself tells
something. Where there are no users, everybody may do everything.
"""

from collections.abc import Callable
from dataclasses import dataclass

from duolog import _errors as sdk

from duolog_server.compat.remoting.rules import sends
from duolog_server.node.identity.access.gate import PRINCIPAL, Principal
from duolog_server.node.identity.access.rules import Facts, Needs, group_sub, reads, sees_group
from duolog_server.node.service.guard import DENIED, Guard

NeedsOf = Callable[[str, Facts], Needs]


def _consumes(group: str, facts: Facts) -> Needs:
    return (group_sub(group),)


def _sees(group: str, facts: Facts) -> Needs:
    return (sees_group(group),)


@dataclass(frozen=True, slots=True)
class Sight:
    """Tells it. guard: None where there are no users."""

    guard: Guard | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there are users."""
        return self.guard is not None

    @property
    def version(self) -> int:
        """Grows with each change of users and rights; 0 where there are none."""
        return self.guard.version if self.guard is not None else 0

    # -- the user whose request is served in this task -----------------------------------------

    def may_read(self, topic: str) -> bool:
        """It may read a topic. Raises NotMaster where the node may not know."""
        return self._may(PRINCIPAL.get(), reads, topic)

    def may_send(self, topic: str) -> bool:
        """It may send to a topic. Raises NotMaster where the node may not know."""
        return self._may(PRINCIPAL.get(), sends, topic)

    def may_see(self, group: str) -> bool:
        """It may know of a group. Raises NotMaster where the node may not know."""
        return self._may(PRINCIPAL.get(), _sees, group)

    # -- users of clients that the node tells something ----------------------------------------

    def is_current(self, user: Principal | None) -> bool:
        """A user is still who it was, as far as the node knows."""
        return self._surely_may(user, lambda name, facts: (), "")

    def may_consume(self, user: Principal | None, group: str) -> bool:
        """A user may consume as a group, as far as the node knows."""
        return self._surely_may(user, _consumes, group)

    def may_get(self, user: Principal | None, topic: str) -> bool:
        """A user may read a topic, as far as the node knows."""
        return self._surely_may(user, reads, topic)

    def may_decide(self, user: Principal | None, topic: str) -> bool:
        """A user may send to a topic, and so decide on its half messages."""
        return self._surely_may(user, sends, topic)

    def _surely_may(self, user: Principal | None, asked: NeedsOf, name: str) -> bool:
        try:
            return self._may(user, asked, name)
        except sdk.NotMaster:
            return False

    def _may(self, user: Principal | None, asked: NeedsOf, name: str) -> bool:
        if self.guard is None:
            return True
        if user is None:
            return False
        try:
            self.guard.check(user, tuple(asked(name, self.guard.facts)))
        except DENIED:
            return False
        return True
