"""Members of groups, by the connections that their heartbeats come over."""

from collections.abc import Callable
from dataclasses import dataclass

from node.access.gate import Principal
from node.remoting.codec.command import Command
from node.remoting.codec.heartbeats import ConsumerData, Heartbeat, Subscription
from node.remoting.members import SILENT_MS, Members
from store.clocks import MonoMs
from store.record import Host


@dataclass(frozen=True, slots=True)
class Client:
    """A connection that takes nothing."""

    name: str
    host: Host = Host("10.0.0.7", 5555)
    certificate: str = ""

    def tell(self, command: Command) -> bool:
        return False

    async def ask(self, command: Command, seconds: float) -> Command:
        raise ConnectionError

    def after_answer(self, callback: Callable[[], None]) -> None:
        pass


def beat(members: Members, client: Client, *groups: str, at_ms: int = 0) -> None:
    data = tuple(ConsumerData(group, False, True, ()) for group in groups)
    members.beat(client, Heartbeat(client.name, (), data), MonoMs(at_ms))


def test_a_client_that_ends_leaves_all_of_its_groups_and_no_other() -> None:
    members, one, other = Members(), Client("one"), Client("other")
    beat(members, one, "g", "h", "i")
    beat(members, other, "h", "j")
    assert members.leave(one, "i")
    assert not members.leave(one, "i")
    assert not members.leave(one, "j")
    assert members.gone(one) == {"g", "h"}
    assert members.gone(one) == set()
    assert (members.ids("h"), members.ids("j"), len(members)) == (["other"], ["other"], 2)
    assert members.expire(MonoMs(SILENT_MS + 1)) == {"h", "j"}
    assert members.gone(other) == set()
    beat(members, one, "g")
    assert members.gone(one) == {"g"}
    assert len(members) == 0


def test_those_whose_users_may_not_consume_any_more_are_let_go_of() -> None:
    members, one, other = Members(), Client("one"), Client("other")
    users = {client: Principal(client.name, "secret") for client in (one, other)}
    for client, user in users.items():
        data = tuple(ConsumerData(group, False, True, ()) for group in ("g", "h"))
        members.beat(client, Heartbeat(client.name, ("p",), data), MonoMs(0), user)
    assert members.dismiss(lambda user, group: True) == set()
    assert members.dismiss(lambda user, group: user != users[one] or group != "g") == {"g"}
    assert (members.ids("g"), members.ids("h")) == (["other"], ["one", "other"])
    assert members.peers("g") == [(other, users[other])]
    assert members.producers("p") == [(one, users[one]), (other, users[other])]


def test_a_client_that_leaves_a_group_of_producers_stays_its_users_in_the_others() -> None:
    members, one, user = Members(), Client("one"), Principal("one", "secret")
    members.beat(one, Heartbeat("one", ("p", "q"), ()), MonoMs(0), user)
    members.produces_no_more(one, "r")
    members.produces_no_more(one, "p")
    assert members.producers("p") == []
    assert members.producers("q") == [(one, user)]


def reading(version: int, *topics: str) -> Heartbeat:
    found = tuple(Subscription(topic, f"tag{version}", version=version) for topic in topics)
    return Heartbeat("c", (), (ConsumerData("g", False, True, found),))


def test_a_group_reads_what_the_newest_subscriptions_of_its_members_say() -> None:
    members, one, other = Members(), Client("one"), Client("other")
    assert members.reads("g") == {}
    members.beat(one, reading(2, "T", "U"), MonoMs(0))
    members.beat(other, reading(1, "T", "V"), MonoMs(0))
    found = {topic: sub.expression for topic, sub in members.reads("g").items()}
    assert found == {"T": "tag2", "U": "tag2", "V": "tag1"}
    members.beat(other, reading(3, "T"), MonoMs(0))
    found = {topic: sub.expression for topic, sub in members.reads("g").items()}
    assert found == {"T": "tag3", "U": "tag2"}
    members.leave(one, "g")
    assert set(members.reads("g")) == {"T"}
    members.gone(other)
    assert members.reads("g") == {}
    assert members.client(other) is None
