"""Metrics that RocketMQ's clients push, as OpenTelemetry's SDK pushes them for them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import duolog
import grpc.aio
import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as otlp
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as stubs
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from duolog_server.compat.grpc import clientmetrics
from duolog_server.compat.grpc.clientmetrics import PUSH_BYTES_MAX, SERVICE_NAME
from duolog_server.compat.grpc.protocol import settings
from duolog_server.compat.grpc.protocol.stubs import definition
from duolog_server.node.metrics.table import MEASURED as WHERE_MEASURED
from duolog_server.node.metrics.table import METRICS
from duolog_server.node.runtime.config import Config, ConfigError
from tests.compat.grpc.users import headers
from tests.keyfiles import access_files
from tests.known import known
from tests.node.metrics.test_figures import of
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

PASSWORD = "a password of the test"
ATTRIBUTES = {
    "topic": "T",
    "consumer_group": "g",
    "client_id": "client-1",
    "invocation_status": "success",
}
MEASURED: dict[str, Any] = {
    "metrics": {"listen": "127.0.0.1:0"},
    "rocketmq": {"client_metrics": True},
}


def _push(port: int) -> None:
    """What a push consumer measures."""
    exporter = OTLPMetricExporter(f"127.0.0.1:{port}", insecure=True, timeout=10)
    bounds = ExplicitBucketHistogramAggregation([1, 5, 10, 100, 1000, 10000, 60000])
    provider = MeterProvider(
        [PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)],
        views=[View(instrument_name="rocketmq_process_time", aggregation=bounds)],
        shutdown_on_exit=False,
    )
    meter = provider.get_meter("rocketmq")
    histogram = meter.create_histogram("rocketmq_process_time")

    def cached(_: CallbackOptions) -> list[Observation]:
        return [Observation(7, ATTRIBUTES)]

    meter.create_observable_gauge("rocketmq_consumer_cached_messages", [cached])
    meter.create_observable_gauge("rocketmq_consumer_cached_bytes", [cached])
    for name in ("send_cost_time", "delivery_latency", "await_time"):
        meter.create_histogram(f"rocketmq_{name}").record(1, ATTRIBUTES)
    histogram.record(3, ATTRIBUTES)
    histogram.record(50, ATTRIBUTES)
    histogram.record(50, {**ATTRIBUTES, "topic": ""})
    meter.create_histogram("another").record(1, ATTRIBUTES)
    provider.force_flush()
    histogram.record(3, ATTRIBUTES)
    provider.force_flush()
    provider.shutdown()


def _stub(channel: grpc.aio.Channel) -> Any:
    return stubs.MetricsServiceStub(channel)  # type: ignore[no-untyped-call]


async def test_what_clients_measure_is_shown_by_group(start_node: StartNode) -> None:
    node = await start_node(**MEASURED)
    await asyncio.to_thread(_push, node.port)
    found, group = await of(node), {"topic": "T", "consumer_group": "g"}
    assert found.value("rocketmq_process_time_count", **group) == 3
    assert found.value("rocketmq_process_time_sum", **group) == 56
    assert found.value("rocketmq_consumer_cached_messages", **group) == 7
    assert "client-1" not in found.text
    declared = {metric.name for metric in METRICS if metric.where == WHERE_MEASURED}
    assert declared <= found.families.keys()


@pytest.mark.parametrize("on", [False, True])
def test_settings_send_a_client_to_the_address_that_it_uses(on: bool) -> None:
    asked = definition.Settings()
    asked.publishing.topics.add(name="T")
    asked.access_point.addresses.add(host="10.0.0.1", port=8081)
    asked.metric.on = True
    asked.metric.endpoints.addresses.add(host="elsewhere", port=1)
    told = settings.reply_to(asked, {}, None, 1, on)  # type: ignore[arg-type]
    assert told.metric.on is on
    assert [one.host for one in told.metric.endpoints.addresses] == (["10.0.0.1"] if on else [])


async def test_a_node_that_was_not_told_to_takes_none(start_node: StartNode) -> None:
    node = await start_node()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _stub(channel).Export(otlp.ExportMetricsServiceRequest())
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_client_metrics_need_a_place_where_they_are_shown() -> None:
    with pytest.raises(ConfigError, match=r"metrics\.listen"):
        Config.model_validate({"rocketmq": {"client_metrics": True}}).check()


def _request(group: str, value: int = 1, topic: str = "T") -> otlp.ExportMetricsServiceRequest:
    request = otlp.ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add()
    metric.name = "rocketmq_consumer_cached_messages"
    point = metric.gauge.data_points.add(as_int=value)
    for name, text in {**ATTRIBUTES, "consumer_group": group, "topic": topic}.items():
        point.attributes.add(key=name).value.string_value = text
    return request


def _histogram(name: str, *rows: dict[str, str], counts: tuple[int, int] = (1, 0)) -> Any:
    """A request with a histogram: a point for each row of labels."""
    request = otlp.ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    for labels in rows or ({},):
        point = metric.histogram.data_points.add(explicit_bounds=[1.0], bucket_counts=counts)
        for label, text in {**ATTRIBUTES, **labels}.items():
            point.attributes.add(key=label).value.string_value = text
    return request


async def test_pushes_that_are_too_large_or_no_metrics_are_refused(start_node: StartNode) -> None:
    node = await start_node(**MEASURED)
    path = f"/{SERVICE_NAME}/Export"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        export: Any = channel.unary_unary(path)
        for pushed in (bytes(PUSH_BYTES_MAX + 1), b"\xff"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await export(pushed)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def _hostile() -> otlp.ExportMetricsServiceRequest:
    """Points whose numbers are none of a client."""
    request = otlp.ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    gauge = metrics.add(name="rocketmq_consumer_cached_bytes").gauge
    histogram = metrics.add(name="rocketmq_process_time").histogram
    points: list[Any] = [
        *(gauge.data_points.add(as_double=value) for value in (-1.0, 1e300, float("nan"))),
        *(
            histogram.data_points.add(sum=total, explicit_bounds=[1.0], bucket_counts=[1, 0])
            for total in (-1.0, 1e300, float("inf"))
        ),
        histogram.data_points.add(sum=1, explicit_bounds=[1.0], bucket_counts=[1 << 62, 1]),
        histogram.data_points.add(sum=1, explicit_bounds=[float("nan")], bucket_counts=[1, 0]),
    ]
    for point in points:
        for name, text in ATTRIBUTES.items():
            point.attributes.add(key=name).value.string_value = text
    return request


async def test_numbers_and_labels_that_cannot_be_meant_are_refused(start_node: StartNode) -> None:
    node = await start_node(**MEASURED)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        export = _stub(channel).Export
        assert (await export(_hostile())).partial_success.rejected_data_points == 8
        statuses = ("success", "failure", "so so", 'a"b', "x" * 256, "a\nb")
        rows = [{"invocation_status": status} for status in statuses]
        good = _histogram("rocketmq_process_time", *rows)
        assert (await export(good)).partial_success.rejected_data_points == 4
    measures = known(broker_of(node).measures)
    assert [labels[2] for _, labels, _ in measures.histograms()] == ["success", "failure"]


async def test_a_push_has_so_many_points_and_labels_have_no_control_characters(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clientmetrics, "POINTS_MAX", 2)
    node = await start_node(**MEASURED)
    request = _request('a"\\b')
    for group in ("c", "d", "e"):
        request.MergeFrom(_request(group))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        export = _stub(channel).Export
        assert (await export(request)).partial_success.rejected_data_points == 2
        for name in ("a\nb", "a\x1b", "x" * 256, ""):
            assert (await export(_request(name))).partial_success.rejected_data_points == 1
    text = (await of(node)).text
    assert 'consumer_group="a\\"\\\\b"' in text
    assert "duolog_client_points_refused_total" in text


async def test_what_a_client_tells_as_new_is_added(start_node: StartNode) -> None:
    node = await start_node(**MEASURED)
    request = _histogram("rocketmq_await_time", counts=(1, 2))
    histogram = request.resource_metrics[0].scope_metrics[0].metrics[0].histogram
    histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
    histogram.data_points[0].sum = 3
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        for _ in range(3):
            await _stub(channel).Export(request)
    measures = known(broker_of(node).measures)
    assert [(one.counts, one.sum) for _, _, one in measures.histograms()] == [([3, 6], 9)]


async def test_with_users_a_series_needs_the_rights_to_its_group_and_topic(
    start_node: StartNode, tmp_path: Path
) -> None:
    access, audit = access_files(tmp_path, PASSWORD), {"file": tmp_path / "audit.log"}
    node = await start_node(access=access, audit=audit, **MEASURED)
    endpoint = f"127.0.0.1:{node.port}"
    entries = [
        {"resource": resource, "actions": ["Sub"], "decision": "Allow"}
        for resource in ("Group:g", "Group:mine*", "Topic:T", "Topic:mine*")
    ]
    async with duolog.Client(endpoint, user="root", password=PASSWORD) as root:
        await root.access.create_user("root", PASSWORD, is_super=True)
        for name in ("T", "mine"):
            await root.admin.create_topic(name, 1)
        for name in ("g", "h", "mine"):
            await root.admin.put_group(name)
        await root.access.create_user("alice", PASSWORD, signs=True)
        policies = [{"policyType": "Custom", "entries": entries}]
        await root.access.set_rights("alice", json.dumps({"policies": policies}))
    async with grpc.aio.insecure_channel(endpoint) as channel:
        export = _stub(channel).Export
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await export(_request("g"))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        alice = tuple((k.replace("_", "-"), v) for k, v in headers("alice", PASSWORD).items())
        mine = await export(_request("g"), metadata=alice)
        others = await export(_request("h"), metadata=alice)
        made_up = await export(_request("g", topic="made up"), metadata=alice)
        of_prefix = await export(_request("mine", topic="mine"), metadata=alice)
        not_there = await export(_request("mine", topic="mine-1"), metadata=alice)
        no_group = await export(_request("mine-1", topic="mine"), metadata=alice)
        sends = await export(_histogram("rocketmq_send_cost_time"), metadata=alice)
    assert mine.partial_success.rejected_data_points == 0
    assert others.partial_success.rejected_data_points == 1
    assert made_up.partial_success.rejected_data_points == 1
    assert of_prefix.partial_success.rejected_data_points == 0
    assert not_there.partial_success.rejected_data_points == 1  # it could name thousands of them
    assert no_group.partial_success.rejected_data_points == 1
    assert sends.partial_success.rejected_data_points == 1  # she may not send to the topic
    measures = known(broker_of(node).measures)
    assert [labels for _, labels, _ in measures.gauges()] == [("T", "g"), ("mine", "mine")]
    await until(lambda: broker_of(node).status()["audit_waiting"] == 0)
    rows = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    denied = [row["method"] for row in rows if row["decision"] == "denied"]
    assert "MetricsService/Export" in denied
