"""Members of groups, by the connections that their heartbeats come over."""

from collections.abc import Callable
from dataclasses import dataclass

from node.remoting.codec.command import Command
from node.remoting.codec.heartbeats import ConsumerData, Heartbeat
from node.remoting.members import SILENT_MS, Members
from store.clocks import MonoMs
from store.record import Host


@dataclass(frozen=True, slots=True)
class Client:
    """A connection that takes nothing."""

    name: str
    host: Host = Host("10.0.0.7", 5555)

    def tell(self, command: Command) -> bool:
        return False

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
