"""Takes the metrics that RocketMQ's clients push by OTLP (`rocketmq.client_metrics`).

Their settings tell the clients to push to the node that they use. What is not one of their metrics,
or not valid, is passed over and counted. On a node with users, the topic and group of a series
exist, and it needs the right to read its topic as its group, or to send to its topic: who may do
one thing, or has the right to all names of a prefix, cannot name a thousand others.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from duolog import _errors as sdk
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as otlp
from opentelemetry.proto.metrics.v1 import metrics_pb2 as metrics

from duolog_server.compat.grpc.auth import Authenticator, note_denied
from duolog_server.compat.grpc.guard import RocketmqGuard
from duolog_server.compat.grpc.protocol.codes import Refused
from duolog_server.node.audit.auditlog import AuditLog
from duolog_server.node.core.clientmeasures import (
    GAUGES,
    HISTOGRAMS,
    ClientMeasures,
    Distribution,
    Series,
)
from duolog_server.node.identity.access.rules import group_sub, pub, reads
from duolog_server.node.net.methods import Methods

SERVICE_NAME: str = otlp.DESCRIPTOR.services_by_name["MetricsService"].full_name
PUSH_BYTES_MAX = 256 << 10  # of one call: the event loop reads it at once
POINTS_MAX = 1000  # of one call
LABEL_MAX = 255  # characters
NUMBER_MAX = 1 << 62  # of what is counted, and of sums
STATUSES = ("success", "failure")  # as RocketMQ's clients call how something ended


class ClientMetricsService:
    """OTLP's service, for RocketMQ's clients alone."""

    def __init__(
        self,
        measures: ClientMeasures,
        authenticator: Authenticator,
        guard: RocketmqGuard | None,
        audit: AuditLog | None = None,
    ) -> None:
        """guard: None without access control. audit: None if it is off."""
        self._measures = measures
        self._authenticator = authenticator
        self._guard = guard
        self._audit = audit

    async def Export(
        self, pushed: bytes, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> otlp.ExportMetricsServiceResponse:
        """Take what a client measured, which is read only once it is known who calls."""
        principal = None
        try:
            if self._guard is not None:
                principal, _ = self._guard.recognise(context, "Export")
            else:
                headers = dict(context.invocation_metadata() or ())
                self._authenticator.check(headers, str(context.peer()))
        except (Refused, sdk.DuologError) as error:
            note_denied(self._audit, context, "MetricsService/Export", error)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        if len(pushed) > PUSH_BYTES_MAX:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"a push of {len(pushed)} bytes of metrics; the limit is {PUSH_BYTES_MAX}",
            )
        try:
            request = otlp.ExportMetricsServiceRequest.FromString(pushed)
        except DecodeError:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "no ExportMetricsServiceRequest of OTLP"
            )
        refused = self._measures.refused
        may: dict[tuple[str, ...], bool] = {}
        for number, (metric, point) in enumerate(_points(request)):
            series = _series(metric.name, point) if number < POINTS_MAX else None
            if series is None or not self._allowed(principal, series, may):
                self._measures.refused += 1
            elif metric.name in HISTOGRAMS:
                self._add(series, metric.histogram, point)
            else:
                self._put(series, point)
        reply = otlp.ExportMetricsServiceResponse()
        reply.partial_success.rejected_data_points = self._measures.refused - refused
        return reply

    def _allowed(self, principal: Any, series: Series, may: dict[tuple[str, ...], bool]) -> bool:
        if self._guard is None:
            return True
        names = dict(zip(_labels_of(series.name), series.labels, strict=True))
        topic, group = names["topic"], names.get("consumer_group", "")
        if (topic, group) not in may:
            may[topic, group] = self._exist_for(self._guard, principal, topic, group)
        return may[topic, group]

    @staticmethod
    def _exist_for(guard: RocketmqGuard, principal: Any, topic: str, group: str) -> bool:
        """Whether a topic and a group exist, and a user may use them. group: may be empty."""
        facts = guard.facts
        if not facts.has_topic(topic) or (group and not facts.has_group(group)):
            return False
        needs = [group_sub(group), *reads(topic, facts)] if group else pub(topic, facts)
        try:
            guard.check(principal, needs)
        except sdk.DuologError:
            return False
        return True

    def _add(self, series: Series, histogram: Any, point: Any) -> None:
        counts, bounds = tuple(point.bucket_counts), tuple(point.explicit_bounds)
        if not (
            all(map(math.isfinite, bounds))
            and 0 <= point.sum <= NUMBER_MAX
            and sum(counts) <= NUMBER_MAX
        ):
            self._measures.refused += 1
            return
        delta = histogram.aggregation_temporality == metrics.AGGREGATION_TEMPORALITY_DELTA
        since = point.start_time_unix_nano
        told = Distribution(since, bounds, counts, point.sum, cumulative=not delta)
        self._measures.add(series, told)

    def _put(self, series: Series, point: Any) -> None:
        value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
        if not 0 <= value <= NUMBER_MAX:
            self._measures.refused += 1
            return
        self._measures.put(series, float(value))


def methods_of(service: ClientMetricsService) -> Methods:
    """The gRPC methods of the service."""
    made = Methods()
    response = otlp.ExportMetricsServiceResponse
    export: Any = grpc.unary_unary_rpc_method_handler(
        service.Export, response_serializer=response.SerializeToString
    )
    made.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(SERVICE_NAME, {"Export": export})]
    )
    return made


def _labels_of(name: str) -> Sequence[str]:
    return HISTOGRAMS.get(name) or GAUGES[name]


def _points(request: otlp.ExportMetricsServiceRequest) -> Iterator[tuple[Any, Any]]:
    """The points of RocketMQ's metrics, each with its metric."""
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if metric.name in HISTOGRAMS and kind == "histogram":
                    yield from ((metric, point) for point in metric.histogram.data_points)
                elif metric.name in GAUGES and kind in ("gauge", "sum"):
                    points = getattr(metric, kind).data_points
                    yield from ((metric, point) for point in points)


def _series(name: str, point: Any) -> Series | None:
    """The series of a point; None where a label is missing or not valid."""
    told = {one.key: one.value.string_value for one in point.attributes}
    labels = tuple(told.get(label, "") for label in _labels_of(name))
    client = told.get("client_id", "")
    if not all(0 < len(text) <= LABEL_MAX and text.isprintable() for text in (*labels, client)):
        return None
    if "invocation_status" in _labels_of(name) and told["invocation_status"] not in STATUSES:
        return None
    return Series(name, labels, client)
