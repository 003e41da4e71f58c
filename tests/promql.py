"""What the expressions of dashboards and alerts may name: metrics of a node, and their labels."""

import re

from duolog_server.node.metrics.table import BY_NAME, SCOPES
from duolog_server.serve.shardmetrics import UP as SHARD_UP

OF_A_TARGET = {"job", "instance", "shard"}  # that Prometheus adds, and the port of all shards
HISTOGRAM = re.compile(r"_(?:bucket|count|sum)$")


def labels_of(metric: str) -> set[str]:
    """The labels of a metric of the table, or one of Prometheus' or the shards' own."""
    if metric in ("up", SHARD_UP):
        return OF_A_TARGET
    known = BY_NAME.get(metric)
    if known is None and (base := BY_NAME.get(HISTOGRAM.sub("", metric))):
        assert base.kind == "histogram", metric
        return {*SCOPES[base.scope], *base.labels, *OF_A_TARGET} | {"le"}
    assert known is not None, f"no metric of a node: {metric}"
    assert known.kind != "histogram", f"{metric} has no series of its own"
    return {*SCOPES[known.scope], *known.labels, *OF_A_TARGET}


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Metrics of an expression, with the labels that they are selected by."""
    named = r"\b((?:duolog|rocketmq|process)[_:][\w:]+|up\b)\s*(?:\{(.*?)\})?"
    return [
        (name, set(re.findall(r"(\w+)\s*[=!]", chosen)))
        for name, chosen in re.findall(named, expression)
    ]
