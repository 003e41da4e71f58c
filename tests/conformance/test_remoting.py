"""Apache's classic Java client, of RocketMQ 4 and 5: it sends in all ways, and consumes again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duolog.sync
import pytest

from demo.ports import free_endpoint
from tests.conformance.conftest import SMALL
from tests.conformance.test_other_clients import PROGRAMS, fetch, need, outcome
from tests.process.support import NodeProcess

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(400)]

LEVELS = "1s 2s 1s 1s 1s 1s"
POM = """
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>conformance</groupId><artifactId>conformance</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-client</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


def classic(home: Path, program: str, version: str) -> list[str]:
    """The command that runs a program with a version of the client."""
    need("java", "mvn")
    copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
    (home / "pom.xml").write_text(POM.format(version=version).strip())
    fetch("mvn", "-q", copy, "-DoutputDirectory=lib", cwd=home)
    return ["java", f"-Duser.home={home}", "-cp", f"{home}/lib/*", str(PROGRAMS / program)]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where a node serves the remoting protocol."""
    listen = free_endpoint()
    more = (
        "--set", f"remoting.listen={listen}", "--set", f"store.message_delay_level={LEVELS}",
        "--set", "transactions.timeout_ms=1000", "--set", "transactions.check_interval_ms=2000",
    )  # fmt: skip
    node = NodeProcess(tmp_path / "data", *SMALL, *more)
    node.start()
    with duolog.sync.Client(node.endpoint, timeout=15) as client:
        for topic in "TRDXOB":
            client.admin.create_topic(topic, 4)
    yield listen
    assert node.stop() == 0


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_classic_client_sends_and_consumes(tmp_path: Path, address: str, version: str) -> None:
    found: dict[str, Any] = outcome(*classic(tmp_path, "Remoting.java", version), address)
    assert found["stored"] == 700, "synchronous and asynchronous sends that were confirmed"
    assert found["all"] == [1000, 1000], "each message came, and came once"
    assert found["reds"] == [500, 500, True], "a tag selects"
    assert found["attempts"] == "R0 R1 R2", "a message that failed comes again"
    assert 2000 <= found["delay_ms"] < 30_000
    assert found["refused"] == "MQClientException", "a topic that does not exist has no route"


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
