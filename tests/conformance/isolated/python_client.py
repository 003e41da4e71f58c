"""Apache's Python client for RocketMQ 5 against a node.

Run by test_python_client.py in a process of its own.
"""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import duolog.sync
import pytest
from duolog.testing._node import ChildNode
from duolog.testing._ports import free_endpoint

from duolog_server.chaos.processes import ProcessTarget
from duolog_server.compat.grpc.protocol.stubs import Code
from tests.certificates import certificates
from tests.conformance.conftest import (
    LEASE_SECONDS,
    LED_SECONDS_MAX,
    SMALL,
    make_topics,
    next_master,
    rights_of,
)
from tests.etcd import need_etcd
from tests.keyfiles import access_files
from tests.process.support import SMALL_FILES, NodeProcess
from tests.topics import create_topic

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]


class Received:
    """A listener that remembers, and answers as it is told."""

    def __init__(self, rocketmq: ModuleType, answer: Callable[[Any], bool]) -> None:
        self.messages: list[tuple[bytes, int]] = []
        self._lock = threading.Lock()
        received = self

        class Listener(rocketmq.MessageListener):  # type: ignore[misc, name-defined]
            def consume(self, message: Any) -> Any:
                with received._lock:
                    received.messages.append((message.body, message.delivery_attempt))
                results = rocketmq.ConsumeResult
                return results.SUCCESS if answer(message) else results.FAILURE

        self.listener = Listener()

    @property
    def bodies(self) -> list[bytes]:
        with self._lock:
            return [body for body, _ in self.messages]


class Clients(NamedTuple):
    """The library, a node, the topic of a test, and what it opened."""

    rocketmq: ModuleType
    endpoint: str
    topic: str
    opened: list[Any]

    def configuration(self, endpoints: str = "", **how: Any) -> Any:
        credentials = self.rocketmq.Credentials(*how.pop("keys", ()))
        # A send that is tried again may be stored twice.
        return self.rocketmq.ClientConfiguration(
            endpoints or self.endpoint, credentials, request_timeout=30, **how
        )

    def started(self, made: Any) -> Any:
        made.startup()
        self.opened.append(made)
        return made

    def producer(self, *topics: str, checker: Any = None, **how: Any) -> Any:
        topics = topics or (self.topic,)
        return self.started(
            self.rocketmq.Producer(self.configuration(**how), topics, checker=checker)
        )

    def subscription(self, topic: str, expression: Any) -> dict[str, Any]:
        return {topic or self.topic: expression or self.rocketmq.FilterExpression()}

    def simple(self, group: str, topic: str = "", expression: Any = None, **how: Any) -> Any:
        wanted = self.subscription(topic, expression)
        configuration = self.configuration(**how)
        return self.started(
            self.rocketmq.SimpleConsumer(configuration, group, wanted, await_duration=5)
        )

    def push(
        self, group: str, topic: str = "", answer: Callable[[Any], bool] = lambda message: True
    ) -> "Received":
        received = Received(self.rocketmq, answer)
        wanted = self.subscription(topic, None)
        self.started(
            self.rocketmq.PushConsumer(self.configuration(), group, received.listener, wanted)
        )
        return received

    def message(self, body: bytes, topic: str = "", **how: Any) -> Any:
        made = self.rocketmq.Message()
        made.topic, made.body = topic or self.topic, body
        for name, value in how.items():
            setattr(made, name, value)
        return made

    def end(self) -> None:
        """Before their node does."""
        while self.opened:
            self.opened.pop().shutdown()


@contextmanager
def served_by(
    node: ChildNode, rocketmq: ModuleType, opened: list[Any], topics: bool = True
) -> Iterator[Clients]:
    """Clients of a node that is started for one test."""
    node.start()
    try:
        node.wait_port()
        if topics:
            make_topics(node.endpoint)
        clients = Clients(rocketmq, node.endpoint, "T", opened)
        yield clients
        clients.end()
    finally:
        node.stop()


@pytest.fixture
def clients(rocketmq: ModuleType, shared: NodeProcess, topic: str, opened: list[Any]) -> Clients:
    return Clients(rocketmq, shared.endpoint, topic, opened)


def until(holds: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def receive_all(consumer: Any, count: int, invisible: int = 15, seconds: float = 60.0) -> list[Any]:
    found: list[Any] = []
    end = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end:
        found += consumer.receive(32, invisible)
    return found


# -- producing -------------------------------------------------------------------------------------


def test_sync_send_answers_with_the_clients_id_and_growing_offsets(clients: Clients) -> None:
    sender = clients.producer()
    receipts = [sender.send(clients.message(b"%d" % k)) for k in range(8)]
    assert len({receipt.message_id for receipt in receipts}) == 8
    assert Counter(receipt.offset for receipt in receipts) == {0: 4, 1: 4}


def test_async_send(clients: Clients) -> None:
    sender = clients.producer()
    futures = [sender.send_async(clients.message(b"%d" % k)) for k in range(50)]
    assert len({future.result().message_id for future in futures}) == 50


def test_a_body_of_four_mebibytes_goes_and_one_byte_more_does_not(clients: Clients) -> None:
    sender = clients.producer()
    body = b"x" * (4 << 20)
    sender.send(clients.message(body))
    with pytest.raises(Exception, match=r"(?i)body|size|large"):
        sender.send(clients.message(body + b"x"))
    consumer = clients.simple("g")
    (found,) = receive_all(consumer, 1)
    assert found.body == body
    consumer.ack(found)


def test_a_missing_topic_is_reported(clients: Clients) -> None:
    sender = clients.producer("T")
    with pytest.raises(Exception, match="route"):
        sender.send(clients.message(b"x", "NoSuchTopic"))


def test_a_message_type_that_the_topic_does_not_accept_is_refused(clients: Clients) -> None:
    sender = clients.producer("Normal", "Fifo")
    sender.send(clients.message(b"x", "Normal"))
    with pytest.raises(Exception, match=r"(?i)type"):
        sender.send(clients.message(b"x", "Normal", message_group="one"))
    sender.send(clients.message(b"x", "Fifo", message_group="one"))


# -- simple consumers ------------------------------------------------------------------------------


def test_simple_consumer_receives_once_and_acknowledges(clients: Clients) -> None:
    sender = clients.producer()
    sent = clients.message(b"body", tag="A", keys="k1")
    sent.add_property("color", "blue")
    receipt = sender.send(sent)
    consumer = clients.simple("g")
    (found,) = receive_all(consumer, 1)
    assert (found.body, found.tag, found.keys) == (b"body", "A", {"k1"})
    assert found.properties == {"color": "blue"}
    assert found.message_id == receipt.message_id
    assert found.delivery_attempt == 1
    consumer.ack(found)
    began = time.monotonic()
    assert consumer.receive(32, 15) == []
    assert 4 < time.monotonic() - began < 15  # not as long as a node waits


def test_three_hundred_messages_come_in_batches_of_at_most_32(clients: Clients) -> None:
    sender = clients.producer()
    futures = [sender.send_async(clients.message(b"%d" % k)) for k in range(300)]
    for future in futures:
        future.result()
    consumer = clients.simple("g")
    seen: list[int] = []
    while len(seen) < 300:
        batch = consumer.receive(100, 30)
        assert len(batch) <= 32
        seen += [int(found.body) for found in batch]
        for found in batch:
            consumer.ack(found)
    assert sorted(seen) == list(range(300))


def test_an_unacknowledged_message_is_redelivered(clients: Clients) -> None:
    sender = clients.producer()
    sender.send(clients.message(b"x"))
    consumer = clients.simple("g")
    before = time.monotonic()  # its time begins after this, and ends 10 s after what comes next
    (first,) = receive_all(consumer, 1, invisible=10)
    began = time.monotonic()
    (again,) = receive_all(consumer, 1, invisible=10)
    assert time.monotonic() - before > 9.9
    assert time.monotonic() - began < 20
    assert again.message_id == first.message_id
    assert again.delivery_attempt == 2
    with pytest.raises(clients.rocketmq.v5.exception.BadRequestException) as failure:
        consumer.ack(first)  # too late
    assert str(int(Code.INVALID_RECEIPT_HANDLE)) in str(failure.value)
    consumer.ack(again)


def test_invisible_times_have_bounds_and_can_be_changed(clients: Clients) -> None:
    sender = clients.producer()
    sender.send(clients.message(b"x"))
    consumer = clients.simple("g")
    for seconds in (5, 50_000):
        with pytest.raises(clients.rocketmq.v5.exception.BadRequestException) as failure:
            consumer.receive(1, seconds)
        assert str(int(Code.ILLEGAL_INVISIBLE_TIME)) in str(failure.value)
    (found,) = receive_all(consumer, 1)
    before = found.receipt_handle
    consumer.change_invisible_duration(found, 20)
    assert found.receipt_handle != before
    consumer.ack(found)


def test_tags_filter_exactly(clients: Clients) -> None:
    sender = clients.producer()
    for tag in ("A", "B", "a", "AB"):
        sender.send(clients.message(tag.encode(), tag=tag))
    sender.send(clients.message(b"none"))
    wanted = clients.rocketmq.FilterExpression("A || B")
    consumer = clients.simple("g", expression=wanted)
    found = receive_all(consumer, 2)
    for one in found:
        consumer.ack(one)
    assert sorted(one.body for one in found) == [b"A", b"B"]
    assert consumer.receive(32, 15) == []


def test_two_clients_share_and_two_groups_do_not(clients: Clients) -> None:
    sender = clients.producer()
    one = clients.push("g")
    two = clients.push("g")
    other = clients.push("h")
    for k in range(100):
        sender.send(clients.message(b"%d" % k))
    until(lambda: len(one.bodies) + len(two.bodies) >= 100 and len(other.bodies) >= 100)
    assert sorted(map(int, one.bodies + two.bodies)) == list(range(100))
    assert sorted(map(int, other.bodies)) == list(range(100))


# -- lite topics -----------------------------------------------------------------------------------


def lite_topics_of(clients: Clients) -> Any:
    """A producer for a topic of lite topics: called with a lite topic and bodies."""
    topic = f"L{clients.topic}"
    with duolog.sync.Client(clients.endpoint) as client:
        client.admin.create_topic(topic, 2, message_type="LITE")
    sender = clients.producer(topic)

    def send(lite_topic: str, *bodies: bytes) -> None:
        for body in bodies:
            sender.send(clients.message(body, topic, lite_topic=lite_topic))

    return send


def test_a_lite_push_consumer_receives_what_it_subscribes_to(clients: Clients) -> None:
    send = lite_topics_of(clients)
    for name in "abc":
        send(name, *[b"%s%d" % (name.encode(), k) for k in range(10)])
    with duolog.sync.Client(clients.endpoint) as client:
        client.admin.put_group(
            f"lite-{clients.topic}", lite_topic=f"L{clients.topic}", retry_delays_ms=[1000]
        )
    failing = [b"a3"]

    def answer(found: Any) -> bool:
        if found.body not in failing:
            return True
        failing.clear()
        return False

    received = Received(clients.rocketmq, answer)
    consumer = clients.started(
        clients.rocketmq.LitePushConsumer(
            clients.configuration(),
            f"lite-{clients.topic}",
            f"L{clients.topic}",
            received.listener,
        )
    )
    until(lambda: _subscribed(consumer, "a"))
    consumer.subscribe_lite("b")
    until(lambda: len(received.bodies) >= 21)
    a, b = ([body for body in received.bodies if body[:1] == name] for name in (b"a", b"b"))
    assert list(dict.fromkeys(a)) == [b"a%d" % k for k in range(10)]
    assert a.count(b"a3") == 2
    assert b == [b"b%d" % k for k in range(10)]
    consumer.unsubscribe_lite("b")
    send("b", b"unheard")
    send("a", b"a10")
    until(lambda: b"a10" in received.bodies)
    time.sleep(1)
    assert len(received.bodies) == 22


def _subscribed(consumer: Any, lite_topic: str) -> bool:
    """The client knows its quota when the node has answered its settings, and not before."""
    try:
        consumer.subscribe_lite(lite_topic)
    except Exception:
        return False
    return True


def test_a_lite_simple_consumer_receives_what_it_subscribes_to(clients: Clients) -> None:
    send = lite_topics_of(clients)
    send("a", b"a0", b"a1")
    send("b", b"b0")
    consumer = clients.started(
        clients.rocketmq.LiteSimpleConsumer(
            f"L{clients.topic}", clients.configuration(), f"lite-{clients.topic}", 5
        )
    )
    until(lambda: _subscribed(consumer, "a"))
    found = receive_all(consumer, 2)
    assert [(one.lite_topic, one.body) for one in found] == [("a", b"a0"), ("a", b"a1")]
    consumer.change_invisible_duration(found[1], 20)
    for one in found:
        consumer.ack(one)
    assert consumer.receive(32, 15) == []


# -- push consumers --------------------------------------------------------------------------------


def test_a_failing_message_is_retried_and_becomes_a_dead_letter(clients: Clients) -> None:
    sender = clients.producer()
    with duolog.sync.Client(clients.endpoint) as client:
        client.admin.put_group(f"g-{clients.topic}", retry_times=2, retry_delays_ms=[1000])
    received = clients.push(
        f"g-{clients.topic}",
        answer=lambda found: bool(found.body != b"bad"),
    )
    receipt = sender.send(clients.message(b"bad"))
    sender.send(clients.message(b"good"))
    until(lambda: len(received.messages) >= 4)
    assert sorted(received.messages) == [(b"bad", 1), (b"bad", 2), (b"bad", 3), (b"good", 1)]
    with duolog.sync.Client(clients.endpoint) as client:
        until(lambda: client.admin.topics([f"%DLQ%g-{clients.topic}"]))
    dead = clients.simple("h", f"%DLQ%g-{clients.topic}")
    (letter,) = receive_all(dead, 1)
    assert (letter.body, letter.message_id) == (b"bad", receipt.message_id)
    dead.ack(letter)


def test_fifo_keeps_the_order_over_a_failing_message(clients: Clients) -> None:
    sender = clients.producer()
    with duolog.sync.Client(clients.endpoint) as client:
        client.admin.put_group(
            f"f-{clients.topic}", orderly=True, retry_times=1, retry_delays_ms=[1000]
        )
    for k in range(10):
        sender.send(clients.message(b"%d" % k, message_group="one"))
    received = clients.push(
        f"f-{clients.topic}",
        answer=lambda found: bool(found.body != b"3"),
    )
    until(lambda: b"9" in received.bodies)
    order = list(dict.fromkeys(received.bodies))
    assert order == [b"%d" % k for k in range(10)]
    assert received.bodies.count(b"3") >= 2
    with duolog.sync.Client(clients.endpoint) as client:
        until(lambda: client.admin.topics([f"%DLQ%f-{clients.topic}"]))
    dead = clients.simple("h", f"%DLQ%f-{clients.topic}")
    (letter,) = receive_all(dead, 1)
    assert letter.body == b"3"
    dead.ack(letter)


# -- time and transactions -------------------------------------------------------------------------


def test_delayed_messages_are_delivered_and_recalled_ones_are_not(clients: Clients) -> None:
    sender = clients.producer()
    received = clients.push("g")
    at = int(time.time()) + 3
    sender.send(clients.message(b"delayed", delivery_timestamp=at))
    later = int(time.time()) + 10  # it must still wait when it is recalled
    recalled = sender.send(clients.message(b"recalled", delivery_timestamp=later))
    reply = sender.recall_message(clients.topic, recalled.recall_handle)
    assert recalled.message_id in str(reply) or reply == recalled.message_id
    with pytest.raises(Exception, match=r"(?i)wait|not found|404"):
        sender.recall_message(clients.topic, recalled.recall_handle)
    until(lambda: received.bodies)
    assert at <= time.time() <= at + 30
    time.sleep(max(0.0, later - time.time()) + 1)
    assert received.bodies == [b"delayed"]


def test_transactions_are_committed_rolled_back_and_checked(
    rocketmq: ModuleType, tmp_path: Path, opened: list[Any]
) -> None:
    node = NodeProcess(
        tmp_path / "data", *SMALL,
        "--set", "transactions.timeout_ms=2000", "--set", "transactions.check_interval_ms=2000",
    )  # fmt: skip
    resolutions = rocketmq.TransactionResolution
    asked: Counter[bytes] = Counter()

    class Checker(rocketmq.TransactionChecker):  # type: ignore[misc, name-defined]
        def check(self, found: Any) -> Any:
            # A client that stands still is also asked about what it is about to decide.
            if found.body in (b"commit", b"rollback"):
                commits = found.body == b"commit"
                return resolutions.COMMIT if commits else resolutions.ROLLBACK
            asked[found.body] += 1
            if found.body == b"undecided" and asked[found.body] < 3:
                return resolutions.TRANSACTION_RESOLUTION_UNSPECIFIED
            return resolutions.ROLLBACK if found.body == b"no" else resolutions.COMMIT

    with served_by(node, rocketmq, opened) as clients:
        sender = clients.producer(checker=Checker())
        received = clients.push("g")
        for body in (b"commit", b"rollback", b"yes", b"no", b"undecided"):
            transaction = sender.begin_transaction()
            sender.send(clients.message(body), transaction)
            if body == b"commit":
                transaction.commit()
            elif body == b"rollback":
                transaction.rollback()
        until(lambda: len(received.bodies) >= 3)
        until(lambda: asked[b"no"])
        time.sleep(3)
        assert sorted(received.bodies) == [b"commit", b"undecided", b"yes"]
        # Where its answer takes longer than the interval, a client is asked once more.
        assert asked.keys() == {b"yes", b"no", b"undecided"}
        assert asked[b"undecided"] >= 3
        before = asked.copy()
        time.sleep(3)
        assert asked == before, "what is decided is not asked about"


# -- connections -----------------------------------------------------------------------------------


def test_namespaces_are_isolated(clients: Clients) -> None:
    with duolog.sync.Client(clients.endpoint) as client:
        client.admin.create_topic("ns1%Apart", 1)
        client.admin.create_topic("Apart", 1)
    inside = clients.producer("Apart", namespace="ns1")
    inside.send(clients.message(b"inside", "Apart"))
    outer = clients.simple("g", "Apart")
    assert outer.receive(32, 15) == []
    inner = clients.simple("g", "Apart", namespace="ns1")
    (found,) = receive_all(inner, 1)
    assert found.body == b"inside"
    inner.ack(found)


def test_of_two_access_points_the_first_may_be_dead(clients: Clients) -> None:
    endpoints = f"{free_endpoint()};{clients.endpoint}"
    sender = clients.producer(endpoints=endpoints)
    assert sender.send(clients.message(b"x")).message_id


def test_access_keys_are_required(rocketmq: ModuleType, tmp_path: Path, opened: list[Any]) -> None:
    node = NodeProcess(
        tmp_path / "data", *SMALL,
        "--set", "rocketmq.access_key=ak", "--set", "rocketmq.secret_key=sk",
    )  # fmt: skip
    with served_by(node, rocketmq, opened) as clients:
        right = clients.producer(keys=("ak", "sk"))
        assert right.send(clients.message(b"x")).message_id
        for keys in (("ak", "wrong"), ()):
            wrong = clients.producer(keys=keys)
            with pytest.raises(Exception, match="route"):
                wrong.send(clients.message(b"x"))


def test_users_sign_and_have_rights(
    rocketmq: ModuleType, tmp_path: Path, opened: list[Any]
) -> None:
    access = access_files(tmp_path, "secret of root")
    node = ChildNode(
        tmp_path / "data", *SMALL_FILES, *SMALL,
        *(word for key, path in access.items() for word in ("--set", f"access.{key}={path}")),
    )  # fmt: skip
    with (
        served_by(node, rocketmq, opened, topics=False) as clients,
        duolog.sync.Client(
            clients.endpoint, user="root", password="secret of root", timeout=60
        ) as root,
    ):
        root.admin.create_topic("T", 4)
        root.access.create_user("root", "secret of root", is_super=True)
        for name, rights in (
            ("sender", rights_of(("Topic:T", "Pub"))),
            ("reader", rights_of(("Topic:T", "Sub"), ("Group:g", "Sub"))),
        ):
            root.access.create_user(name, f"secret of {name}", signs=True)
            root.access.set_rights(name, rights)
        sender, reader = ((name, f"secret of {name}") for name in ("sender", "reader"))
        assert clients.producer(keys=sender).send(clients.message(b"x")).message_id
        reading = clients.simple("g", keys=reader)
        (found,) = receive_all(reading, 1)
        assert found.body == b"x"
        reading.ack(found)
        for keys in (("sender", "wrong"), ("nobody", "wrong"), ()):
            wrong = clients.producer(keys=keys)
            with pytest.raises(Exception, match="route"):
                wrong.send(clients.message(b"x"))
        with pytest.raises(Exception, match="no entry matches Pub"):
            clients.producer(keys=reader).send(clients.message(b"x"))
        root.access.set_rights("reader", rights_of(("Topic:T", "Sub")))
        with pytest.raises(Exception, match="Group:g"):
            reading.receive(1, 15)


def test_a_producer_survives_the_death_of_the_master_and_nothing_is_lost_or_duplicated(
    tmp_path: Path,
) -> None:
    need_etcd()
    target = ProcessTarget(tmp_path, lease_seconds=LEASE_SECONDS, flags=SMALL)
    target.start()
    program = Path(__file__).parent.parent / "programs" / "send_and_hear.py"
    endpoints = [target.endpoint(name) for name in target.nodes]
    try:
        with duolog.sync.Client(endpoints, timeout=30) as client:
            until(lambda: members_in_sync(client) == 3)
            create_topic(client, "T", 4)
            with subprocess.Popen(
                [sys.executable, str(program), ";".join(endpoints)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "HOME": str(tmp_path)},
            ) as child:
                sent: list[str] = []
                times: list[float] = []  # of these
                received: set[str] = set()

                def read() -> None:
                    assert child.stdout is not None
                    for line in child.stdout:
                        word, what = line.split()
                        if word == "sent":
                            times.append(time.time())
                            sent.append(what)
                        else:
                            received.add(what)

                reader = threading.Thread(target=read)
                reader.start()
                try:
                    until(lambda: len(sent) >= 200)
                    master = client.admin.route().groups[0].master
                    target.kill(master)
                    led = next_master(target, master)
                    until(lambda: times[-1] > led, LED_SECONDS_MAX)
                    before = len(sent)
                    until(lambda: len(sent) >= before + 200, 40)
                    wanted = len(sent)
                    until(lambda: len(received) >= wanted, 60)
                finally:
                    child.kill()
                    reader.join(10)
            stored: dict[tuple[int, int], str] = {}

            def all_are_stored() -> bool:
                for queue in range(4):  # any node may answer, also the one that catches up
                    while batch := client.pull("T", queue, sum(at[0] == queue for at in stored)):
                        for found in batch:
                            stored[queue, found.queue_offset] = found.properties["UNIQ_KEY"]
                return set(sent) <= set(stored.values())

            until(all_are_stored)
            assert len(set(stored.values())) == len(stored)
    finally:
        target.stop()


def members_in_sync(client: duolog.sync.Client) -> int:
    groups = client.admin.route().groups
    return sum(replica.in_sync for replica in groups[0].replicas) if groups else 0


def test_tls_with_a_certificate_that_the_client_trusts(tmp_path: Path) -> None:
    tls = certificates(tmp_path)
    listen = free_endpoint()
    node = NodeProcess(
        tmp_path / "data", *SMALL,
        "--set", f"tls.listen={listen}",
        "--set", f"tls.cert={tls.cert}",
        "--set", f"tls.key={tls.key}",
    )  # fmt: skip
    node.start()
    try:
        make_topics(node.endpoint)
        # gRPC reads its roots once in a process: the client gets one of its own.
        program = Path(__file__).parent.parent / "programs" / "tls_round_trip.py"
        environment = {
            **os.environ,
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tls.ca),
            "HOME": str(tmp_path),
        }
        done = subprocess.run(
            [sys.executable, str(program), listen],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.stdout.strip() == "received b'over tls'", done.stderr[-2000:]
    finally:
        node.stop()


def test_clients_continue_after_the_node_was_restarted(
    rocketmq: ModuleType, node: NodeProcess, opened: list[Any]
) -> None:
    clients = Clients(rocketmq, node.endpoint, "T", opened)
    sender = clients.producer()
    received = clients.push("g")
    sender.send(clients.message(b"before"))
    until(lambda: b"before" in received.bodies)
    assert node.stop() == 0
    node.start()

    def sent() -> bool:
        try:
            return bool(sender.send(clients.message(b"after")).message_id)
        except Exception:
            return False

    until(sent)
    until(lambda: b"after" in received.bodies)
    clients.end()
