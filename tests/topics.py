"""A first topic of a group, as soon as it takes one, with the client that blocks."""

import duolog.sync

from tests.until import wait_until


def create_topic(client: duolog.sync.Client, topic: str, queues: int) -> None:
    """Create a topic, or leave one as it is; wait while the group takes no changes.

    A group that has just been formed takes none until others are in sync, and a node waits a second
    for that: on a busy machine, others may still be loading then.
    """

    def created() -> bool:
        try:
            client.admin.create_topic(topic, queues)
        except duolog.TopicExists:
            return True
        except duolog.Retryable:
            return False
        return True

    wait_until(created, f"topic {topic}")


__all__ = ["create_topic"]
