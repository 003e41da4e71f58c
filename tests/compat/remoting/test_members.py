"""Members of groups, by the connections that their heartbeats come over."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from duolog import _errors as sdk

from duolog_server.compat.remoting import members as module
from duolog_server.compat.remoting.codec.bodies import ConsumerData, Heartbeat, Subscription
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.members import SILENT_MS, Members
from duolog_server.node.identity.access.gate import Principal
from duolog_server.store.clocks import MonoMs
from duolog_server.store.record import Host


@dataclass(frozen=True, slots=True)
class Client:
    """A connection that takes nothing."""

    name: str
    host: Host = Host("10.0.0.7", 5555)
    certificate: str = ""
    is_encrypted: bool = False

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


def test_a_newer_version_of_the_same_subscriptions_is_no_change() -> None:
    """Told of it, members would make newer ones each, and be told of those."""
    members, one = Members(), Client("one")

    def said(*subscriptions: Subscription) -> set[str]:
        data = ConsumerData("g", False, True, subscriptions)
        return members.beat(one, Heartbeat("one", (), (data,)), MonoMs(0))

    assert said(Subscription("T", "*", version=1), Subscription("U", "*", version=1)) == {"g"}
    assert said(Subscription("U", "*", version=3), Subscription("T", "*", version=2)) == set()
    assert members.reads("g")["U"].version == 3
    assert said(Subscription("T", "red", version=2), Subscription("U", "*", version=3)) == {"g"}
    assert said(Subscription("T", "red", version=2)) == {"g"}


def test_what_a_connection_says_of_itself_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PEER_BYTES_MAX", 20 * module.GROUP_BYTES)
    members, one = Members(), Client("one")
    beat(members, one, *(f"g{n}" for n in range(15)))
    with pytest.raises(sdk.Busy):
        beat(members, one, *(f"h{n}" for n in range(15)))
    assert members.ids("h0") == []
    beat(members, one, *(f"g{n}" for n in range(15)), at_ms=5)  # what is known goes on
    rows = tuple(Subscription(f"t{n}", "*") for n in range(100))
    with pytest.raises(sdk.Busy):
        members.beat(one, Heartbeat("one", (), (ConsumerData("g0", False, True, rows),)), MonoMs(6))
    with pytest.raises(sdk.Busy):
        members.beat(one, Heartbeat("one", tuple(f"p{n}" for n in range(9)), ()), MonoMs(7))
    assert members.leave(one, "g3")
    beat(members, Client("other"), *(f"h{n}" for n in range(15)))


def test_what_all_connections_say_of_themselves_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAID_BYTES_MAX", 20 * module.GROUP_BYTES)
    members, one, other = Members(), Client("one"), Client("other")
    members.beat(one, Heartbeat("one", ("p", "q"), ()), MonoMs(0))
    beat(members, one, *(f"g{n}" for n in range(12)))
    members.beat(one, Heartbeat("one", ("p",), ()), MonoMs(1))
    with pytest.raises(sdk.Busy):
        beat(members, other, *(f"g{n}" for n in range(12)))
    members.gone(one)
    beat(members, other, *(f"g{n}" for n in range(12)))
    assert members.expire(MonoMs(SILENT_MS + 1))
    beat(members, one, *(f"g{n}" for n in range(12)))
    members.gone(one)
    members.gone(other)
    assert (members._said, members._said_by_all) == ({}, 0)


def test_a_producer_is_found_by_its_id_on_its_newest_connection() -> None:
    members, one, other = Members(), Client("one"), Client("other")

    def produce(client: Client, client_id: str, *groups: str) -> None:
        members.beat(client, Heartbeat(client_id, groups, ()), MonoMs(0))

    produce(one, "c", "p")
    assert members.producer("c") == (one, None)
    produce(other, "c", "p")
    assert members.producer("c") == (other, None)
    members.gone(other)
    assert members.producer("c") is None  # until the other one beats again
    produce(one, "d", "p", "q")
    assert (members.producer("c"), members.producer("d")) == (None, (one, None))
    members.produces_no_more(one, "p")
    assert members.producer("d") == (one, None)
    members.produces_no_more(one, "q")
    assert members.producer("d") is None
    members.gone(one)
    assert members.producers("p") == []


def test_no_user_takes_the_id_of_anothers_producer() -> None:
    members, one, other = Members(), Client("one"), Client("other")
    alice, bob = Principal("alice", "secret"), Principal("bob", "secret")
    beats = Heartbeat("c", ("p",), ())
    members.beat(one, beats, MonoMs(0), alice)
    members.beat(other, beats, MonoMs(1), bob)
    assert members.producer("c") == (one, alice)
    newer = Principal("alice", "another secret")
    members.beat(other, beats, MonoMs(2), newer)
    assert members.producer("c") == (other, newer)
    members.gone(one)
    assert members.producer("c") == (other, newer)
    members.gone(other)
    members.beat(one, beats, MonoMs(3), bob)
    assert members.producer("c") == (one, bob)
