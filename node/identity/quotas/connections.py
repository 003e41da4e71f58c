"""Which connections there are, by user and by address.

A connection is known by the address and port that it comes from. It is there while anything holds
it: the connection itself over frames, and each stream on it over gRPC.
"""

from collections import defaultdict

from duolog_server.node.identity.quotas.quotas import Who


class Connections:
    """Counts them."""

    def __init__(self) -> None:
        self._held: dict[tuple[Who, str], int] = {}
        self._users: defaultdict[str, int] = defaultdict(int)
        self._addresses: defaultdict[str, int] = defaultdict(int)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._held)

    def has(self, who: Who, peer: str) -> bool:
        """Whether that connection is counted already."""
        return (who, peer) in self._held

    def of_user(self, user: str) -> int:
        """How many a user has."""
        return self._users.get(user, 0)

    def of_address(self, address: str) -> int:
        """How many come from an address."""
        return self._addresses.get(address, 0)

    def enter(self, who: Who, peer: str) -> None:
        """Something holds a connection."""
        key = who, peer
        held = self._held.get(key, 0)
        self._held[key] = held + 1
        if not held:
            self._users[who.user] += 1
            self._addresses[who.address] += 1

    def leave(self, who: Who, peer: str) -> None:
        """It holds it no more."""
        key = who, peer
        held = self._held[key] - 1
        if held:
            self._held[key] = held
            return
        del self._held[key]
        for table, name in ((self._users, who.user), (self._addresses, who.address)):
            table[name] -= 1
            if not table[name]:
                del table[name]

    def validate(self) -> str:
        """The first violated invariant; empty if all hold."""
        for table, at in ((self._users, 0), (self._addresses, 1)):
            counted: defaultdict[str, int] = defaultdict(int)
            for who, _ in self._held:
                counted[who[at]] += 1
            if counted != table:
                return f"connections {dict(table)} are counted, there are {dict(counted)}"
        return ""
