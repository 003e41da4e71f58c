"""A replica group of three nodes as Prometheus scrapes it, as input of promtool.

A story says for each scrape which nodes answer, which one is the master and what the epoch is. The
series are those that the rules read, with the figures of a group that is well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from duolog_server.node.metrics.table import BY_NAME, SCOPES

INTERVAL_SECONDS = 15
NODES = ("a", "b", "c")
IDLE = {
    "duolog_lease_margin_seconds": "2.2",
    "duolog_in_sync_replicas_required": "2",
    "duolog_lease_seconds": "3",
    "duolog_lease_renewal_seconds_max": "0.004",
    "duolog_certificate_expiry_timestamp_seconds": "8000000",
    "duolog_fenced": "0",
    "duolog_disk_full": "0",
    "duolog_frozen": "0",
    "duolog_locked_out_logins_total": "3",
    "duolog_disk_used_bytes": "300",
    "duolog_disk_free_bytes": "700",
    "duolog_damaged_ranges": "0",
    "duolog_fsync_seconds_count": "5",
    "duolog_append_seconds_count": "5",
    "duolog_metrics_series_dropped": "0",
    "duolog_audit_entries_lost_total": "0",
    "rocketmq_storage_dispatch_behind_bytes": "0",
}
LABELS = {
    "consumer_group": "billing",
    "group": "billing",
    "topic": "orders",
    "message_type": "normal",
    "is_retry": "false",
    "is_system": "false",
    "node_type": "broker",
    "broker": "g1",
    "storage_type": "local",
    "storage_medium": "disk",
    "version": "1",
    "to": "file",
}
OF_A_MASTER = {
    "duolog_move_hold_seconds": "0",
    "duolog_in_sync_replicas": "3",
    "duolog_timer_overdue_seconds": "0",
    "rocketmq_consumer_lag_messages": "12",
    "rocketmq_consumer_lag_latency": "40",
    "rocketmq_topic_dlq_offset": "5",
    "rocketmq_producer_offset": "2",
    "rocketmq_commit_messages_total": "7",
}

Scrape = int  # its number
Row = dict[str, str]


def always(figure: object) -> Callable[[Scrape], str]:
    """The same figure at each scrape."""
    return lambda scrape: str(figure)


def holds(fact: Callable[[Scrape], bool]) -> Callable[[Scrape], str]:
    """1 at the scrapes at which something is true."""
    return lambda scrape: str(int(fact(scrape)))


def every(scrape: Scrape) -> bool:
    """At each scrape."""
    return True


@dataclass(frozen=True, slots=True)
class Story:
    """What happens. killed: the node whose next start is abnormal; began: when it starts again."""

    answers: Callable[[str, Scrape], bool] = lambda node, scrape: True
    master: Callable[[Scrape], str] = lambda scrape: "a"
    epoch: Callable[[Scrape], int] = lambda scrape: 4
    killed: str = ""
    began: Scrape = 0
    scrapes: int = 161

    def series(self) -> list[Row]:
        """All series, as promtool takes them."""
        rows = [row for node in NODES for row in _Node(self, node).series()]
        return [row for row in rows if row["values"]]


@dataclass(frozen=True, slots=True)
class _Node:
    story: Story
    name: str

    def series(self) -> list[Row]:
        return [*self._target(), *self._own(), *self._replication(), *self._histograms()]

    def _target(self) -> list[Row]:
        start = self.story.began * INTERVAL_SECONDS
        return [
            self._series("up", {}, self._values(holds(self._answers), every)),
            self._row(
                "process_start_time_seconds",
                lambda scrape: str(start if self._restarted(scrape) else 0),
            ),
        ]

    def _own(self) -> list[Row]:
        return [
            *(self._row(metric, always(figure)) for metric, figure in IDLE.items()),
            self._row("duolog_build_info", always(1)),
            self._row("duolog_wall_time_seconds", lambda scrape: str(INTERVAL_SECONDS * scrape)),
            self._row("duolog_last_stop", always(0), how="fenced"),
            self._row("duolog_epoch", lambda scrape: str(self.story.epoch(scrape))),
            self._row("duolog_writable", holds(self._leads)),
            self._row("duolog_recovery_abnormal", holds(self._restarted)),
            self._row("duolog_role", holds(self._leads), role="master"),
            self._row("duolog_role", holds(self._follows), role="slave"),
            self._row("duolog_role", always(0), role="standing"),
        ]

    def _replication(self) -> list[Row]:
        rows = [
            self._row(metric, always(figure), self._leads) for metric, figure in OF_A_MASTER.items()
        ]
        for other in NODES:
            rows.append(self._row("duolog_in_sync_replica", always(1), self._leads, replica=other))
            tells = self._follows if other == self.name else self._leads
            for unit in ("bytes", "seconds"):
                metric = f"duolog_replication_lag_{unit}"
                rows.append(self._row(metric, always(0), tells, slave=other))
        return rows

    def _histograms(self) -> list[Row]:
        return [
            self._row(f"duolog_{work}_seconds_bucket", always(5), le=bound)
            for work in ("fsync", "append")
            for bound in ("0.05", "+Inf")
        ]

    def _answers(self, scrape: Scrape) -> bool:
        return self.story.answers(self.name, scrape)

    def _leads(self, scrape: Scrape) -> bool:
        return self.story.master(scrape) == self.name

    def _follows(self, scrape: Scrape) -> bool:
        return not self._leads(scrape)

    def _restarted(self, scrape: Scrape) -> bool:
        return self.story.killed == self.name and scrape >= self.story.began

    def _row(
        self,
        metric: str,
        figure: Callable[[Scrape], str],
        tells: Callable[[Scrape], bool] = every,
        **more: str,
    ) -> Row:
        plain = metric.removesuffix("_bucket").removesuffix("_count")
        known = BY_NAME.get(metric) or BY_NAME[plain]
        own = {"cluster": "c", "replica_group": "g1", "node_id": self.name, **LABELS, **more}
        labels = {one: own[one] for one in (*SCOPES[known.scope], *known.labels)}
        labels |= {"le": more["le"]} if "le" in more else {}
        values = self._values(figure, lambda scrape: self._answers(scrape) and tells(scrape))
        return self._series(metric, labels, values)

    def _series(self, metric: str, labels: dict[str, str], values: str) -> Row:
        labels = {**labels, "job": "duolog", "instance": f"{self.name}:5557"}
        chosen = ", ".join(f'{key}="{one}"' for key, one in labels.items())
        return {"series": f"{metric}{{{chosen}}}", "values": values}

    def _values(self, figure: Callable[[Scrape], str], tells: Callable[[Scrape], bool]) -> str:
        """In promtool's notation; empty for a series that never appears. A series that ends is
        stale from the next scrape on."""
        found = [figure(scrape) if tells(scrape) else "_" for scrape in range(self.story.scrapes)]
        if set(found) == {"_"}:
            return ""
        ended = [
            "stale" if one == "_" and before != "_" else one
            for one, before in zip(found, ["_", *found], strict=False)
        ]
        parts = []
        for one, same in groupby(ended):
            length = len(list(same))
            parts.append({"_": f"_x{length}", "stale": "stale"}.get(one, f"{one}+0x{length - 1}"))
        return " ".join(parts)
