"""RocketMQ: a name server and a broker, or a SYNC_MASTER and a slave, with its Java client."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duolog.testing._ports import free_ports
from duolog.testing._process import ChildProcess

from bench.peers import maven
from bench.peers.clients.program import read
from bench.peers.peer import ClientProgram, Facts, PeerFailed, Server, Work

MODULES = ("broker", "namesrv", "client", "tools")
CLIENT = Path(__file__).parent / "clients" / "RocketClient.java"
# What 5.x reaches into on Java 17; 4.9 frees its mapped files in the same way.
OPENS = tuple(
    f"--add-{verb}=java.base/{package}=ALL-UNNAMED"
    for verb, package in (
        ("exports", "jdk.internal.ref"),
        ("opens", "jdk.internal.ref"),
        ("opens", "java.nio"),
        ("opens", "sun.nio.ch"),
        ("opens", "java.lang"),
        ("opens", "java.util"),
    )
)
HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=2g")
SMALL_HEAP = ("-Xms128m", "-Xmx128m")
# Beside listenPort, a broker listens at the one two below, and for its slaves at the one above
# (4.9 whatever haListenPort says).
LINK_PORT = 1
PORT_TRIES = 20
# A broker refuses requests that waited for 200 ms, which on a busy machine many do; its clients
# then send to another queue or broker, or fail.
PATIENT = {
    "waitTimeMillsInSendQueue": 20_000,
    "waitTimeMillsInPullQueue": 20_000,
    "osPageCacheBusyTimeOutMills": 20_000,
}


@dataclass(frozen=True)
class Brokers:
    """The name server, the master, and perhaps a slave; without one, the master can be killed."""

    processes: Sequence[ChildProcess]
    address: str
    root: Path
    jars: Path
    classes: Path

    def client(self, work: Work) -> ClientProgram:
        """RocketClient.java; logs go below root."""
        flags = ["-Xms512m", "-Xmx1g", f"-Duser.home={self.root}"]
        path = f"{self.classes}:{self.jars}/*"
        command = ["java", *flags, "-cp", path, "RocketClient", self.address, *work.arguments()]
        return ClientProgram(command, read)


@dataclass(frozen=True, slots=True)
class _Broker:
    """A broker's place in its group."""

    name: str
    role: str
    number: int  # 0: the master
    port: int
    master: str = ""  # HOST:PORT that a slave copies from


def broker_port() -> int:
    """A port whose companions are free as well: nobody is given the one two below.

    Raises PeerFailed.
    """
    for _ in range(PORT_TRIES):
        given = free_ports(LINK_PORT + 2)
        for port in given:
            if port + LINK_PORT in given:
                return port
    raise PeerFailed("there are no free ports beside each other")


class RocketMq:
    """One version of it."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.name = f"rocketmq-{version.rpartition('.')[0]}"

    @property
    def _five(self) -> bool:
        return self.version.startswith("5.")

    @property
    def facts(self) -> Facts:
        """For the page."""
        replicas = (
            "replicated: SYNC_MASTER and SLAVE, inSyncReplicas 2 (with the default, 1, this "
            "version's SYNC_MASTER acknowledges without its slave)"
            if self._five
            else "replicated: SYNC_MASTER and SLAVE; every send must answer SEND_OK"
        )
        return Facts(
            title=f"RocketMQ {self.version}",
            settings=(
                "asynchronous flush (flushDiskType ASYNC_FLUSH), topics with 4 queues, heap 1 GiB; "
                "waitTimeMillsInSendQueue 10,000, so that a full queue is not refused; "
                "maxTransferCountOnMessageInMemory 1,024",
                "client: its Java client of the same version, no compression",
                "batch call: `send(Collection)` of 512 KiB in two threads",
                "one call a message: the asynchronous `send` with a callback, 512 in flight",
                replicas,
                "consumption: a push consumer that takes up to 1,024 messages a call",
            ),
            favours=(
                "for it: its client is Java, in a process with threads on both cores; its brokers "
                "work for 8 s before anything is measured, and its clients warm up 2.5 times as "
                "long as the others'",
                "against it: two JVMs on two cores, and each measurement has a fresh client. More "
                "warm-up would show more: on a busy machine, one call a message went from 4,300 "
                "to 40,500 msg/s (5.3) between 3 and 20 s of it",
                "against it: its client does not gather single messages into batches by itself",
            ),
            empty={"consume_each": "its listener is given lists"},
            processes="2 servers (name server, broker)",
            replicated_processes="3 servers",
            consumed=300_000,
            server_warm_seconds=8.0,
            warm_up=2.5,
        )

    def prepare(self) -> dict[str, str]:
        """Jars from Maven Central; the client is compiled against them. Raises Unavailable."""
        maven.compiled(CLIENT, self.jars())
        return {"rocketmq": self.version, "java": maven.java_version()}

    def jars(self) -> Path:
        """The folder with its jars. Raises Unavailable."""
        group = "org.apache.rocketmq:rocketmq-"
        artifacts = [f"{group}{module}:{self.version}" for module in MODULES]
        return maven.jars(f"rocketmq-{self.version}", artifacts)

    def servers(self, root: Path, replicated: bool) -> Brokers:
        """A name server and one broker, or two."""
        jars = self.jars()
        names, port = free_ports(1)[0], broker_port()
        address = f"127.0.0.1:{names}"
        configuration = root / "namesrv.conf"
        configuration.write_text(f"listenPort={names}\nbindAddress=127.0.0.1\n")
        words = ["-c", str(configuration)]
        processes = [server_process(root, jars, "namesrv.NamesrvStartup", words, SMALL_HEAP)]
        role = "SYNC_MASTER" if replicated else "ASYNC_MASTER"
        brokers = [_Broker("master", role, 0, port)]
        if replicated:
            link = f"127.0.0.1:{port + LINK_PORT}"
            brokers.append(_Broker("slave", "SLAVE", 1, broker_port(), link))
        for broker in brokers:
            configuration = root / f"{broker.name}.conf"
            configuration.write_text(self._properties(root, broker, address))
            words = ["-c", str(configuration), "-n", address]
            process = server_process(root, jars, "broker.BrokerStartup", words, HEAP)
            # A slave that registers before its master has topics of which nobody may write any.
            process.endpoint = f"127.0.0.1:{broker.port}"
            processes.append(process)
        return Brokers(processes, address, root, jars, maven.compiled(CLIENT, jars))

    def _properties(self, root: Path, broker: _Broker, names: str) -> str:
        store = root / broker.name
        rows = {
            "brokerClusterName": "bench",
            "brokerName": "bench",
            "brokerId": broker.number,
            "brokerRole": broker.role,
            "namesrvAddr": names,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": broker.port,
            "haListenPort": broker.port + LINK_PORT,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "flushDiskType": "ASYNC_FLUSH",
            "autoCreateTopicEnable": "true",
            "defaultTopicQueueNums": 4,
            "waitTimeMillsInSendQueue": 10_000,
            "maxTransferCountOnMessageInMemory": 1024,
            "diskMaxUsedSpaceRatio": 95,
        }
        # 5.x forgets an address of the configuration; the name server tells it the same one.
        if broker.master and not self._five:
            rows["haMasterAddress"] = broker.master
        if self._five and broker.role == "SYNC_MASTER":
            rows["inSyncReplicas"] = 2
        return "".join(f"{key}={value}\n" for key, value in rows.items())


def server_process(
    root: Path, jars: Path, main: str, words: Sequence[str], heap: Sequence[str]
) -> Server:
    """A server of RocketMQ; each has a home of its own for its logs."""
    name = Path(words[1]).stem
    home = root / f"home-{name}"
    (home / "conf").mkdir(parents=True)
    for logs in ("namesrv", "broker"):  # 4.9 does not start without
        (home / "conf" / f"logback_{logs}.xml").write_text("<configuration/>\n")
    flags = [*heap, *OPENS, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
    command = ["java", *flags, "-cp", f"{jars}/*", f"org.apache.rocketmq.{main}", *words]
    return Server(name, command, root / f"{name}.log")
