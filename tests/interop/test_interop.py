"""The real RocketMQ 4.9.8 store opens directories that duolog wrote, and reads the same."""

import copy
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.peers import maven
from duolog_server.store import dump
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.metadata import SYSTEM_TOPIC
from duolog_server.store.osdisk import OsDisk
from tests.interop.writer import OPTIONS
from tests.support import crash, open_noisily, put_ok, read_all

# The first one fetches RocketMQ, perhaps behind others that use Maven.
pytestmark = [pytest.mark.interop]

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KEYS = ["k0", "k77", "k1500", "p3", "p49", "nothing"]
TAG_OF_DELAYED = 73359  # Java's hash of "JFK", which the writer gives delayed messages


def fetch_store(path: Path) -> "subprocess.CompletedProcess[str]":
    """Copy the jars of RocketMQ's store into a folder."""
    fetch = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={path}"]
    with maven.alone():
        return subprocess.run(fetch, cwd=HERE, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with RocketMQ's jars and the compiled driver."""
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if missing:
        reason = f"needs {', '.join(missing)}: apt-get install openjdk-17-jdk-headless maven"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("rocketmq")
    done = fetch_store(path)
    if done.returncode:
        reason = f"Maven could not fetch RocketMQ: {done.stdout[-300:]}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    compile_driver = ["javac", "-cp", f"{path}/*", "-d", str(path), str(HERE / "StoreDriver.java")]
    subprocess.run(compile_driver, check=True, capture_output=True)
    return path


def ask(rocketmq: Path, directory: Path) -> dict[str, Any]:
    """What the real store says of (a copy of) a directory."""
    command = [
        "java",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
        f"-Duser.home={directory.parent}",
        "-cp",
        f"{rocketmq}:{rocketmq}/*",
        "StoreDriver",
        str(directory),
        str(OPTIONS.mapped_file_size_commit_log),
        str(OPTIONS.mapped_file_size_consume_queue),
        str(OPTIONS.max_hash_slot_num),
        str(OPTIONS.max_index_num),
        *(f"flights#{key}" for key in KEYS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return json.loads(answer)  # type: ignore[no-any-return]


def ours(directory: Path) -> dict[str, Any]:
    """What duolog says of it."""
    queries = [("flights", key) for key in KEYS]
    return dump.dump(OsDisk(directory, read_only=True), OPTIONS, queries)


def writer(path: Path, until: int, begin: int = 0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.interop.writer", str(path), str(until), str(begin)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def filled(answer: dict[str, Any]) -> dict[str, Any]:
    """The queues that have entries."""
    return {name: queue for name, queue in answer["queues"].items() if queue["max"]}


def recovered_by_rocketmq(ours: dict[str, Any], path: Path) -> dict[str, Any]:
    """What duolog says of a killed directory, in the two points where RocketMQ recovers otherwise.

    It reads the table of delay levels after it has recovered: a delayed message whose entry it
    makes itself there has the hash of its tag in place of its time. And it cuts the log before the
    blank that ends a segment, where no later segment is there.
    """
    answer = copy.deepcopy(ours)
    for name, queue in filled(answer).items():
        topic, number = name.split("/")
        if topic == SCHEDULE_TOPIC:
            written = entries_on_disk(path / "consumequeue" / topic / number)
            for entry in queue["entries"][written:]:
                entry[2] = TAG_OF_DELAYED
    segments = sorted((path / "commitlog").iterdir())
    if answer["max_phy"] == int(segments[-1].name) + OPTIONS.mapped_file_size_commit_log:
        last = max(sum(e[:2]) for queue in filled(answer).values() for e in queue["entries"])
        answer["max_phy"] = last
    return answer


def entries_on_disk(queue: Path) -> int:
    """How many entries the files of a queue have, from its offset 0 on."""
    data = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
    sizes = [size for _, size, _ in struct.iter_unpack(">qiq", data)]
    return next((k for k, size in enumerate(sizes) if size == 0), len(sizes))


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert theirs["min_phy"] == ours["min_phy"]
    assert theirs["max_phy"] == ours["max_phy"]
    assert filled(theirs) == filled(ours)
    assert theirs["queries"] == ours["queries"]
    assert [len(query["phy"]) for query in ours["queries"]][-1] == 0
    assert all(query["phy"] for query in ours["queries"][:2])


def test_rocketmq_sees_the_same_after_a_clean_stop(rocketmq: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    process = writer(path, 6000)
    process.communicate()
    assert process.returncode == 0
    expected = ours(path)
    assert len(expected["queues"]["flights/0"]["entries"]) > 1000
    same(expected, ask(rocketmq, path))


def test_rocketmq_sees_the_same_after_sigkill(rocketmq: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    process = writer(path, 0)
    assert process.stdout is not None
    written = 0
    while written < 5000:
        written = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (path / "abort").exists()
    expected = recovered_by_rocketmq(ours(path), path)
    same(expected, ask(rocketmq, path))


def test_rocketmq_finds_the_keys_of_full_index_files_after_a_sigkill_of_a_later_run(
    rocketmq: Path, tmp_path: Path
) -> None:
    """The checkpoint vouches for them, so that RocketMQ does not throw them away.

    It reads the log again from near the end only: what it throws away is not indexed again.
    """
    path = tmp_path / "store"
    writer(path, 6000).communicate()
    time.sleep(3.5)  # RocketMQ holds 3 s back
    writer(path, 6800, 6000).communicate()
    process = writer(path, 0, 6800)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wanted = {query["key"]: query["phy"] for query in ours(path)["queries"]}
    assert len(list((path / "index").iterdir())) > 1
    found = {query["key"]: query["phy"] for query in ask(rocketmq, path)["queries"]}
    for key in ("k0", "k77", "k1500"):  # in the first file
        assert set(found[key]) >= set(wanted[key][:1]) > set()


def test_duolog_continues_a_directory_of_rocketmq(rocketmq: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    writer(path, 3000).communicate()
    theirs = ask(rocketmq, path)
    opened = open_noisily(path, OPTIONS)
    assert opened.problems == []
    assert opened.store.log.max_offset == theirs["max_phy"]
    before = len(read_all(opened.store, "flights", 0))
    put_ok(opened.store, [b"after rocketmq"], "flights", 0)
    assert len(read_all(opened.store, "flights", 0)) == before + 1
    opened.store.shutdown()
    same(ours(path), ask(rocketmq, path))
    crash(open_noisily(path, OPTIONS).store)


def test_rocketmq_reads_a_guest_as_a_queue_whose_oldest_files_are_deleted(
    rocketmq: Path, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    writer(path, 3000).communicate()
    store = open_noisily(path, OPTIONS).store
    end = store.next_offset("flights", 3)
    move: dict[str, Any] = {"topic": "flights", "move": "m"}
    opened = {"op": "open", "queue": 4, "first": 1234, **move}
    changes: list[dict[str, Any]] = [
        {"op": "seal", "queue": 3, "end": end, "group": "b", "to": 4, **move},
        {"op": "guest", "queue": 4, "group": "a", "of": 3, "from": ["a", 3], **move},
        opened,
        {"op": "guest", "queue": 5, "group": "a", "of": 2, "from": ["a", 2], **move, "move": "n"},
        {**opened, "queue": 5, "move": "n"},  # without a message, it has no file
    ]
    rows = [json.dumps(change, separators=(",", ":")).encode() for change in changes]
    put_ok(store, rows, SYSTEM_TOPIC, accepted=True)
    assert put_ok(store, [b"guest"] * 5, "flights", 4).queue_offset == 1234
    store.shutdown()
    expected, theirs = ours(path), ask(rocketmq, path)
    guest, found = (one["queues"].pop("flights/4") for one in (expected, theirs))
    assert (guest["min"], guest["max"], found["min"], found["max"]) == (1234, 1239, 1000, 1239)
    assert found["entries"] == [[0, 0x7FFFFFFF, 0]] * 234 + guest["entries"]
    same(expected, theirs)
