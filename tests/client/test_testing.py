"""Nodes and clusters for the tests of users: `duolog.testing`, and its pytest plugin."""

import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import duolog.sync
import pytest
import pytest_duolog
from duolog.testing import ChildError, Cluster, Node, ServerMissing, _forks, _server
from duolog.testing._forks import NODES

from tests import documented
from tests.process.forks import ROOT, environment
from tests.until import wait_until

RUN_SECONDS = 300
# Tests of a user: these run in a pytest of their own, with two workers.
ISOLATION = """
import duolog.sync
import pytest

@pytest.mark.parametrize("number", range(3))
def test_each_begins_anew(duolog_node, number):
    with duolog.sync.Client(duolog_node.endpoint) as client:
        assert client.admin.topics() == [] and client.admin.groups() == []
        client.admin.create_topic("orders", 1)
        with client.producer() as producer:
            assert producer.send("orders", b"1").queue_offset == 0
    (duolog_node.kill, duolog_node.pause, duolog_node.stop)[number]()

def test_that_fails(duolog_node):
    assert "the reason" == ""
"""
# One for each of two workers.
WORKER = """
import os
import time
from pathlib import Path

def test_of_a_worker(duolog_node):
    Path(os.environ["PYTEST_XDIST_WORKER"]).write_text(duolog_node.endpoint)
    while len(list(Path().glob("gw*"))) < 2:  # both nodes run at the same time
        time.sleep(0.02)
"""
# A child that it forks has its files, leaves its `with`, and outlives it.
OUTLIVED = """
import os, time
from duolog.testing import ChildError, Node

with Node() as node:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            Node().start()
        except ChildError as error:
            node.close()
            os.write(writes, type(error).__name__.encode())
        time.sleep(600)
    print(node.pid, child, os.read(reads, 100).decode(), node.running, flush=True)
    time.sleep(600)
"""
PLAIN = ("-q", "-p", "no:cacheprovider", "--junitxml", "results.xml")


@pytest.fixture(scope="module")
def user_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A user's tests, and the blocks of pages as such: their directory, and what was printed.

    In a session within this process, where nodes are forked.
    """
    directory = tmp_path_factory.mktemp("user")
    (directory / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function")
    (directory / "test_isolation.py").write_text(ISOLATION)
    for number, block in enumerate(blocks()):
        (directory / f"test_block_{number}.py").write_text(block)
    ours = (
        "--capture=sys",
        "--import-mode=importlib",
        "-p",
        "no:faulthandler",
        "-p",
        "no:timeout",
    )
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.chdir(directory)
        pytest.main([*PLAIN, *ours, str(directory)])
    assert (directory / "results.xml").exists(), printed.getvalue()
    return directory, printed.getvalue()


def blocks() -> list[str]:
    """Those that are tests."""
    pages = (ROOT / "docs" / name for name in ("testing.md", "tutorial.md"))
    found = [block.text for page in pages for block in documented.blocks(page, "python")]
    return [text for text in found if "def test_" in text]


def results(directory: Path, module: str) -> dict[str, bool]:
    """Whether each test of the modules passed, by its name."""
    return {
        f"{case.get('classname')}.{case.get('name')}": len(case) == 0
        for case in ElementTree.parse(directory / "results.xml").iter("testcase")
        if str(case.get("classname")).startswith(module)
    }


def test_the_code_of_the_pages_runs(user_run: tuple[Path, str]) -> None:
    directory, printed = user_run
    found = results(directory, "test_block")
    assert len(found) == sum(block.count("def test_") for block in blocks()) > 4
    assert all(found.values()), printed


def test_each_test_gets_an_empty_node_whatever_the_one_before_did(
    user_run: tuple[Path, str],
) -> None:
    directory, printed = user_run
    found = results(directory, "test_isolation")
    assert list(found.values()) == [True, True, True, False], printed


def test_a_test_that_fails_shows_the_log_of_its_node(
    user_run: tuple[Path, str],
) -> None:
    _, printed = user_run
    section = printed.partition("log of the duolog node")[2]
    assert "ready" in section


def test_nothing_of_a_session_is_left(user_run: tuple[Path, str]) -> None:
    assert user_run[0].exists()
    assert left() == []


def test_each_worker_of_xdist_has_a_node_of_its_own(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"test_worker_{number}.py").write_text(WORKER)
    plugins = ("-p", "xdist", "-p", "pytest_duolog")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *plugins,
            "-n",
            "2",
            "--dist",
            "loadfile",
            *PLAIN,
        ],
        cwd=tmp_path,
        env={
            **environment(),
            "TMPDIR": str(tmp_path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    found = results(tmp_path, "test_worker")
    assert list(found.values()) == [True, True], done.stdout + done.stderr
    first, second = (path.read_text() for path in tmp_path.glob("gw?"))
    assert first != second
    assert not listens(first)
    assert not listens(second)
    assert directories(tmp_path) == []


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    (found,) = importlib.metadata.entry_points(group="pytest11", name="duolog")
    assert found.load() is pytest_duolog
    assert found.dist is not None
    assert found.dist.name == "pytest-duolog", "pytest rewrites all modules of that distribution"


def test_the_plugin_loads_nothing_before_it_is_used() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import pytest_duolog; "
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "['pytest_duolog']"


def listens(endpoint: str) -> bool:
    """Whether a node answers there."""
    try:
        with duolog.sync.Client(endpoint, timeout=1) as client:
            client.admin.node_status()
    except duolog.DuologError:
        return False
    return True


def directories(place: Path) -> list[Path]:
    return list(place.glob("duolog-*"))


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Nodes of a test leave no directory."""
    yield
    assert left() == []


def left() -> list[Path]:
    return [path for path in NODES._root.iterdir() if path.is_dir()]


async def test_a_node_keeps_its_data_until_it_is_closed(nothing_left: None) -> None:
    async with Node() as node, duolog.Client(node.endpoint) as client:
        directory = node.data.parent
        assert directory.exists()
        await client.admin.create_topic("T", 1)
        node.stop()
        with pytest.raises(ChildError, match="node node is not running"):
            node.kill()
        with pytest.raises(ChildError, match="node node is not running"):
            node.skip(1)
        node.start()
        with pytest.raises(ChildError, match="node node is running already"):
            node.start()
        assert [topic.topic for topic in await client.admin.topics()] == ["T"]
    assert not node.running
    assert not directory.exists()
    with Node() as other:
        assert other.endpoint != node.endpoint
        other.close()
        other.start()
        assert listens(other.endpoint)


def test_a_node_that_does_not_start_shows_its_log_and_leaves_nothing(
    nothing_left: None,
) -> None:
    node = Node({"node.durability": "x"})
    with pytest.raises(ChildError, match=r"node\.durability") as caught, node:
        pass
    assert isinstance(caught.value, duolog.DuologError)


def test_a_node_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OUTLIVED],
        stdout=subprocess.PIPE,
        env={**environment(), "TMPDIR": str(tmp_path)},
        cwd=ROOT,
    ) as parent:
        assert parent.stdout is not None
        node, child, *refused = parent.stdout.readline().split()
        (directory,) = directories(tmp_path)
        parent.kill()
    try:
        assert refused == [b"ChildError", b"True"], "a child starts no node, and ends none"
        wait_until(lambda: not Path(f"/proc/{int(node)}").exists(), "the node ends")
        wait_until(lambda: not directory.exists(), "its directory is removed")
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_a_missing_server_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for make in (Node, Cluster):
        with pytest.raises(ServerMissing, match="pip install duolog-server"):
            make()
    command = tmp_path / "tool" / "bin" / "duolog"
    command.parent.mkdir(parents=True)
    command.touch()
    link = tmp_path / "duolog"
    link.symlink_to(command)
    monkeypatch.setattr(shutil, "which", lambda name: str(link))
    with pytest.raises(ServerMissing, match="no Python interpreter beside it"):
        Node()
    command.with_name("python3").touch()
    assert _server.server_python() == str(command.with_name("python3"))


def test_a_nodes_clocks_are_put_forward_and_stay_so_when_it_is_started_again(
    nothing_left: None,
) -> None:
    node = Node()
    with pytest.raises(ChildError, match="node node is not running"):
        node.skip(1)
    with node, duolog.sync.Client(node.endpoint) as client:
        client.admin.create_topic("T", 1)
        with client.producer() as producer:
            producer.send("T", b"1", delay=7200)
            node.skip(7000)
            node.kill()
            node.start()
            assert client.pull("T", 0, 0).count == 0
            node.skip(300)
            (message,) = client.pull("T", 0, 0, wait=20)
            assert message.body == b"1"
            assert producer.send("T", b"2").store_time_ms > time.time_ns() // 1_000_000 + 7_200_000
        with pytest.raises(duolog.BadRequest, match="seconds is -1"):
            node.skip(-1)


def test_a_paused_master_is_replaced_and_follows_when_it_is_resumed(
    nothing_left: None,
) -> None:
    with (
        Cluster(3) as cluster,
        duolog.sync.Client(cluster.endpoints, timeout=60) as client,
    ):
        client.admin.create_topic("T", 1)
        first = cluster.master()
        first.pause()
        with client.producer() as producer:
            producer.send("T", b"1")
        second = cluster.master()
        assert second is not first
        assert cluster.switch(second) is second
        with pytest.raises(duolog.BadRequest, match=f"{first.name} cannot lead"):
            cluster.switch(first)
        first.resume()
        cluster.settle()
        second = cluster.master()
        assert cluster.switch() is not second
    assert not any(node.running for node in cluster.nodes)


def test_a_cluster_that_cannot_do_what_it_is_asked_says_so(nothing_left: None) -> None:
    with pytest.raises(duolog.BadRequest, match="nodes is 1"):
        Cluster(1)
    with pytest.raises(duolog.BadRequest, match="settings is 'x'"):
        Node("x")  # type: ignore[arg-type]
    with pytest.raises(duolog.BadRequest, match="settings is 'x'"):
        Cluster(2, "x")  # type: ignore[arg-type]
    with pytest.raises(duolog.BadRequest, match=r"name is '\.\./x'"):
        Node(name="../x")
    cluster = Cluster(2, {"node.durability": "x"})
    with pytest.raises(ChildError, match="exited during startup"), cluster:
        pass
    with pytest.raises(ChildError, match="no node of the cluster is running"):
        cluster.master()
    with Cluster(2) as cluster:
        with pytest.raises(ChildError, match="node n1 is running already"):
            cluster.start()
        cluster.master()
        cluster._registry.kill()
        with pytest.raises(ChildError, match=r"no node leads within 60 s: the registry has ended"):
            cluster.master()


def test_nodes_end_with_the_process_that_forks_them_and_the_next_one_gets_another() -> None:
    with Node() as node:
        nursery = NODES._nursery
        assert nursery is not None
        nursery.kill()
        assert node.process is not None
        node.process.wait(60)
        assert not node.running
    with Node() as node:
        assert listens(node.endpoint)


def test_nodes_start_where_the_extra_rocketmq_is_not_installed(tmp_path: Path) -> None:
    hides = 'import sys; sys.modules["rocketmq"] = None'
    (tmp_path / "sitecustomize.py").write_text(hides)
    forks = _forks.Forks(PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    try:
        log = forks.directory() / "node.log"
        assert forks.start(["node", "start", "--help"], log).wait(RUN_SECONDS) == 0
        assert "--listen" in log.read_text()
    finally:
        forks.close()


def test_a_server_that_cannot_be_loaded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_forks, "NURSERY", "duolog_server.no_such_module")
    forks = _forks.Forks()
    with pytest.raises(ChildError, match=r"No module named duolog_server\.no_such"):
        forks.start(["node", "start"], forks.directory() / "node.log")
    root = forks._root
    forks.close()
    assert not root.exists()
