"""RocketMQ's mqadmin, of 4.9.7 and 5.3.3: it shows what the node knows, and why it is refused.

docs/mqadmin.md lists all sub-commands.
"""

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duolog.sync
import pytest
from duolog.testing._ports import free_endpoint

from bench.peers.peer import Server, Unavailable
from bench.peers.rocketmq import RocketMq
from tests.conformance.brokers import end_server
from tests.conformance.conftest import SMALL
from tests.conformance.differential.sides import Side, registered
from tests.conformance.test_remoting import classic
from tests.known import known
from tests.process.support import ROOT, NodeProcess

pytestmark = [pytest.mark.process, pytest.mark.long]

VERSIONS = ("4.9.7", "5.3.3")
PAGE = ROOT / "docs" / "mqadmin.md"
FOUR, FIVE, BOTH = ("4",), ("5",), ("4", "5")
SECONDS = 300
REFUSED = "CODE: 3"
LAST = ("topicList", "topicStatus -t T", "consumerProgress -g R")  # nothing is changed any more


@dataclass(frozen=True, slots=True)
class Row:
    """A command line, and what it has to print: regular expressions, each for a part of it.

    versions: of mqadmin, by their first digits.
    """

    line: str
    shows: tuple[str, ...]
    versions: tuple[str, ...] = BOTH


def works(line: str, *shows: str, only: tuple[str, ...] = BOTH) -> Row:
    return Row(line, shows, only)


def refused(line: str, reason: str, only: tuple[str, ...] = BOTH) -> Row:
    return Row(line, (REFUSED, reason), only)


NO_SUCH_SETTER = "edit the node's file"
ROWS = (
    # topics
    works("updateTopic -c DefaultCluster -t N -r 6 -w 6 -p 6", "create topic to ADDRESS success"),
    works("updateTopicPerm -c DefaultCluster -t N -p 4", "update topic perm from 6 to 4"),
    works("topicStatus -t N", r"broker-a\s+5\s+0\s+0"),
    works("topicRoute -t N", r'"perm":\s*4', r'"readQueueNums":\s*6'),
    works("deleteTopic -c DefaultCluster -t N", "from cluster .* success", "from NameServer"),
    works("topicList -c", r"DefaultCluster\s+T\s+C"),
    works("topicRoute -t T", r'"brokerName":\s*"broker-a"', "ADDRESS"),
    works("topicClusterList -t T", r"^DefaultCluster\s*$"),
    works("allocateMQ -t T -i 10.0.0.1,10.0.0.2", "10.0.0.2"),
    works("statsAll -t T", r"T\s+C\s+0\s"),
    # groups
    works("updateSubGroupList -b ADDRESS -f HOME/groups", "success", only=FIVE),
    works("updateTopicList -b ADDRESS -f HOME/topics", "success", only=FIVE),
    works("updateSubGroup -c DefaultCluster -g G -r 3", "create subscription group to ADDRESS"),
    works("getConsumerConfig -g G", "retryMaxTimes.*3"),
    works("deleteSubGroup -c DefaultCluster -g G -r true", r"delete subscription group \[G\]"),
    works("setConsumeMode -b ADDRESS -t T -g R -m POP", r"consume mode\[POP\]", only=FIVE),
    works("consumerProgress", r"^C\s+1\s+V\w+\s+PUSH\s+CLUSTERING\s+\d+\s+0", r"^R\s+0\s+OFFLINE"),
    works("consumerProgress -g C", r"T\s+broker-a\s+0\s+(\d+)\s+\1\s", "Diff Total: 0"),
    works("consumerConnection -g C", r"@CLIENT|\d+@\d+", "PASSIVELY", "CLUSTERING", r"T\s+.*\*"),
    works("consumerStatus -g C", "Same subscription in the same group", "Rebalance OK"),
    works("consumerStatus -g C -i @CLIENT", "#Consumer Properties#", "#Consumer Subscription#"),
    works("producerConnection -g P -t T", r"JAVA"),
    works("producer -b ADDRESS", r"producer group \(P\)"),
    works("cloneGroupOffset -s C -d R -t T -o true", "clone group offset success"),
    works("resetOffsetByTime -g R -t T -s 0 -f true", r"broker-a\s+0\s+0"),
    works("skipAccumulatedMessage -g R -t T", r"broker-a\s+\d+\s+\d+"),
    works("brokerConsumeStats -b ADDRESS", r"T\s+R\s+broker-a\s+0\s", "Diff Total: "),
    works("queryCq -t T -q 0 -i 0 -c 5 -b ADDRESS -g C", "Queue data"),
    # messages
    works("sendMessage -t T -p hello -k kk -c tag", r"broker-a\s+\d+\s+SEND_OK"),
    works("sendMsgStatus -b broker-a -s 128 -c 3", "SEND_OK"),
    works("checkMsgSendRT -t T -a 3 -s 10", r"broker-a\s+\d+\s+true"),
    works("queryMsgByKey -t T -k key1", r"[0-9A-F]{32}\s+\d\s+\d"),
    works("queryMsgByUniqueKey -t T -i @UNIQUE_ID", r"Topic:\s+T", "Keys:.*key0"),
    works("queryMsgById -i @OFFSET_ID", r"Topic:\s+T", "Keys:.*key0", only=FOUR),
    works("queryMsgById -i @OFFSET_ID -t T", r"Topic:\s+T", "Keys:.*key0", only=FIVE),
    works("queryMsgByOffset -t T -b broker-a -i 0 -o 0", r"Topic:\s+T"),
    works("printMsg -t T", "MSGID: [0-9A-F]{32}.*BODY: body0"),
    works("printMsgByQueue -t T -a broker-a -i 0 -p true -d true", "BODY: "),
    works("consumeMessage -t T -g X -c 1", "MSGID: [0-9A-F]{32}"),
    # the broker, and the name server
    works("clusterList", r"DefaultCluster\s+broker-a\s+0\s+ADDRESS\s+V4_9_8"),
    works("clusterList -m", r"DefaultCluster\s+broker-a\s+0\s+0\s+\d+\s+\d+"),
    works("brokerStatus -b ADDRESS", r"putMessageTimesTotal\s+: \d\d", r"brokerVersionDesc\s+: V4"),
    works("getBrokerConfig -b ADDRESS", r"brokerName\s+=\s+broker-a"),
    works("getNamesrvConfig", r"listenPort\s+=\s+PORT"),
    works("cleanExpiredCQ -c DefaultCluster", "success"),
    works("cleanUnusedTopic -c DefaultCluster", "success"),
    works("deleteKvConfig -s NS -k K", "delete kv config from namespace success"),
    works("exportConfigs -c DefaultCluster -f HOME", "export HOME/configs.json success"),
    works("exportMetadata -c DefaultCluster -f HOME", "success"),
    works("exportMetrics -c DefaultCluster -f HOME", "metrics.json success"),
    works("haStatus -b ADDRESS", r"#MasterAddr\s+ADDRESS", r"#InSyncSlaveNum\s+0", only=FIVE),
    works("getBrokerEpoch -b broker-a", "epoch", only=FIVE),
    works(
        "@ext", "spans 4", "reached 4", "topics true", r"clusters \[DefaultCluster\]",
        r"puts 1\d", r"gets 1\d", r"boot 1\d+", "direct CR_SUCCESS", r"readers \[.*C.*\]",
        r"producers \[.*P.*\]",
    ),
    # refused
    refused("deleteExpiredCommitLog -c DefaultCluster", "store.delete_when"),
    refused("updateKvConfig -s NS -k K -v V", "no key-value configuration"),
    refused("wipeWritePerm -b broker-a", "duolog cluster failover"),
    refused("addWritePerm -b broker-a", "duolog cluster failover"),
    refused("updateOrderConf -t T -m put -v broker-a:4", "no key-value configuration"),
    refused("updateBrokerConfig -b ADDRESS -k fileReservedTime -v 1", NO_SUCH_SETTER),
    refused("updateNamesrvConfig -k a -v b", NO_SUCH_SETTER),
    refused("updateAclConfig -b ADDRESS -a user -s password", "duolog acl", FOUR),
    refused("deleteAclConfig -b ADDRESS -a user", "duolog acl", FOUR),
    refused("clusterAclConfigVersion -b ADDRESS", "duolog acl", FOUR),
    refused("updateGlobalWhiteAddr -b ADDRESS -g 10.0.0.1", "duolog acl", FOUR),
    refused("getAclConfig -b ADDRESS", "duolog acl", FOUR),
    refused("listUser -b ADDRESS", "duolog user", FIVE),
    refused("createUser -b ADDRESS -u user -p password", "duolog user", FIVE),
    refused("getUser -b ADDRESS -u user", "duolog user", FIVE),
    refused("updateUser -b ADDRESS -u user -p password", "duolog user", FIVE),
    refused("deleteUser -b ADDRESS -u user", "duolog user", FIVE),
    refused("listAcl -b ADDRESS", "duolog acl", FIVE),
    refused("deleteAcl -b ADDRESS -s User:user", "duolog acl", FIVE),
    refused("updateControllerConfig -a ADDRESS -k a -v b", NO_SUCH_SETTER, FIVE),
    refused("removeColdDataFlowCtrGroupConfig -b ADDRESS -g C", "duolog quota", FIVE),
    refused("getAcl -b ADDRESS -s User:user", "duolog acl", FIVE),
    refused("getControllerMetaData -a ADDRESS", "elect their master", FIVE),
    refused("getControllerConfig -a ADDRESS", "elect their master", FIVE),
    refused("getColdDataFlowCtrInfo -b ADDRESS", "duolog quota", FIVE),
    refused("resetMasterFlushOffset -b ADDRESS -o 1", "elect their master", FIVE),
    refused("addBroker -c ADDRESS -b /x", "start and stop its process", FIVE),
)  # fmt: skip


def outputs(text: str) -> dict[str, str]:
    """What each command line printed."""
    found = {}
    for part in text.split("##### ")[1:]:
        line, _, rest = part.partition("\n")
        found[line.replace("\t", " ")] = rest
    return found


def listed(page: str) -> dict[str, dict[str, str]]:
    """The sub-commands of the page: what it says of each, by version."""
    found = {}
    for line in page.splitlines():
        row = re.match(r"\| `(\w+)` \| (\w+|-) \| (\w+|-) \|", line)
        if row:
            found[row[1]] = {"4": row[2], "5": row[3]}
    return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[NodeProcess, str]]:
    """A node with topics and a group that has offsets, and its remoting port."""
    listen = free_endpoint()
    made = NodeProcess(tmp_path / "data", *SMALL, "--set", f"remoting.listen={listen}")
    made.start()
    with duolog.sync.Client(made.endpoint, timeout=60) as client:
        client.admin.create_topic("T", 4)
        client.admin.create_topic("broker-a", 1)  # sendMsgStatus sends there
        client.admin.reset_group("R", "T", duolog.Start.EARLIEST)
    yield made, listen
    assert made.stop() == 0


Tools = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """The command that runs the program with a version of mqadmin, which is fetched once."""

    @cache
    def command(version: str) -> list[str]:
        home = tmp_path_factory.mktemp("tools")
        return classic(home, "MqAdmin.java", version, artifact="rocketmq-tools")

    return command


def run(home: Path, tools: list[str], address: str, lines: list[str]) -> dict[str, str]:
    """What mqadmin prints for command lines, in one process."""
    (home / "conf").mkdir()
    (home / "conf" / "logback_tools.xml").write_text("<configuration/>\n")  # 4.9 needs one
    topics = [{"topicName": "L", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]
    (home / "topics").write_text(json.dumps(topics))
    (home / "groups").write_text(json.dumps([{"groupName": "L", "retryMaxTimes": 4}]))
    file = home / "lines"
    named = (f"{line} -n {address}" for line in lines)
    file.write_text("\n".join("\t".join(line.split()) for line in named))
    done = subprocess.run(
        [tools[0], f"-Drocketmq.home.dir={home}", *tools[1:], address, str(file)],
        cwd=home, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert "##### end" in done.stdout, (done.stdout + done.stderr)[-3000:]
    found = outputs(done.stdout)
    return {line: found[f"{line} -n {address}"] for line in lines}


def filled(text: str, address: str, home: Path) -> str:
    """A command line with the places of this run."""
    return text.replace("ADDRESS", address).replace("HOME", str(home))


def pattern(text: str, address: str, home: Path) -> str:
    port = address.rpartition(":")[2]
    places = {"ADDRESS": re.escape(address), "HOME": re.escape(str(home)), "PORT": port}
    for name, place in places.items():
        text = text.replace(name, place)
    return text


@pytest.mark.parametrize("version", VERSIONS)
def test_mqadmin_shows_what_the_node_knows(
    tmp_path: Path, node: tuple[NodeProcess, str], tools: Tools, version: str
) -> None:
    made, address = node
    major = version[0]
    rows = [row for row in ROWS if major in row.versions]
    lines = ["@help", *(filled(row.line, address, tmp_path) for row in rows), *LAST]
    shown = run(tmp_path, tools(version), address, lines)
    wrong = [
        f"{row.line}: no {part!r} in {shown[filled(row.line, address, tmp_path)][:2000]}"
        for row in rows
        for part in row.shows
        if not re.search(
            pattern(part, address, tmp_path),
            shown[filled(row.line, address, tmp_path)],
            re.MULTILINE | re.DOTALL,
        )
    ]
    assert not wrong, "\n".join(wrong)
    _check_state(made, shown)
    page = listed(PAGE.read_text())
    names = set(re.findall(r"^   (\w+)", shown["@help"], re.MULTILINE))
    assert names == {name for name, by in page.items() if by[major] != "-"}
    for row in rows:
        name = row.line.split()[0]
        if name in page:
            says = "refused" if row.shows[0] == REFUSED else "works"
            assert page[name][major] == says, row.line


def _check_state(made: NodeProcess, shown: dict[str, str]) -> None:
    """What the last lines show is what the node knows."""
    with duolog.sync.Client(made.endpoint, timeout=60) as client:
        topics = {one.topic: one for one in client.admin.topics()}
        groups = {one.group: one for one in client.admin.groups()}
    names = {word for word in shown["topicList"].split() if word}
    assert names == topics.keys() | {f"%RETRY%{group}" for group in groups}
    queues = {
        (int(queue), int(low), int(high))
        for queue, low, high in re.findall(
            r"^broker-a\s+(\d)\s+(\d+)\s+(\d+)", shown["topicStatus -t T"], re.MULTILINE
        )
    }
    assert queues == {(q.queue_id, q.min_offset, q.max_offset) for q in topics["T"].stats}
    progress = {
        tuple(map(int, row))
        for row in re.findall(
            r"^T\s+broker-a\s+(\d)\s+(\d+)\s+(\d+)", shown["consumerProgress -g R"], re.MULTILINE
        )
    }
    assert progress == {
        (q.queue_id, q.max_offset, q.committed) for q in groups["R"].queues if q.topic == "T"
    }
    lag = known(re.search(r"Diff Total: (\d+)", shown["consumerProgress -g R"]))
    assert int(lag[1]) == sum(queue.lag_messages for queue in groups["R"].queues)


# -- a broker of RocketMQ --------------------------------------------------------------------------

SHAPES = (
    "clusterList",
    "clusterList -m",
    "topicRoute -t T",
    "topicStatus -t T",
    "statsAll -t T",
    "consumerProgress -g C",
    "consumerConnection -g C",
    "brokerConsumeStats -b ADDRESS",
    "brokerStatus -b ADDRESS",
)
# What a node has no words for: docs/mqadmin.md says so.
LEFT_OUT = {"putLatency99", "putLatency999"}


@dataclass(frozen=True, slots=True)
class Shape:
    """How an output looks. heads: the titles of its tables; names: of rows `name : value`."""

    heads: list[list[str]]
    names: set[str]

    @staticmethod
    def of(text: str) -> "Shape":
        lines = [line for line in text.splitlines() if line.strip()]
        heads = [line.split("#")[1:] for line in lines if line.startswith("#")]
        # A letter first: lines of the client's log, which begin with the time, come in between.
        found = (re.match(r"\s*\"?([A-Za-z]\w*)\"?\s*:", line) for line in lines)
        return Shape([[one.strip() for one in head] for head in heads], {m[1] for m in found if m})


def test_the_output_looks_as_with_a_broker_of_rocketmq(
    tmp_path: Path, node: tuple[NodeProcess, str], tools: Tools
) -> None:
    peer = RocketMq("4.9.7")
    try:
        peer.prepare()
    except Unavailable as reason:
        pytest.skip(str(reason))
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    broker = theirs / "broker"
    for folder in (theirs, ours, broker):
        folder.mkdir()
    _, address = node
    with ExitStack() as stack:
        brokers = peer.servers(broker, replicated=False)
        for process in brokers.processes:
            assert isinstance(process, Server)
            stack.callback(end_server, process)
            process.start()
            if process.endpoint:
                process.wait_listening(process.endpoint)
                lines = [line.replace("ADDRESS", process.endpoint) for line in SHAPES]
                asyncio.run(registered(Side(brokers.address, process.endpoint)))
        expected = run(theirs, tools("4.9.7"), brokers.address, lines)
    wanted = [Shape.of(expected[line]) for line in lines]
    lines = [line.replace("ADDRESS", address) for line in SHAPES]
    shown = run(ours, tools("4.9.7"), address, lines)
    for line, shape in zip(lines, wanted, strict=True):
        found = Shape.of(shown[line])
        assert shape.heads or shape.names, f"{line}: the broker shows nothing"
        assert found.heads == shape.heads, line
        assert shape.names - found.names <= LEFT_OUT, line
