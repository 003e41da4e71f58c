"""Statistics under RocketMQ's names, from what the node counts anyway."""

from collections.abc import Callable
from datetime import date, datetime

from duolog_server.compat.remoting.administration.bodies import dumps
from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.headers import StatsRequest
from duolog_server.compat.remoting.refusals import Refused
from duolog_server.node.broker import Broker
from duolog_server.node.core.growth import Totals
from duolog_server.node.core.traffic import DELAY, NORMAL, TRANSACTION, Flow
from duolog_server.store.clocks import WallMs

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
KINDS = (NORMAL, DELAY, TRANSACTION)
SPANS = {"statsMinute": MINUTE, "statsHour": HOUR, "statsDay": DAY}


class Statistics:
    """Counts by topic, group and broker.

    Attributes:
        morning, morning_before: messages that came and went before this day, and before the last.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._traffic = broker.core.traffic
        self._totals = Totals(self._now())
        self._day = self._today()
        self.morning = self.morning_before = (0, 0)
        self._served: dict[str, Callable[[str], float | None]] = {
            "TOPIC_PUT_NUMS": lambda key: self._received(key, lambda flow: flow.messages),
            "TOPIC_PUT_SIZE": lambda key: self._received(key, lambda flow: flow.body_bytes),
            "GROUP_GET_NUMS": lambda key: self._delivered(key, lambda flow: flow.messages),
            "GROUP_GET_SIZE": lambda key: self._delivered(key, lambda flow: flow.body_bytes),
            "BROKER_PUT_NUMS": lambda key: self._of_cluster(key, 0),
            "BROKER_GET_NUMS": lambda key: self._of_cluster(key, 1),
        }

    def _now(self) -> float:
        return self._broker.times.mono_ms() / 1000

    def _today(self) -> date:
        wall: WallMs = self._broker.times.wall_ms()
        return datetime.fromtimestamp(wall / 1000).astimezone().date()

    def tick(self) -> None:
        """Now and then: note what had passed when a day began."""
        if self._today() != self._day:
            self._day = self._today()
            self.morning_before, self.morning = self.morning, self.passed

    @property
    def passed(self) -> tuple[int, int]:
        """Messages that came and went since the start."""
        return self._broker.log.counters.messages_in, self._traffic.messages_out

    def view(self, request: Command) -> Command:
        """VIEW_BROKER_STATS_DATA. Raises Refused for what is not counted."""
        header = read_header(StatsRequest, request.fields)
        name, key = header.stats_name, header.stats_key
        total = self._served[name](key) if name in self._served else None
        if total is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"The stats <{name[:80]}> <{key[:511]}> not exist"
            )
        return request.answer(0, body=dumps({n: self._item(name, key, total, n) for n in SPANS}))

    def _item(self, name: str, key: str, total: float, span: str) -> dict[str, float]:
        """As BrokerStatsItem, without `avgpt`."""
        seconds = SPANS[span]
        growth = self._totals.growth((name, key), total, seconds, self._now())
        return {"sum": round(growth.within(seconds)), "tps": growth.rate}

    def group_tps(self, group: str, topic: str) -> float:
        """Messages of a topic that a group gets, per second."""
        key = f"{topic}@{group}"
        total = self._delivered(key, lambda flow: flow.messages)
        if total is None:
            return 0.0
        return self._totals.growth(("GROUP_GET_NUMS", key), total, MINUTE, self._now()).rate

    def topic_tps(self, topic: str) -> float:
        """Messages of a topic that clients send, per second."""
        total = self._received(topic, lambda flow: flow.messages)
        if total is None:
            return 0.0
        return self._totals.growth(("TOPIC_PUT_NUMS", topic), total, MINUTE, self._now()).rate

    def rates(self, name: str, total: float) -> str:
        """A total of the broker, per second: over 10 s, a minute and 10 minutes."""
        now = self._now()
        found = (self._totals.growth(name, total, span, now).rate for span in (10.0, 60.0, 600.0))
        return " ".join(f"{rate:.6f}" for rate in found)

    # -- totals --------------------------------------------------------------------------------

    def _received(self, topic: str, of: Callable[[Flow], int]) -> float | None:
        if topic not in self._broker.metadata.topics:
            return None
        table = self._traffic.received.table
        return sum(of(flow) for kind in KINDS if (flow := table.get((topic, kind))) is not None)

    def _delivered(self, key: str, of: Callable[[Flow], int]) -> float | None:
        topic, _, group = key.partition("@")
        table = self._traffic.delivered.table
        found = [flow for again in (False, True) if (flow := table.get((topic, group, again)))]
        return sum(map(of, found)) if found else None

    def _of_cluster(self, key: str, direction: int) -> float | None:
        return self.passed[direction] if key == self._broker.node.cluster else None
