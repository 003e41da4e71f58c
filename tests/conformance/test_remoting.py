"""Apache's classic Java client, of RocketMQ 4 and 5: it sends in all ways, and consumes again."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duolog.sync
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.calling import connect
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.node.runtime.tls import Tls
from tests.conformance.brokers import cluster, end_server
from tests.conformance.conftest import SMALL, dead_letters
from tests.conformance.languages import SOON_BALANCED, go, jars_of, java_with, outcome
from tests.conformance.users import ROOT, node_of_users
from tests.process.support import NodeProcess

pytestmark = [pytest.mark.process, pytest.mark.long]

RIGHTS = {
    "alice": (("Topic:T", "Pub,Sub"), ("Topic:X", "Pub,Sub"), ("Group:g*", "Sub")),
    "bob": (("Topic:T", "Sub"), ("Group:other", "Sub")),
}
# As the clients' own file has it: they verify the node's certificate, and show one.
TLS = """
tls.test.mode.enable=false
tls.client.authServer=true
tls.client.trustCertPath={tls.ca}
tls.client.certPath={tls.cert}
tls.client.keyPath={tls.key}
"""
VERSIONS = ("4.4.0", "4.7.1", "4.9.7", "5.3.3", "5.5.0")  # the first sends by the VIP channel
OLD_NETTY = ("--add-opens", "java.base/java.nio=ALL-UNNAMED")  # of clients before 4.9
QUICK = (
    "--set", "store.message_delay_level=1s 2s 1s 1s 1s 1s",
    "--set", "transactions.timeout_ms=1000", "--set", "transactions.check_interval_ms=2000",
)  # fmt: skip


def classic_jars(version: str, artifact: str = "rocketmq-client") -> Path:
    """The client or what is built on it, and what signs, where that is not a part of it.

    Skips where they cannot be had.
    """
    artifacts = [artifact, *(["rocketmq-acl"] if version.startswith("4.") else [])]
    names = (f"org.apache.rocketmq:{one}:{version}" for one in artifacts)
    return jars_of(f"{artifact}-{version}", *names)


def classic(
    home: Path, program: str, version: str, *options: str, artifact: str = "rocketmq-client"
) -> list[str]:
    """The command that runs a program with a version of the client, or of what is built on it.

    options: of Java.
    """
    jars = classic_jars(version, artifact)
    return java_with(jars, home, program, SOON_BALANCED, *OLD_NETTY, *options)


@pytest.fixture
def listen() -> str:
    """An address for the remoting protocol."""
    return free_endpoint()


@pytest.fixture
def node(tmp_path: Path, listen: str) -> Iterator[NodeProcess]:
    """A node that serves it."""
    made = NodeProcess(tmp_path / "data", *SMALL, "--set", f"remoting.listen={listen}", *QUICK)
    made.start()
    with duolog.sync.Client(made.endpoint, timeout=60) as client:
        for topic in "TRDXOB":
            client.admin.create_topic(topic, 4)
    yield made
    assert made.stop() == 0


@pytest.fixture
def address(node: NodeProcess, listen: str) -> str:
    """Where that node serves it."""
    return listen


@pytest.fixture
def of_users(tmp_path: Path) -> Iterator[tuple[str, Tls]]:
    """Where a node with users serves the remoting protocol, and certificates of both ends."""
    listen = free_endpoint()
    users = {name: (f"{name}'s password", entries) for name, entries in RIGHTS.items()}
    settings = ("--set", f"remoting.listen={listen}", *QUICK)
    with node_of_users(tmp_path, users, *settings, client_certs="required") as (node, tls):
        with duolog.sync.Client(node.endpoint, timeout=60, **ROOT) as client:
            for topic in "TX":
                client.admin.create_topic(topic, 2)
        yield listen, tls


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_classic_client_signs(
    tmp_path: Path, of_users: tuple[str, Tls], version: str, tls: bool
) -> None:
    listen, certified = of_users
    options: tuple[str, ...] = ()
    if tls:
        file = tmp_path / "tls.properties"
        file.write_text(TLS.format(tls=certified))
        options = ("-Dtls.enable=true", f"-Dtls.config.file={file}")
    users = [word for name in RIGHTS for word in (name, f"{name}'s password")]
    command = classic(tmp_path, "RemotingUsers.java", version, *options)
    found: dict[str, Any] = outcome(*command, listen, *users)
    bodies = [f"body{number}" for number in range(8)]
    bodies[3] += " again"
    assert found["seen"] == " ".join(bodies), "one message was sent back, and came again"
    assert found["paid"] == "asked committed"
    assert found["stolen"] == 0, "no member of the group"
    assert found["found"] == "body2 body4", "by its key, and by its id"
    lacks = "user bob: denied: no entry matches Pub on Topic:T from 127.0.0.1"
    assert found["reader"].startswith(f"16 {lacks}")
    for caller in ("wrong", "nobody"):
        assert found[caller].startswith("No route info of this topic"), "nor do they see one"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_classic_client_sends_and_consumes(tmp_path: Path, address: str, version: str) -> None:
    found: dict[str, Any] = outcome(*classic(tmp_path, "Remoting.java", version), address)
    assert found["stored"] == 700, "synchronous and asynchronous sends that were confirmed"
    assert found["all"] == [1000, 1000], "each message came, and came once"
    assert found["reds"] == [500, 500, True], "a tag selects"
    assert found["attempts"] == "R0 R1 R2", "a message that failed comes again"
    assert 2000 <= found["delay_ms"] < 30_000
    assert found["auto"] == 80, "each message of a batch has an id"
    assert found["refused"] == "MQClientException", "a topic that does not exist has no route"


SLOW_SECONDS = 60.0
ASSIGNED = ("shared", "reds", "fails", "dies", "killed", "ordered")


@pytest.mark.parametrize("mode", ["PULL", "POP"])
@pytest.mark.parametrize("version", ["5.1.4", "5.3.3", "5.5.0"])
def test_the_classic_client_reads_queues_that_the_node_assigns(
    tmp_path: Path, node: NodeProcess, address: str, version: str, mode: str
) -> None:
    with duolog.sync.Client(node.endpoint, timeout=60) as client:
        client.admin.create_topic("A", 8)
        for group in ASSIGNED:
            client.admin.put_group(group, retry_times=0 if group == "dies" else None)
    found = assigned(classic(tmp_path, "Assigned.java", version), address, mode)
    assert found["popping"] == (6 if mode == "POP" else 0)
    assert dead_letters(node.endpoint, "%DLQ%dies") == [b"body9"]


def assigned(command: list[str], address: str, mode: str) -> dict[str, Any]:
    """What clients read of queues that the other side assigns, after one of them was killed."""
    with subprocess.Popen([*command, address, mode, "hold"], stdout=subprocess.PIPE) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == b"held held\n"  # the program ends by itself
        held.kill()
    found: dict[str, Any] = outcome(*command, address, mode, "read")
    assert (found["all"], found["times"], found["both"]) == (400, 401, True), "each came once"
    assert found["reds"] == 200, "a tag selects"
    assert found["attempts"] == "A0 A1", "a message that failed comes again"
    assert found["ordered"], "consumers in order assign their queues themselves"
    assert found["killed"] == 1, "of a consumer that was killed"
    return found


@pytest.mark.parametrize("mode", ["PULL", "POP"])
def test_rocketmqs_own_broker_assigns_queues_alike(tmp_path: Path, mode: str) -> None:
    made = cluster(tmp_path, "5.3.3", messageDelayLevel="1s 2s 1s 1s 1s 1s")
    try:
        made.names.start()
        made.names.wait_listening(made.name_server)
        made.broker.start()
        made.broker.wait_listening(made.address)
        asyncio.run(_prepare(made.address))
        assigned(classic(tmp_path, "Assigned.java", "5.3.3"), made.name_server, mode)
    finally:
        end_server(made.broker)
        end_server(made.names)


async def _prepare(address: str) -> None:
    """Make topics and groups on a broker."""
    calling = await connect(address)
    for topic, queues in (("A", 8), ("O", 2)):
        fields = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "order": "false"}
        fields |= {"readQueueNums": f"{queues}", "writeQueueNums": f"{queues}"}
        fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
        await calling.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, seconds=SLOW_SECONDS)
    for group in ASSIGNED:
        body = json.dumps({"groupName": group, "retryMaxTimes": 0 if group == "dies" else 16})
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await calling.call(code, body=body.encode(), seconds=SLOW_SECONDS)
    calling.close()


def test_the_classic_go_client(tmp_path: Path, address: str) -> None:
    found: dict[str, Any] = outcome(*go(tmp_path, "classic.go"), address)
    assert (found["found"], found["ids"]) == (20, 20)
    assert found["topic"]
    assert "go" in found["groups"]


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_classic_client_decides_reads_in_order_and_looks_up(
    tmp_path: Path, address: str, version: str
) -> None:
    found: dict[str, Any] = outcome(*classic(tmp_path, "RemotingMore.java", version), address)
    assert found["committed"] == "asked committed"
    assert found["asked"] == "asked doubted", "where a producer did not know, it was asked"
    assert found["ordered"] == [200, 4, True, 2], "each queue in order, with a message that failed"
    assert found["broadcast"] == [10, 10], "both clients got everything"
    assert found["sql"] == "8 9"
    assert found["pulled"] == 10
    assert (found["by_key"], found["by_id"]) == ("3", "9")


@pytest.mark.parametrize(("version", "waits"), [("4.9.7", "true"), ("5.3.3", "false")])
def test_the_classic_client_asks_and_is_answered(
    tmp_path: Path, address: str, version: str, waits: str
) -> None:
    command = classic(tmp_path, "Requests.java", version)
    found: dict[str, Any] = outcome(*command, address, waits)
    assert found["replies"] == ["re: one", "re: two", "re: three"]
    assert found["stored"] == "DefaultCluster_REPLY_TOPIC"
    assert (found["gone"], found["late"]) == ("timeout", True), "whoever replies learns of it"
