"""A Spark session, and a node with topics, for the tests of jobs and of the data source."""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import duolog.sync
import pytest
from pyspark.sql import SparkSession

from duolog_server.pipeline.session import java_runs, task_python
from tests.conformance.conftest import SMALL
from tests.process.support import NodeProcess
from tools.spark_classes import SHORT_JOB, java_options

FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
JVM = java_options()
# How commands start Java: for jobs, for a cluster's processes, and to find out how to start those.
JAVA = {
    "SPARK_SUBMIT_OPTS": JVM,
    "SPARK_DAEMON_JAVA_OPTS": JVM,
    "SPARK_LAUNCHER_OPTS": SHORT_JOB,
}


def need_java() -> None:
    """Skip where Spark cannot run; CI may not. Commands that are run from now on start Java so."""
    if not java_runs():
        reason = "Java 17 is not installed (apt-get install openjdk-17-jre-headless)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    os.environ.update(JAVA)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    need_java()
    os.environ["PYSPARK_PYTHON"] = task_python()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    home = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.streaming.checkpointFileManagerClass", FILES)
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    made = NodeProcess(tmp_path_factory.mktemp("node") / "data", *SMALL)
    made.start()
    yield made
    assert made.stop() == 0


@pytest.fixture
def client(node: NodeProcess) -> Iterator[duolog.sync.Client]:
    with duolog.sync.Client(node.endpoint, timeout=60) as made:
        yield made


@pytest.fixture
def topic(client: duolog.sync.Client, request: pytest.FixtureRequest) -> str:
    """A topic of two queues for one test."""
    name = f"T-{abs(hash(request.node.name)) % 10**9}"
    client.admin.create_topic(name, 2)
    return name


class Place(NamedTuple):
    """Where the messages of one test are."""

    node: NodeProcess
    client: duolog.sync.Client
    topic: str


@pytest.fixture
def place(node: NodeProcess, client: duolog.sync.Client, topic: str) -> Place:
    return Place(node, client, topic)


def read(spark: SparkSession, node: NodeProcess, **options: Any) -> Any:
    """A reader with the node's address."""
    made = spark.read.format("duolog").option("endpoints", node.endpoint)
    for name, value in options.items():
        made = made.option(name, value)
    return made
