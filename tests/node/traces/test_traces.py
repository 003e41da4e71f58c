"""A node's spans, as a collector gets them; a message's whole trace."""

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import duolog
import grpc
import grpc.aio
import pytest
from duolog.testing._ports import free_endpoint
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as stubs

from duolog_server.node.deferred.delayservice import DelayService
from duolog_server.node.metrics.table import METRICS, TRACED
from duolog_server.node.runtime.config import Config, ConfigError
from duolog_server.node.traces import exporting
from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api, message
from tests.node.replicas import WAIT_SECONDS, Elected, Group, broker_of, master_of
from tests.nodefixtures import StartNode, received
from tests.scraping import scraped
from tests.spans import Taken, id_of, trace_of
from tests.until import slowness, until


class Collector(stubs.TraceServiceServicer):
    """Keeps the spans that it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []

    async def Export(self, request: Any, context: Any) -> Any:
        for of in request.resource_spans:
            self.resources.append(
                {one.key: one.value.string_value for one in of.resource.attributes}
            )
            self.spans += [span for scope in of.scope_spans for span in scope.spans]
        return otlp.ExportTraceServiceResponse()

    async def until(self, enough: Callable[[list[str]], bool]) -> list[Any]:
        """The spans, once their names are enough."""
        await until(lambda: enough(self.names))
        return self.spans

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]


@pytest.fixture
async def collector() -> AsyncIterator[tuple[Collector, str]]:
    kept, server, address = Collector(), grpc.aio.server(), free_endpoint()
    stubs.add_TraceServiceServicer_to_server(kept, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(address)
    await server.start()
    yield kept, f"http://{address}"
    await server.stop(None)


def _traces(endpoint: str) -> dict[str, Any]:
    return {"endpoint": endpoint, "interval_ms": 100}


async def test_a_messages_way_is_one_trace(
    start_node: StartNode, collector: tuple[Collector, str]
) -> None:
    kept, endpoint = collector
    node = await start_node(
        traces=_traces(endpoint), metrics={"listen": "127.0.0.1:0"}, flush_disk_type="SYNC_FLUSH"
    )
    taken = Taken()
    address = f"127.0.0.1:{node.port}"
    async with duolog.Client(address, tracer_provider=taken.provider) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send_batch("T", [b"a", b"b"])
            with taken.tracer.start_as_current_span("order"):
                await producer.send("T", b"x", delay=1.5)  # not over before it comes
        async with client.consumer("g", "T") as consumer:
            while (message := await consumer.get(10)) is not None and message.body != b"x":
                pass
            assert message is not None
            await consumer.send_back(message, delay_level=1)
            await received(consumer)
    spans = await kept.until(lambda names: "deliver %RETRY%g" in names)
    sent = taken.named("send T")[1]
    mine = [span for span in spans if int.from_bytes(span.trace_id) == trace_of(sent)]
    way = [span.name for span in sorted(mine, key=lambda span: span.start_time_unix_nano)]
    assert [name for name in way if not name.startswith("flush")] == [
        "store rmq_sys_wheel_timer",
        "store T",
        "deliver T",
        "store SCHEDULE_TOPIC_XXXX",
        "store %RETRY%g",
        "deliver %RETRY%g",
    ]
    stored = {span.span_id for span in mine if span.name.startswith("store")}
    for span in mine:
        parent = span.parent_span_id
        assert parent in stored if span.name.startswith("flush") else parent == _id(sent)
    local = {"order", "send T", "receive T", "process T", "send_back T", "settle T"}
    assert {span.name for span in taken.all if trace_of(span) == trace_of(sent)} <= local
    batch = next(s for s in spans if s.name == "store T" and s.parent_span_id != _id(sent))
    counts = {one.key: one.value.int_value for one in batch.attributes}
    assert counts["messaging.batch.message_count"] == 2
    assert kept.resources[0]["service.instance.id"] == "test"
    exported = broker_of(node).status
    await until(lambda: exported()["spans_exported"] == len(spans))  # counted after the answer
    assert node.metrics is not None
    found = await scraped(node.metrics.port)
    assert all(found.rows(one.name) for one in METRICS if one.where == TRACED)


def _id(span: Any) -> bytes:
    return id_of(span).to_bytes(8)


async def test_a_master_waits_for_its_slaves_in_a_span(
    start_node: StartNode, collector: tuple[Collector, str], tmp_path: Path
) -> None:
    kept, endpoint = collector
    taken, group = Taken(), Group(start_node, tmp_path)
    master = await group.start_master(traces=_traces(endpoint))
    await group.start_slave(traces=_traces(endpoint))
    replicas = master_of(master)
    await until(lambda: replicas.in_sync() == 2, "the slave is in sync")
    address = f"127.0.0.1:{master.port}"
    async with duolog.Client(address, timeout=40, tracer_provider=taken.provider) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send("T", b"x")
    spans = {span.name: span for span in await kept.until(lambda names: "replicate T" in names)}
    assert spans["replicate T"].parent_span_id == spans["store T"].span_id
    facts = {one.key: one.value for one in spans["replicate T"].attributes}
    assert facts["duolog.role"].string_value == "SYNC_MASTER"
    assert facts["duolog.epoch"].int_value >= 1
    assert spans["store T"].parent_span_id == _id(taken.one("send T"))


async def test_a_failover_leaves_messages_in_their_traces(
    start_node: StartNode,
    collector: tuple[Collector, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quick_groups: None,
) -> None:
    kept, endpoint = collector
    deliver = DelayService._deliver_timers
    monkeypatch.setattr(DelayService, "_deliver_timers", lambda delays, timers: False)
    taken = Taken()
    cluster = await Elected.start(start_node, tmp_path, traces=_traces(endpoint))
    async with duolog.Client(
        cluster.endpoints, timeout=WAIT_SECONDS, tracer_provider=taken.provider
    ) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send("T", b"now")
            await producer.send("T", b"later", delay=3)
        with pytest.raises(ValueError, match="no"):
            async with client.consumer("g", "T") as consumer:
                assert await consumer.get(WAIT_SECONDS) is not None
                raise ValueError("no")
        await cluster.switch(client)
        monkeypatch.setattr(DelayService, "_deliver_timers", deliver)  # by the next master alone
        bodies: list[bytes] = []
        async with client.consumer("g", "T") as consumer:
            while len(bodies) < 2:
                message = await received(consumer)
                bodies.append(message.body)
    now, later = taken.named("send T")
    assert bodies == [b"now", b"later"]
    traces = [trace_of(span) for span in taken.named("process T")]
    assert traces == [trace_of(now), trace_of(now), trace_of(later)]

    def epochs(names: list[str]) -> bool:
        found = {
            one.value.int_value
            for span in kept.spans
            for one in span.attributes
            if one.key == "duolog.epoch"
        }
        return len(found) > 1 and names.count("deliver T") >= 3

    await kept.until(epochs)


async def test_a_message_of_rocketmqs_clients_has_the_nodes_spans(
    start_node: StartNode, collector: tuple[Collector, str]
) -> None:
    kept, endpoint = collector
    node = await start_node(traces=_traces(endpoint))
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
    api = Api(node)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await api.send(message(b"x", properties={"traceparent": parent}))
    (found,) = (await api.receive("g")).messages
    assert found.user_properties["traceparent"] == parent
    await api.close()
    spans = await kept.until(lambda names: "deliver T" in names)
    assert [span.name for span in spans] == ["store T", "deliver T"]
    assert {span.parent_span_id.hex() for span in spans} == {"b7ad6b7169203331"}


async def test_a_node_ends_although_its_collector_never_answers(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "END_SECONDS", 0.2)
    node = await start_node(traces=_traces(f"http://{free_endpoint()}"))
    taken = Taken()
    address = f"127.0.0.1:{node.port}"
    async with duolog.Client(address, tracer_provider=taken.provider) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            for _ in range(20):
                await producer.send("T", b"x")
    began = time.monotonic()
    await node.stop()
    assert time.monotonic() - began < 8 * slowness(), "the exporter tries for ten seconds"


async def test_no_spans_are_made_without_an_endpoint(node: Node) -> None:
    assert broker_of(node).core.traces is broker_of(node).log.traces is None
    assert "spans_exported" not in broker_of(node).status()


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "ftp://x", "http://", "http://a b"])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(ValueError, match="must be a URL"):
        Config.model_validate({"traces": {"endpoint": endpoint}})


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_a_node_says_which_packages_spans_need(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{protocol}", None)
    with pytest.raises(ConfigError, match=r"duolog-server\[otel\]"):
        await start_node(traces={"endpoint": "http://127.0.0.1:4317", "protocol": protocol})


async def test_spans_go_by_http_as_well(start_node: StartNode) -> None:
    asked: list[tuple[str, bytes]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(re.search(r"(?i)content-length: (\d+)", head)[1])  # type: ignore[index]
        asked.append((head.split(" ")[1], await reader.readexactly(size)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    traces = {**_traces(f"http://127.0.0.1:{port}"), "protocol": "http"}
    node, taken = await start_node(traces=traces), Taken()
    address = f"127.0.0.1:{node.port}"
    async with duolog.Client(address, tracer_provider=taken.provider) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send("T", b"x")
    await node.stop()
    server.close()
    path, body = asked[0]
    assert path == "/v1/traces"
    assert trace_of(taken.one("send T")).to_bytes(16) in body
