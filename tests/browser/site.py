"""Nodes with a console, as processes, and what they hold."""

import http.client
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

import duolog.sync
from duolog.testing._node import SmallNode
from duolog.testing._ports import free_endpoint

from duolog_server.demo.registryserver import RegistryServer
from tests.keyfiles import access_files
from tests.process.support import NodeProcess

TOPICS = 130  # more than a page of the list
DELAYED = 55  # the same of messages that wait for their time
HALVES = 55  # and of half messages
LETTERS = 55  # the same of dead letters
WIDE_MESSAGES = 8  # of the topic that lies in both replica groups
CONTROL = "\x1b"  # bodies may have it, properties may not
HOSTILE = (
    "<script>window.hit=1</script>\"'><img src=x onerror=window.hit=2><svg onload=window.hit=3>"
)
GROUP, OTHER_GROUP = "broker-a", "broker-b"
MEMBERS, ALONE = ("a", "b", "c"), "d"
USER, PASSWORD = "boss", "pw-of-boss"  # a super user
LEASE_SECONDS = 8  # its page has always as many letters
WAIT_SECONDS, POLL_SECONDS = 60.0, 0.05
RIGHTS = """
{"policies": [{"policyType": "Custom", "entries": [
  {"resource": "Topic:ord*", "actions": ["Sub"], "sourceIps": ["10.0.0.0/8"], "decision": "Allow"},
  {"resource": "Group:*", "actions": ["All"], "decision": "Deny"}]}]}
"""
QUIET = ("--set", "node.log_level=warning")


class Site(NodeProcess):
    """A node that serves the console."""

    def __init__(self, data: Path, *flags: str, name: str = "") -> None:
        self.console = free_endpoint()
        super().__init__(data, *QUIET, "--set", f"console.listen={self.console}", *flags, name=name)

    @property
    def url(self) -> str:
        """Of the console."""
        return f"http://{self.console}"

    def start(self, user: str = "", password: str = "") -> None:
        """Start, and wait until the console answers."""
        super().start(user, password)
        self.wait_listening(self.console)


class Cluster:
    """Nodes a, b and c, which elect their master, and d, a replica group of its own. They have
    users; the console is that of b, and a leads.
    """

    def __init__(self, directory: Path) -> None:
        self._registry = RegistryServer()
        access = access_files(directory, "pw")
        self._flags = [
            *(word for key, value in access.items() for word in ("--set", f"access.{key}={value}")),
            *("--set", f"registry.lease_seconds={LEASE_SECONDS}", "--set", "audit.topic=true"),
            *("--role", "AUTO", "--registry", self._registry.endpoint, "--ha-listen"),
        ]
        self._console = Site(directory / "b", *self._flags, free_endpoint())
        self.nodes: dict[str, NodeProcess] = {
            "a": NodeProcess(directory / "a", *QUIET, *self._flags, free_endpoint()),
            "b": self._console,
            "c": NodeProcess(directory / "c", *QUIET, *self._flags, free_endpoint()),
            ALONE: NodeProcess(directory / ALONE, *QUIET, *self._alone()),
        }
        self.cookie = ("", "")

    def _alone(self) -> list[str]:
        own = ("--set", f"node.group={OTHER_GROUP}", "--set", "ha.in_sync_replicas=1")
        return [*self._flags, free_endpoint(), *own]

    @property
    def url(self) -> str:
        """Of the console."""
        return self._console.url

    def client(self, user: str = USER, password: str = PASSWORD) -> duolog.sync.Client:
        """A client of all nodes, as a super user where no other one is named."""
        endpoints = [node.endpoint for node in self.nodes.values()]
        return duolog.sync.Client(endpoints, user=user, password=password, timeout=30)

    def start(self) -> None:
        """Start the nodes one after the other, so that a leads, and fill them."""
        self._registry.start()
        first, *others = MEMBERS
        for name in (first, ALONE):
            self._begin(name)
        with self.client("root", "pw") as client:
            _wait_led(client, (first, ALONE))
            for name in others:
                self._begin(name)
            _wait_led(client, (*MEMBERS, ALONE))
            client.access.create_user(USER, PASSWORD, is_super=True)
        with self.client() as client:
            client.access.create_user("alice", "pw-of-alice")
            client.access.set_rights("alice", RIGHTS)
            fill(client)
            try:
                client.admin.create_topic(HOSTILE)  # the audit log quotes it
            except duolog.DuologError:
                pass
        self._console.wait_listening(self._console.console)
        self.cookie = self._log_in()

    def _begin(self, name: str) -> None:
        """Start a node, and wait until it listens."""
        node = self.nodes[name]
        super(SmallNode, node).start()  # which does not wait: alone, not each of them answers
        node.wait_port()

    def _log_in(self) -> tuple[str, str]:
        """Name and value of the cookie of a new session."""
        browser = http.client.HTTPConnection(self._console.console, timeout=WAIT_SECONDS)
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.url}
        browser.request("POST", "/login", urlencode({"user": USER, "password": PASSWORD}), kind)
        cookie = browser.getresponse().getheader("Set-Cookie") or ""
        browser.close()
        name, _, value = cookie.partition(";")[0].partition("=")
        assert value, "logged in"
        return name, value

    def stop(self) -> None:
        """End all of it."""
        for node in self.nodes.values():
            node.stop()
        self._registry.stop()


def _wait_led(client: duolog.sync.Client, nodes: Sequence[str]) -> None:
    """Wait until both replica groups are led, and these nodes are all, and in sync."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not _led(client, nodes):
        assert time.monotonic() < deadline, f"not in sync within {WAIT_SECONDS:g} s"
        time.sleep(POLL_SECONDS)


def _led(client: duolog.sync.Client, nodes: Sequence[str]) -> bool:
    try:
        groups = client.admin.route().groups
    except duolog.DuologError:  # who asks is known once there is a master
        return False
    in_sync = [one.node for group in groups for one in group.replicas if one.in_sync]
    return sorted(in_sync) == sorted(nodes) and all(group.master for group in groups)


def create(client: duolog.sync.Client, topic: str, queues: int) -> None:
    """A topic of one replica group: the place of a message is known by its queue."""
    client.admin.create_topic(topic, queues, groups=[GROUP])


def fill(client: duolog.sync.Client) -> None:
    """Orders, a group that is behind, many topics, and messages that would be scripts."""
    for topic, queues in (("orders", 2), ("hostile", 1), ("parcels-late", 1)):
        create(client, topic, queues)
    for number in range(TOPICS):
        create(client, f"sensor-{number:03d}", 1)
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
    spread(client)
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
    create(client, "parcels-lost", 1)
    client.admin.put_group("shipping", retry_times=0)
    with client.producer() as producer:
        for number in range(LETTERS):
            body = HOSTILE.encode() if not number else b"parcel %d" % number
            producer.send("parcels-lost", body, keys=[f"parcel-{number}"])
    with client.consumer("shipping", "parcels-lost") as consumer:
        for _ in range(LETTERS):
            message = consumer.get(30.0)
            assert message is not None
            consumer.send_back(message)
        consumer.commit()


def spread(client: duolog.sync.Client) -> None:
    """A topic in both replica groups, and a group that is behind in both."""
    client.admin.create_topic("wide", 2)
    with client.producer() as producer:
        for number in range(WIDE_MESSAGES):
            group = (GROUP, OTHER_GROUP)[number % 2]
            producer.send("wide", b"wide %d" % number, queue_id=number // 2 % 2, group=group)
    queues = [("wide", group, queue) for group in (GROUP, OTHER_GROUP) for queue in range(2)]
    client.admin.commit("spreading", dict.fromkeys(queues, 1))
