"""Routes while masters change, and where a relay finds the master."""

from types import SimpleNamespace
from typing import cast

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.routes import Routes
from duolog_server.node.broker import Broker
from duolog_server.store.metadata import TopicConfig


class Untold:
    """Refusals that wait for nothing."""

    def told_later(self, patience_ms: int) -> None:
        return None


def routes(known: str, lost: bool = False, away_seconds: float = 0.0) -> Routes:
    """Of a slave at 127.0.0.2; others are at .1 and .3."""
    found = SimpleNamespace(
        advertised="127.0.0.2:8081",
        group="g",
        node=SimpleNamespace(cluster="c"),
        limits=SimpleNamespace(auto_create_topic=False),
        write_queues=lambda topic: list(range(topic.queues)),
        metadata=SimpleNamespace(topics={"T": TopicConfig("T", 1)}),
        failover=SimpleNamespace(lease_seconds=3),
        endpoints=lambda: [f"127.0.0.{number}:8081" for number in (1, 2, 3)],
        replication=SimpleNamespace(
            refusals=Untold(),
            not_master=lambda: "a slave",
            master_endpoint=(known, 4),
            next_master=("" if lost else known, 4),
            follower=SimpleNamespace(lost=lost, away_seconds=away_seconds),
        ),
    )
    return Routes(cast(Broker, found), "127.0.0.2:9876")


def addresses(made: Routes) -> str:
    found = made.route(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, {"topic": "T"}))
    assert isinstance(found, Command)
    assert found.code == ResponseCode.SUCCESS
    return found.body.decode().partition('"brokerAddrs":')[2].partition("}")[0] + "}"


def test_a_route_names_no_master_that_may_be_gone() -> None:
    first, own, last = (f'"127.0.0.{number}:9876"' for number in (1, 2, 3))
    led = routes("127.0.0.1:8081")
    assert addresses(led) == f'{{"0":{first},"1":{own},"2":{last}}}'
    assert led.master_elsewhere() == "127.0.0.1:9876"
    lost = routes("127.0.0.1:8081", lost=True)
    assert addresses(lost) == f'{{"1":{first},"2":{own},"3":{last}}}'
    assert lost.master_elsewhere() == ""
    back = routes("127.0.0.1:8081", lost=True, away_seconds=5.0)
    assert addresses(back) == addresses(led), "its lease was renewed: this node is cut off"
    assert addresses(routes("")) == addresses(lost)
    over = routes("127.0.0.2:8081")
    assert over.master_elsewhere() == "", "not passed on to itself"
    assert addresses(over) == addresses(lost), "this node's own mastership is over"
