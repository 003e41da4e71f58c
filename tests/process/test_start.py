"""What nodes and commands import: a start takes as long, and an idle node keeps it in memory."""

import signal
import subprocess
import sys
from pathlib import Path

import duolog.sync
import pytest
from duolog.testing._node import ChildNode

from duolog_server.store.kernels.jit import LIBRARY
from tests.package import second_copies
from tests.process.support import ROOT, environment

pytestmark = pytest.mark.process

# Packages, or modules with all below them, that a node with its defaults has no use for.
UNUSED = (
    "click",
    "docker",
    "hypothesis",
    "duolog_server.demo",
    "duolog_server.ops.cli.cluster",
    "duolog_server.ops.cli.config",
    "duolog_server.ops.cli.group",
    "duolog_server.ops.cli.msg",
    "duolog_server.ops.cli.pipeline",
    "duolog_server.ops.cli.store",
    "duolog_server.ops.cli.topic",
    "duolog_server.node.election.etcd",
    "duolog_server.node.metrics",
    "duolog_server.node.wire.etcd_pb2",
    "duolog_server.node.wire.recovery_pb2",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pygments",
    "pyspark",
    "requests",
    "rich",
    "rocketmq.v5",
    "sim",
    "duolog_server.pipeline",
    "duolog_server.store.dump",
    "unittest",
)
COMPILER = ("numba", "llvmlite")  # where kernels come from a library


# `duolog`, and at its end the names of all modules that it imported.
TRACED = """
import atexit, pathlib, sys
target = pathlib.Path(sys.argv.pop(1))
names = lambda: [name for name, module in sys.modules.items() if module is not None]
atexit.register(lambda: target.write_text("\\n".join(names())))
from duolog_server.ops.cli.main import main
main()
"""


class Traced(ChildNode):
    """A node that writes down what it imported."""

    @property
    def trace(self) -> Path:
        """Where to."""
        return self.data.parent / "imported"

    def start(self) -> None:
        """As the command line does."""
        command = [sys.executable, "-c", TRACED, str(self.trace), "node", "start"]
        command += ["--data", str(self.data), "--listen", self.endpoint]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment(), cwd=ROOT
            )


def test_an_idle_node_imports_only_what_it_needs(tmp_path: Path) -> None:
    node = Traced(tmp_path / "data")
    node.start()
    try:
        node.wait_port()
        with duolog.sync.Client(node.endpoint, timeout=60) as client:
            client.admin.node_status()
        assert node.process is not None
        node.process.send_signal(signal.SIGHUP)  # its terminal was closed: ends it in order as well
    finally:
        assert node.stop() == 0
    imported = node.trace.read_text().splitlines()
    assert {
        "grpc.aio",
        "duolog_server.serve.server",
        "duolog_server.store.recovery",
        "structlog",
    } <= set(imported)
    assert second_copies(imported) == []
    unused = (*UNUSED, *(COMPILER if LIBRARY is not None else ()))
    found = [one for one in imported if any(f"{one}.".startswith(f"{name}.") for name in unused)]
    assert found == []


EVERY_COMMAND = """
import sys
from duolog_server.ops.cli.main import NOUNS, command_of
for noun in NOUNS:
    command_of(noun)
import duolog_server.ops.inspection.deadletters.letters
import duolog_server.ops.inspection.messages.finding
import duolog_server.ops.inspection.survey
print(*sys.modules)
"""


def test_no_command_that_calls_nodes_loads_kernels() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVERY_COMMAND], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert {"numba", "numpy", "duolog_server.store.kernels"} & set(done.stdout.split()) == set()
