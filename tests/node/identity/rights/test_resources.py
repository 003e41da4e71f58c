"""Which resource a name counts as."""

import pytest

from duolog_server.node.identity.rights.resources import (
    Kind,
    Resource,
    cluster,
    counts_as,
    group,
    topic,
)
from duolog_server.store import lightqueues


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("orders", "Topic:orders"),
        ("ns%orders", "Topic:ns%orders"),
        ("%RETRY%g", "Group:g"),
        ("%DLQ%g", "Group:g"),
        ("%RETRY%ns%g", "Group:ns%g"),
        ("%RETRY%g_orders", "Group:g_orders"),
        ("a%RETRY%g", "Topic:a%RETRY%g"),
        ("%retry%g", "Topic:%retry%g"),
        (lightqueues.lite_queue("chat", "room-1"), "Topic:chat"),
        (lightqueues.lite_queue("ns%chat", "room"), "Topic:ns%chat"),
        (lightqueues.lite_queue("%RETRY%g", "x"), "Group:g"),
        ("%LMQ%plain", "Topic:%LMQ%plain"),
    ],
)
def test_a_topic_counts_as_itself_its_group_or_its_parent(name: str, text: str) -> None:
    assert topic(name).text == text
    assert counts_as(Kind.TOPIC, name).text == text


def test_a_group_may_be_named_by_its_topics() -> None:
    assert group("g") == group("%RETRY%g") == group("%DLQ%g") == Resource(Kind.GROUP, "g")
    assert group("ns%g").text == "Group:ns%g"


def test_clusters_and_namespaces_are_named_by_themselves() -> None:
    assert cluster("%RETRY%c").text == "Cluster:%RETRY%c"
    assert counts_as(Kind.NAMESPACE, "%RETRY%n").text == "Namespace:%RETRY%n"
