"""A real Prometheus scrapes real nodes, and answers what dashboards ask."""

from collections.abc import Iterator

import pytest

from tests.dashboards import Asked, Dashboard, dashboards, filled
from tests.process.monitored import Prometheus, monitored

pytestmark = [pytest.mark.process, pytest.mark.long]

RUNTIME = "rocketmq_brokeruntime_"
CLIENT = "rocketmq_client_"
# Dashboard 10477 of grafana.com, "RocketMQ-Exporter": its panels and their queries, unchanged.
PANELS = {
    "broker tps & broker qps": ["rocketmq_broker_tps", "rocketmq_broker_qps"],
    "rocketmq_consumer_offset": ["rocketmq_consumer_offset"],
    "rocketmq_consumer_message_size": ["rocketmq_consumer_message_size"],
    "rocketmq_producer_offset": ["rocketmq_producer_offset"],
    "rocketmq_consumer_tps": ["rocketmq_consumer_tps"],
    "rocketmq_producer_message_size": ["rocketmq_producer_message_size"],
    "rocketmq_producer_tps": ["rocketmq_producer_tps"],
    "rocketmq_group_get_latency_by_storetime": ["rocketmq_group_get_latency_by_storetime"],
    "rocketmq_message_accumulation": [
        "sum(rocketmq_producer_offset) by (topic) - on(topic)  group_right  "
        "sum(rocketmq_consumer_offset) by (group,topic)"
    ],
    "PutMessageDistributeTime": [
        f"{RUNTIME}pmdt_{name}"
        for name in (
            *("0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s"),
            *("1to2s", "2to3s", "3to4s", "4to5s", "5to10s", "10stomore"),
        )
    ],
    "threadpoolqueue_headwait_timemills": [
        f"{RUNTIME}{name}_threadpoolqueue_headwait_timemills" for name in ("pull", "query", "send")
    ],
    "consume client info": [
        f"{CLIENT}{name}"
        for name in (
            *("consume_fail_msg_count", "consume_fail_msg_tps", "consume_ok_msg_tps"),
            *("consume_rt", "consumer_pull_rt", "consumer_pull_tps"),
        )
    ],
    "runtime tps": [
        f"{RUNTIME}{name}_tps10"
        for name in ("getfound", "gettotal", "gettransfered", "getmiss", "put")
    ],
    "disk space": [
        f"{RUNTIME}{name}"
        for name in (
            *("commitlog_disk_ratio", "consumequeue_disk_ratio"),
            *("commitlogdir_capacity_free", "commitlogdir_capacity_total"),
            *("commitlog_maxoffset", "commitlog_minoffset"),
        )
    ],
    "broker runtime info": [
        f"{RUNTIME}{name}"
        for name in (
            *("msg_put_total_today_now", "msg_gettotal_today_now", "dispatch_behind_bytes"),
            *("put_message_size_total", "put_message_average_size"),
            *("msg_gettotal_yesterdaymorning", "msg_puttotal_yesterdaymorning"),
            *("msg_gettotal_todaymorning", "msg_puttotal_todaymorning"),
        )
    ],
}
# What a node does not have, and docs/metrics.md says so.
NO_DATA = ("_headwait_timemills", "morning")
QUERIES = [(panel, query) for panel, queries in PANELS.items() for query in queries]
UNANSWERED = [one for one in QUERIES if one[1].startswith(CLIENT) or one[1].endswith(NO_DATA)]
ANSWERED = [one for one in QUERIES if one not in UNANSWERED]

BOARDS = dashboards()
ASKED = [asked for board in BOARDS for asked in board.asked]
# Panels that show 0 while all is well: what to ask in their place, that the answer is another.
COUNTED = {
    "cluster: Nodes without an answer": ("up == 0", "up == 1", 2),
    "cluster: Groups without a master": (" unless ", " and ", 1),
    "cluster: Groups short of replicas": (" < ", " >= ", 1),
    "replication: Groups without a master": (" unless ", " and ", 1),
    "replication: Groups with two masters": ("> 1", "> 0", 1),
    "groups: Behind without consumers": (" unless ", " and ", 2),
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with monitored(tmp_path_factory.mktemp("monitored")) as made:
        yield made


@pytest.mark.parametrize(("panel", "query"), ANSWERED)
def test_a_query_of_dashboard_10477_has_data(
    prometheus: Prometheus, panel: str, query: str
) -> None:
    assert prometheus.values(query) != []


@pytest.mark.parametrize(("panel", "query"), UNANSWERED)
def test_a_query_that_the_docs_call_unanswered_has_no_data(
    prometheus: Prometheus, panel: str, query: str
) -> None:
    assert prometheus.values(query) == []


def test_the_dashboard_has_its_fifteen_panels() -> None:
    assert len(PANELS) == 15
    assert (len(ANSWERED), len(UNANSWERED)) == (39, 13)


def test_figures_of_the_dashboard_are_what_happened(prometheus: Prometheus) -> None:
    assert prometheus.values('rocketmq_producer_offset{topic="T"}')[0] >= 40
    assert prometheus.values('rocketmq_topic_dlq_offset{group="pop"}') == [2]
    for flow in ("in", "out"):
        (rate,) = prometheus.values(f'sum(rate(rocketmq_messages_{flow}_total{{topic="T"}}[1m]))')
        assert rate > 0


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.where)
def test_an_expression_of_duologs_dashboards_has_data(prometheus: Prometheus, asked: Asked) -> None:
    assert prometheus.values(filled(asked.expression)) != []


@pytest.mark.parametrize("where", COUNTED)
def test_a_panel_that_shows_zero_counts_what_it_should(prometheus: Prometheus, where: str) -> None:
    (asked,) = (asked for asked in ASKED if asked.where == where)
    assert prometheus.values(filled(asked.expression)) == [0]
    old, new, count = COUNTED[where]
    assert asked.expression.count(old) == 1
    assert prometheus.values(filled(asked.expression.replace(old, new))) == [count]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_dashboards_variables_have_values(prometheus: Prometheus, board: Dashboard) -> None:
    chosen: dict[str, str] = {}
    for name, (selector, label) in board.variables.items():
        values = prometheus.label_values(filled(selector, **chosen), label)
        assert values != [], name
        chosen[name] = values[0]
