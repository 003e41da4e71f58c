"""Nodes with a console, as processes, and what they hold."""

from pathlib import Path

import duolog.sync

from demo.ports import free_endpoint
from tests.process.support import NodeProcess

TOPICS = 130  # more than a page of the list
DELAYED = 55  # the same of messages that wait for their time
HALVES = 55  # and of half messages
LETTERS = 55  # the same of dead letters
CONTROL = "\x1b"  # bodies may have it, properties may not
HOSTILE = (
    "<script>window.hit=1</script>\"'><img src=x onerror=window.hit=2><svg onload=window.hit=3>"
)


class Site(NodeProcess):
    """A node that serves the console."""

    def __init__(self, data: Path, *flags: str, name: str = "") -> None:
        self.console = free_endpoint()
        quiet = ("--set", "node.log_level=warning")
        super().__init__(data, *quiet, "--set", f"console.listen={self.console}", *flags, name=name)

    @property
    def url(self) -> str:
        """Of the console."""
        return f"http://{self.console}"

    def start(self, user: str = "", password: str = "") -> None:
        """Start, and wait until the console answers."""
        super().start(user, password)
        self.wait_listening(self.console)


def fill(client: duolog.sync.Client) -> None:
    """Orders, a group that is behind, many topics, and messages that would be scripts."""
    client.admin.create_topic("orders", 2)
    client.admin.create_topic("hostile", 1)
    for number in range(TOPICS):
        client.admin.create_topic(f"sensor-{number:03d}", 1)
    with client.producer() as producer:
        for number in range(20):
            body = b'{"order": %d, "lines": [{"article": "duck", "count": 2}]}' % number
            key = f"order-{1000 + number}"
            producer.send("orders", body, keys=[key], tags="new", queue_id=number % 2)
        producer.send(
            "hostile",
            f"{HOSTILE}{CONTROL}".encode(),
            keys=[HOSTILE.replace(" ", "/")],
            tags=HOSTILE,
            properties={"note": HOSTILE},
        )
    with client.consumer("billing", "orders") as consumer:
        assert consumer.get(30.0) is not None
        consumer.commit()
    bury(client)
    with client.producer() as producer:
        for number in range(DELAYED):
            due = 86_400 + number
            producer.send("parcels-late", b"later", keys=[f"later-{number}"], delay=due)
        key = "<script>window.hit=4</script>"
        producer.send("parcels-late", b"level", keys=[key], delay_level=18)
    with client.transactions("payments", lambda message: None, immunity=3600) as transactions:
        for number in range(HALVES):
            transactions.prepare("parcels-late", b"half", key=f"half-{number}")


def bury(client: duolog.sync.Client) -> None:
    """Dead letters of the group shipping: more than a page, the first one would be a script."""
    client.admin.create_topic("parcels-late", 1)
    client.admin.put_group("shipping", retry_times=0)
    with client.producer() as producer:
        for number in range(LETTERS):
            body = HOSTILE.encode() if not number else b"parcel %d" % number
            producer.send("parcels-late", body, keys=[f"parcel-{number}"])
    with client.consumer("shipping", "parcels-late") as consumer:
        for _ in range(LETTERS):
            message = consumer.get(30.0)
            assert message is not None
            consumer.send_back(message)
        consumer.commit()
