"""What the caller of a list may see of it, so that nothing is read or counted beyond that.

A page asks about all names that there are, and programs ask for one page after the other: the
answers for a few users are remembered until a user or a right changes.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from duolog_server.node.identity.access.gate import PRINCIPAL, Principal
from duolog_server.node.identity.access.rules import May, sees_group, sees_topic
from duolog_server.node.service.guard import Guard
from duolog_server.store.grouptopics import PREFIXES

CALLERS_MAX = 8  # users, each at one address, whose answers are remembered
NAMES_MAX = 50_000  # that are remembered of topics, and of groups; some 50 bytes each


@dataclass(frozen=True, slots=True)
class Sight:
    """Tells of a name whether the caller may know of it."""

    topic: Callable[[str], bool]
    group: Callable[[str], bool]


def _everything(name: str) -> bool:
    return True


EVERYTHING = Sight(_everything, _everything)


class _Answers(dict[str, bool]):
    """What one caller may see, by name; decided when it is looked up first."""

    def __init__(self, decide: Callable[[str], bool]) -> None:
        super().__init__()
        self._decide = decide

    def __missing__(self, name: str) -> bool:
        answer = self._decide(name)
        # Whose a group's topic is depends on the groups and topics that there are, too.
        if not name.startswith(PREFIXES):
            if len(self) >= NAMES_MAX:
                self.clear()
            self[name] = answer
        return answer


class Sights:
    """Tells what the caller may see whose call runs in this task."""

    def __init__(self, guard: Guard | None) -> None:
        """guard: None where there are no users."""
        self._guard = guard
        # By name and addresses of a user, with the version of users and rights.
        self._known: OrderedDict[tuple[str, str, str], tuple[int, Sight]] = OrderedDict()

    def __call__(self) -> Sight:
        """Of a caller whom the guard let through."""
        principal = PRINCIPAL.get()
        if self._guard is None or principal is None:
            return EVERYTHING
        may = self._guard.may(principal)
        return EVERYTHING if may is None else self._of(principal, may, self._guard)

    def _of(self, principal: Principal, may: May, guard: Guard) -> Sight:
        key, version = (principal.name, principal.source, principal.via), guard.version
        known = self._known.pop(key, None)
        if known is None or known[0] != version:
            facts = guard.facts
            topics = _Answers(lambda name: may(*sees_topic(name, facts)))
            groups = _Answers(lambda name: may(sees_group(name)))
            known = version, Sight(topics.__getitem__, groups.__getitem__)
        self._known[key] = known
        if len(self._known) > CALLERS_MAX:
            self._known.popitem(last=False)
        return known[1]
