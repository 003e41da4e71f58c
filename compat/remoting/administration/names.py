"""Names of topics, as tools know them."""

from duolog_server.node.broker import Broker
from duolog_server.store.grouptopics import group_retry_topic


def topic_names(broker: Broker) -> set[str]:
    """All topics, and the retry topic of every group.

    Tools know groups by their retry topics. One that has nothing to deliver again has none yet.
    """
    metadata = broker.metadata
    return {*metadata.topics, *map(group_retry_topic, metadata.tables.groups)}
