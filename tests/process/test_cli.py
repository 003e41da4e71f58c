"""The command line against a real node, with right and wrong input."""

import asyncio
import base64
import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duolog.sync
import grpc.aio
import pytest
from duolog import __version__
from duolog.testing._ports import free_endpoint

from duolog_server.compat.grpc.protocol.stubs import Resource, definition, rpc, service
from tests.process.support import (
    INDEX_ENTRIES,
    INDEX_SLOTS,
    PATIENT,
    ROOT,
    NodeProcess,
    environment,
    refused,
    run_cli,
)
from tests.protobufs import ORDER, file_of, order

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    made = NodeProcess(tmp_path_factory.mktemp("cli") / "data")
    made.start()
    run_cli("topic", "create", "base", "--endpoints", made.endpoint)
    yield made
    assert made.stop() == 0


def cli(node: NodeProcess, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    patient = () if PATIENT[0] in arguments else PATIENT
    return run_cli(*arguments, "--endpoints", node.endpoint, *patient, stdin=stdin)


def ok(node: NodeProcess, *arguments: str, stdin: str = "") -> str:
    done = cli(node, *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lines_of_stdin_are_sent_and_read_back_once_per_group(node: NodeProcess) -> None:
    ok(node, "topic", "create", "lines", "--queues", "2")
    lines = [f"line {n} ü" for n in range(30)]
    ok(node, "msg", "send", "lines", "--tags", "t", stdin="\n".join(lines) + "\n")
    out = ok(node, "msg", "get", "lines", "--group", "of-lines", "--max", "10", "--json")
    first = [json.loads(line) for line in out.splitlines()]
    assert len(first) == 10
    assert {"topic", "queue_id", "queue_offset", "body", "tags", "keys"} <= set(first[0])
    rest = ok(node, "msg", "get", "lines", "--group", "of-lines", "--max", "100").splitlines()
    assert sorted([*(message["body"] for message in first), *rest]) == sorted(lines)
    groups = {row["group"]: row for row in json.loads(ok(node, "group", "list", "--json"))}
    assert groups["of-lines"]["lag_messages"] == 0


def test_every_noun_has_json_output(node: NodeProcess) -> None:
    ok(node, "topic", "create", "j", "--queues", "1")
    sent = ok(node, "msg", "send", "j", "hello", "--key", "k1", "--json")
    unique_key = json.loads(sent)["unique_key"]
    assert json.loads(ok(node, "topic", "list", "--json"))
    (queue,) = json.loads(ok(node, "topic", "stats", "j", "--json"))
    assert queue["max_offset"] == 1
    assert queue["log_bytes"] > 80
    assert json.loads(ok(node, "topic", "alter", "j", "--queues", "2", "--json"))["queues"] == 2
    found = json.loads(ok(node, "msg", "find", "j", "--key", "k1", "--json"))
    assert (found["body"], found["unique_key"]) == ("hello", unique_key)
    assert ok(node, "msg", "find", "j", "--unique-key", unique_key) == "hello\n"
    assert ok(node, "msg", "find", "--id", found["message_id"]) == "hello\n"
    assert ok(node, "msg", "find", "j", "--since", "1h") == "hello\n"
    out = ok(node, "msg", "tail", "j", "--since", "1h", "--max", "1", "-f", "{keys}:{body}")
    assert out == "k1:hello\n"
    place = "broker-a/0/0"
    assert ok(node, "msg", "tail", "j", "--from", place, "--max", "1") == "hello\n"
    for wrong in (["--from", "0/1"], ["--from", place, "--since", "1h"]):
        assert cli(node, "msg", "tail", "j", *wrong).returncode == 1
    ok(node, "msg", "get", "j", "--group", "jg", "--max", "1")
    assert json.loads(ok(node, "group", "show", "jg", "--json"))[0]["committed"] == 1
    explained = json.loads(ok(node, "group", "explain", "jg", "--json"))
    assert (explained["members"], explained["findings"]) == (0, [])
    (topic,) = explained["topics"]
    assert (topic["topic"], topic["queues"], topic["queues_behind"]) == ("j", 2, 0)
    assert "no problems found" in ok(node, "group", "explain", "jg")
    reset = ok(node, "group", "reset", "jg", "j", "--to", "earliest", "--yes", "--json")
    assert json.loads(reset)[0]["offset"] == 0
    assert json.loads(ok(node, "node", "check", "--json"))["problems"] == []
    assert json.loads(ok(node, "cluster", "status", "--json"))[0]["role"] == "ASYNC_MASTER"
    findings = json.loads(ok(node, "doctor", "--json"))
    assert "single-node" in [finding["cause"] for finding in findings]
    assert {finding["severity"] for finding in findings} == {"note"}
    watched = ok(node, "cluster", "status", "--watch", "--interval", "0.1", "--count", "2")
    assert watched.count("ASYNC_MASTER") == 2
    assert "confirm_offset" in watched
    assert json.loads(ok(node, "topic", "delete", "j", "--yes", "--json")) == {"deleted": "j"}


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (("--role", "SLAVE"), "ha.master"),
        (("--role", "SYNC_MASTER"), "ha.listen"),
        (("--role", "KING"), "broker_role"),
        (("--ha-listen", "nowhere"), "ha.listen"),
        (("--set", "ha.in_sync_replicas=0"), "in_sync_replicas"),
    ],
)
def test_an_invalid_role_is_refused_by_name(
    tmp_path: Path, flags: tuple[str, ...], key: str
) -> None:
    refused(run_cli("node", "start", "--data", str(tmp_path / "d"), *flags), key, status=2)


def test_templates_and_json_lines_make_messages(node: NodeProcess) -> None:
    ok(node, "topic", "create", "made", "--queues", "1")
    ok(node, "msg", "send", "made", "--count", "3", "--template", "number {n}")
    ok(
        node, "msg", "send", "made", "--lines-json",
        stdin='{"body": "x", "tags": "a", "keys": "k l", "queue_id": 0}\n{"body_base64": "/w=="}\n',
    )  # fmt: skip
    out = ok(node, "msg", "get", "made", "--group", "g", "--max", "5", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [message.get("body") for message in found[:4]] == [
        "number 0",
        "number 1",
        "number 2",
        "x",
    ]
    assert found[3]["keys"] == "k l"
    assert found[4]["body_base64"] == "/w=="


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["msg", "send", "nope", "x"], "UnknownTopic", "topic create"),
        (["msg", "send", "nope"], "UnknownTopic", "topic create"),  # before it reads stdin
        (["topic", "show", "nope"], "does not exist", "topic list"),
        (["msg", "get", "nope", "--group", "g"], "UnknownTopic", "topic"),
        (["msg", "get", "base", "--group", "bad/group"], "BadRequest", "--help"),
        (["msg", "get", "base", "--group", "g", "--max", "0"], "at least 1", "--help"),
        (["topic", "create", "../x"], "BadRequest", ""),
        (["topic", "create", "x" * 128], "BadRequest", ""),
        (["topic", "create", "t", "--queues", "0"], "at least 1", "topic create"),
        (["topic", "stats", "nope"], "does not exist", "topic list"),
        (["topic", "delete", "nope", "--yes"], "UnknownTopic", "topic list"),
        (["group", "show", "nope"], "UnknownGroup", "group list"),
        (["group", "reset", "g", "base", "--to", "yesterday", "-y"], "not a time", "2026"),
        (["group", "reset", "g", "base", "--to", "offset:x", "-y"], "offset:N", "--help"),
        (["msg", "find", "base"], "give one of --key", "--key"),
        (["msg", "find", "--id", "zz"], "BadRequest", ""),
        (["msg", "send", "base", "x", "--property", "novalue"], "NAME=VALUE", "--help"),
        (["msg", "send", "base", "x", "--queue", "99"], "BadRequest", "msg send --help"),
        (["msg", "send", "base", "--count", "2", "--template", "{"], "template '{'", "{n}"),
        (["msg", "find", "base", "--since", "99999999999d"], "not a time", "2026"),
        (["group", "redeliver", "nope", "--yes"], "'nope'", "group list"),
        (["group", "export", "nope"], "'nope'", "group list"),
        (["group", "dead", "g", "--at", "7"], "REPLICA-GROUP/QUEUE/OFFSET", "group dead"),
        (["group", "reset", "g", "base", "--to", f"offset:{1 << 63}", "-y"], "offset:N", "--help"),
    ],
)
def test_errors_say_what_is_wrong_and_what_to_try(
    node: NodeProcess, arguments: list[str], error: str, hint: str
) -> None:
    done = cli(node, *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert error in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "create", "t", "--queues", "99999999999"],
        ["topic", "alter", "t", "--queues", "0"],
        ["msg", "send", "t", "x", "--queue", "99999999999"],
        ["msg", "send", "t", "x", "--delay", "inf"],
        ["msg", "find", "t", "--key", "k", "--max", "-4"],
        ["msg", "get", "t", "--group", "g", "--wait", "-1"],
        ["group", "set", "g", "--retry-times", "99999999999"],
        ["cluster", "elect", "--epoch", "-5", "--unclean"],
    ],
)
def test_a_number_out_of_range_is_refused_with_the_name_of_its_option(arguments: list[str]) -> None:
    done = run_cli(*arguments)
    assert done.returncode == 2
    option = [word for word in arguments if word.startswith("--") and word != "--unclean"][-1]
    assert f"'{option}'" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_node_is_reported_in_one_line() -> None:
    refused(
        run_cli("topic", "list", "--endpoints", free_endpoint(), "--timeout", "5"),
        "Unavailable",
        "node start",
    )
    done = run_cli("topic", "list", "--endpoints", "nonsense")
    assert "not HOST:PORT" in done.stderr


def test_a_node_without_tls_is_reported_without_lines_of_grpc(node: NodeProcess) -> None:
    done = cli(node, "topic", "list", "--tls", "--timeout", "3")
    assert done.returncode == 1
    assert "error: Unavailable" in done.stderr
    assert "ssl_transport_security" not in done.stderr


def test_help_starts_fast_and_knows_every_noun() -> None:
    done = run_cli("--help")
    nouns = "node topic msg group cluster doctor store bench pipeline config demo"
    for noun in nouns.split():
        assert noun in done.stdout
    versions = run_cli("--version").stdout.splitlines()
    assert versions[0].startswith(f"duolog {__version__} (Python 3.")
    assert "native API: duolog.v1, frames 1" in versions
    assert "RocketMQ's APIs: remoting V4_9_8, apache.rocketmq.v2" in versions
    assert run_cli("nonsense").returncode == 2


# -- config ------------------------------------------------------------------------------------


def test_the_config_comes_from_file_environment_and_flags(tmp_path: Path) -> None:
    (tmp_path / "duolog.toml").write_text('[node]\nname = "n1"\n[store]\nfile_reserved_time = 48\n')
    command = [
        sys.executable,
        "-m",
        "duolog_server.ops.cli.main",
        "config",
        "show",
        "--origin",
        "--json",
    ]
    extra = {"DUOLOG_STORE__FLUSH_DISK_TYPE": "SYNC_FLUSH", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment() | extra, check=True
    )
    rows = {row["key"]: row for row in json.loads(done.stdout)}
    assert rows["node.name"] == {"key": "node.name", "value": "n1", "origin": "duolog.toml"}
    assert rows["store.flush_disk_type"]["value"] == "SYNC_FLUSH"
    assert "DUOLOG_STORE__FLUSH_DISK_TYPE" in rows["store.flush_disk_type"]["origin"]
    assert rows["store.file_reserved_time"]["value"] == 48
    assert rows["limits.polls_max"]["origin"] == "default"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[node]\nnane = 'x'\n", "node.nane: unknown key"),
        ("[nodes]\n", "nodes: unknown key"),
        ("[store]\nflush_disk_type = 'SOMETIMES'\n", "store.flush_disk_type"),
        ("[node]\nlisten = 'nowhere'\n", "HOST:PORT"),
        ("[store]\nmapped_file_size_commit_log = 10\n", "at least 4096"),
        ("name = 'x'\n", "outside a section"),
        ("not toml", "invalid TOML"),
    ],
)
def test_a_wrong_config_file_stops_the_node_and_says_where(
    tmp_path: Path, text: str, error: str
) -> None:
    (tmp_path / "c.toml").write_text(text)
    done = run_cli(
        "node", "start", "--data", str(tmp_path / "d"), "--config", str(tmp_path / "c.toml")
    )
    assert done.returncode == 2
    assert error in done.stderr
    assert "c.toml" in done.stderr or "4096" in error
    assert not (tmp_path / "d").exists()


def test_unknown_flags_and_variables_are_errors(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "d"))
    assert "unknown key" in run_cli("node", "start", *data, "--set", "store.nope=1").stderr
    assert "SECTION.KEY" in run_cli("node", "start", *data, "--set", "nope").stderr
    done = subprocess.run(
        [sys.executable, "-m", "duolog_server.ops.cli.main", "config", "show"],
        capture_output=True, text=True, cwd=ROOT,
        env=environment() | {"DUOLOG_NODE__NOPE": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "DUOLOG_NODE__NOPE" in done.stderr


# -- starting where one cannot -----------------------------------------------------------------


def test_a_directory_of_another_node_is_refused_and_that_node_runs_on(node: NodeProcess) -> None:
    done = run_cli("node", "start", "--data", str(node.data), "--listen", free_endpoint())
    assert done.returncode == 1
    assert "held by another process" in done.stderr
    assert json.loads(ok(node, "node", "check", "--json"))["problems"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a foreign directory")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "foreign"
    data.mkdir()
    os.chown(data, pwd.getpwnam("nobody").pw_uid, -1)
    done = run_cli("node", "start", "--data", str(data), "--listen", free_endpoint())
    assert done.returncode == 1
    assert "belongs to uid" in done.stderr
    assert list(data.iterdir()) == []


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    done = run_cli("node", "start", "--data", str(path), "--listen", free_endpoint())
    assert done.returncode == 1
    assert "not a directory" in done.stderr
    assert path.read_text() == "mine"


def test_segments_of_wrong_size_are_refused_and_kept(tmp_path: Path) -> None:
    log = tmp_path / "d" / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020d}").write_bytes(b"x" * 100)
    done = run_cli("node", "start", "--data", str(tmp_path / "d"), "--listen", free_endpoint())
    assert done.returncode == 1
    assert "has 100 bytes" in done.stderr
    assert (log / f"{0:020d}").read_bytes() == b"x" * 100


def test_a_port_in_use_is_refused(node: NodeProcess, tmp_path: Path) -> None:
    done = run_cli("node", "start", "--data", str(tmp_path / "d"), "--listen", node.endpoint)
    assert done.returncode == 1
    assert "cannot listen on" in done.stderr


# -- offline -----------------------------------------------------------------------------------


def test_store_commands_read_a_directory_offline(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data")
    node.start()
    ok(node, "topic", "create", "t", "--queues", "1")
    ok(node, "msg", "send", "t", stdin="a\nb\nc\n")
    sizes = ("--index-slots", str(INDEX_SLOTS), "--index-entries", str(INDEX_ENTRIES))
    running = json.loads(run_cli("store", "dump", str(node.data), "--json", *sizes).stdout)
    assert len(running["queues"]["t/0"]["entries"]) == 3
    node.kill()
    checked = json.loads(run_cli("store", "check", str(node.data), "--json", *sizes).stdout)
    assert (checked["clean_stop"], checked["problems"]) == (False, [])
    recovered = run_cli("store", "recover", str(node.data), "--json", *sizes)
    assert json.loads(recovered.stdout)["abnormal"] is True
    checked = json.loads(run_cli("store", "check", str(node.data), "--json", *sizes).stdout)
    assert checked["clean_stop"] is True
    stats = json.loads(run_cli("store", "stats", str(node.data), "--json").stdout)
    assert stats["topics"]["t"]["messages"] == 3
    for arguments in (
        ["store", "dump", str(tmp_path / "nothing")],
        ["store", "check", str(tmp_path)],
        ["store", "dump", str(node.data), "--query", "nokey"],
        ["store", "dump", str(node.data), "--index-slots", "0"],
    ):
        done = run_cli(*arguments)
        assert done.returncode == 1, arguments
        assert "error:" in done.stderr
        assert "Traceback" not in done.stderr


async def give_up(node: NodeProcess, group_name: str, topic_name: str) -> None:
    """What a RocketMQ consumer does with a message it cannot do with."""
    async with grpc.aio.insecure_channel(node.endpoint) as channel:
        stub = rpc.MessagingServiceStub(channel)
        who = [("x-mq-client-id", "cli")]
        group, topic = Resource(name=group_name), Resource(name=topic_name)
        queue = definition.MessageQueue(topic=topic, id=-1)
        request = service.ReceiveMessageRequest(
            group=group, message_queue=queue, batch_size=32, auto_renew=True
        )
        async for reply in stub.ReceiveMessage(request, metadata=who, timeout=10):
            if reply.WhichOneof("content") == "message":
                forward = service.ForwardMessageToDeadLetterQueueRequest(
                    group=group,
                    topic=topic,
                    receipt_handle=reply.message.system_properties.receipt_handle,
                )
                await stub.ForwardMessageToDeadLetterQueue(forward, metadata=who, timeout=10)


def test_dead_letters_are_listed_and_sent_again_once(node: NodeProcess) -> None:
    ok(node, "topic", "create", "dying", "--queues", "1")
    shown = json.loads(ok(node, "group", "set", "mourners", "--retry-times", "3", "--json"))
    assert shown == {"group": "mourners", "orderly": False, "retry_times": 3}
    ok(node, "msg", "send", "dying", "letter", "--tags", "A", "--keys", "k1", "--property", "c=d")
    asyncio.run(give_up(node, "mourners", "dying"))
    (row,) = json.loads(ok(node, "group", "dead", "mourners", "--json"))
    assert (row["topic"], row["tags"], row["body"]) == ("dying", "A", "letter")
    place = row["place"]
    assert json.loads(ok(node, "group", "dead", "mourners", "--at", place, "--json")) == [row]
    for flags in ([], ["--letter", place], ["--at", place]):
        (letter,) = map(json.loads, ok(node, "group", "export", "mourners", *flags).splitlines())
        assert (letter["place"], letter["body"]) == (place, "letter")
        assert letter["properties"]["c"] == "d"
    both = ["--letter", place, "--letter", "broker-a/0/77"]
    done = cli(node, "group", "export", "mourners", *both)
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 1)
    assert done.stderr == "not exported, as no longer kept: 1 of 2 dead letters\n"
    done = cli(node, "group", "redeliver", "mourners", "--letter", "broker-a/0/77", "--yes")
    assert (done.returncode, "no longer kept" in done.stderr) == (1, True)
    again = json.loads(ok(node, "group", "redeliver", "mourners", "--yes", "--json"))
    assert again["sent_again"] == 1
    assert json.loads(ok(node, "group", "redeliver", "mourners", "--yes", "--json")) == {
        "group": "mourners", "sent_again": 0,
    }  # fmt: skip
    lines = ok(node, "msg", "get", "dying", "--group", "r", "--max", "2", "--json").splitlines()
    first, second = (json.loads(line) for line in lines)
    for row in (first, second):
        assert (row["body"], row["tags"], row["keys"]) == ("letter", "A", "k1")
        assert row["properties"]["c"] == "d"
    for verb, printed in (("dead", True), ("export", False), ("redeliver", True)):
        flags = ["--yes"] if verb == "redeliver" else []
        refused(cli(node, "group", verb, "nobody", *flags), "group 'nobody'")
        none = cli(node, "group", verb, "redelivery-of-mourners", *flags)
        assert (none.returncode, bool(none.stdout)) == (0, printed), none.stderr
        assert none.stderr == "group redelivery-of-mourners has no dead letters\n"


def test_a_message_is_sent_for_later(node: NodeProcess) -> None:
    ok(node, "topic", "create", "later", "--queues", "1")
    began = time.monotonic()
    ok(node, "msg", "send", "later", "x", "--delay", "1.5")
    while "x" not in ok(node, "msg", "get", "later", "--group", "r", "--max", "1", "--wait", "1"):
        assert time.monotonic() - began < 60
    assert time.monotonic() - began >= 1.5
    refused(cli(node, "msg", "send", "later", "x", "--delay", "999999"), "a delay of")


def test_the_way_of_a_message_is_shown_with_its_time_and_its_groups(node: NodeProcess) -> None:
    ok(node, "topic", "create", "way", "--queues", "1")
    parent = "traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    ok(node, "msg", "send", "way", "--key", "k", "--property", parent, stdin="x\n")
    ok(node, "msg", "get", "way", "--group", "readers", "--max", "1")
    shown = ok(node, "msg", "track", "way", "--key", "k").splitlines()
    assert [line.split("\t")[2] for line in shown] == ["step", "sent", "stored", "consumed"]
    assert shown[1].endswith("trace 0af7651916cd43dd8448eb211c80319c")
    assert "way/0@0" in shown[2]
    (told,) = json.loads(ok(node, "msg", "track", "way", "--key", "k", "--json"))
    assert told["groups"] == [{"group": "readers", "state": "CONSUMED", "attempts": 0}]
    for search in (["track"], ["find"], ["find", "--id", "00" * 16]):
        key = ["--key", "none"] if len(search) == 1 else []
        none = cli(node, "msg", search[0], "way", *search[1:], *key)
        assert (none.returncode, none.stderr) == (0, "nothing found\n")
    refused(cli(node, "msg", "track", "nowhere", "--key", "none"), "topic 'nowhere'")


def test_messages_are_searched_by_text_and_by_sql(node: NodeProcess) -> None:
    ok(node, "topic", "create", "searched", "--queues", "2")
    lines = [json.dumps({"body": f"Order {n}", "properties": {"n": str(n)}}) for n in range(20)]
    ok(node, "msg", "send", "searched", "--lines-json", stdin="\n".join(lines) + "\n")
    done = cli(node, "msg", "search", "searched", "--text", "order 1", "-i", "--oldest-first")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(
        ["Order 1", *(f"Order {n}" for n in range(10, 20))]
    )
    assert done.stderr == "11 found in 20 of 20 messages\n"
    out = ok(node, "msg", "search", "searched", "--sql", "n >= 18", "--json")
    assert sorted(json.loads(line)["body"] for line in out.splitlines()) == ["Order 18", "Order 19"]
    assert cli(node, "msg", "search", "searched", "--text", "order 1").stdout == ""
    done = cli(node, "msg", "search", "searched", "--text", "Order", "--max", "3")
    assert len(done.stdout.splitlines()) == 3
    for wrong in ([], ["--text", "a", "--sql", "b = 1"], ["--sql", "n >="], ["--text", "\udcff"]):
        done = cli(node, "msg", "search", "searched", *wrong)
        assert (done.returncode, done.stdout) == (1, "")
        assert "error: " in done.stderr
        assert "Traceback" not in done.stderr


def test_bodies_are_shown_as_protobuf(node: NodeProcess, tmp_path: Path) -> None:
    proto = f"{file_of(tmp_path)}:{ORDER}"
    ok(node, "topic", "create", "shop", "--queues", "1")
    body = base64.b64encode(order(id=7, card="a").SerializeToString()).decode()
    lines = [json.dumps({"body_base64": one}) for one in (body, "/w==")]
    ok(node, "msg", "send", "shop", "--lines-json", stdin="\n".join(lines) + "\n")
    shown = ['{"id": 7, "card": "a"}', "base64:/w=="]
    for words in (
        ["get", "shop", "--group", "p"],
        ["find", "shop", "--since", "1h"],
        ["tail", "shop", "--since", "1h", "--max", "2"],
    ):
        assert ok(node, "msg", *words, "--proto", proto).splitlines() == shown
    out = ok(node, "msg", "search", "shop", "--text", "a", "--json", "--proto", proto)
    assert json.loads(out)["body"] == {"id": 7, "card": "a"}
    out = ok(node, "msg", "find", "shop", "--since", "1h", "--json", "--proto", proto)
    assert "not a valid shop.Order" in json.loads(out.splitlines()[1])["body_error"]
    done = cli(node, "msg", "find", "shop", "--since", "1h", "--proto", f"{tmp_path}/none:T")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: --proto {tmp_path}/none:T: cannot read")


def test_a_message_is_sent_again(node: NodeProcess) -> None:
    ok(node, "topic", "create", "resent", "--queues", "2")
    line = {"body_base64": "/w==", "keys": "a b", "tags": "t", "properties": {"n": "1"}}
    ok(node, "msg", "send", "resent", "--lines-json", "--queue", "1", stdin=json.dumps(line))
    sent = json.loads(ok(node, "msg", "resend", "resent", "1", "0", "--json"))
    assert (sent["queue_id"], sent["queue_offset"]) == (1, 1)
    out = ok(node, "msg", "find", "resent", "--since", "1h", "--json")
    first, copy = (json.loads(one) for one in out.splitlines())
    same = ("body_base64", "keys", "tags", "properties")
    assert [first[name] for name in same] == [copy[name] for name in same]
    assert copy["unique_key"] == sent["unique_key"] != first["unique_key"]
    ok(node, "msg", "resend", "resent", "1", "0", "--to-queue", "0", "--delay", "600")
    for words in (["resent", "1", "9"], ["none", "0", "0"], ["%DLQ%g", "0", "0"]):
        done = cli(node, "msg", "resend", *words)
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")


def test_what_waits_is_listed_and_recalled(node: NodeProcess) -> None:
    ok(node, "topic", "create", "someday", "--queues", "1")
    ok(node, "msg", "send", "someday", "x", "--delay", "86400", "--keys", "k")
    began, rows = time.monotonic(), list[dict[str, object]]()
    while not rows:
        assert time.monotonic() - began < 60
        rows = json.loads(ok(node, "msg", "delayed", "someday", "--json"))["messages"]
    (row,) = rows
    assert (row["topic"], row["keys"], row["level"], row["size"]) == ("someday", "k", 0, 1)
    assert str(row["place"]) in ok(node, "msg", "delayed", "someday")
    place, key = str(row["place"]), str(row["unique_key"])
    ok(node, "msg", "recall", "someday", place, key, "--yes")
    refused(cli(node, "msg", "recall", "someday", place, key, "--yes"), "NoSuchMessage")
    assert json.loads(ok(node, "msg", "delayed", "someday", "--json"))["messages"] == []
    refused(cli(node, "msg", "recall", "someday", "7", key, "--yes"), "REPLICA-GROUP/QUEUE/OFFSET")


def test_half_messages_are_listed_and_decided_on(node: NodeProcess) -> None:
    ok(node, "topic", "create", "halves", "--queues", "1")
    with (
        duolog.sync.Client(node.endpoint, timeout=30) as client,
        client.transactions("payers", lambda message: None, immunity=3600) as transactions,
    ):
        for _ in range(2):
            transactions.prepare("halves", b"x")
    began, rows = time.monotonic(), list[dict[str, object]]()
    while len(rows) < 2:
        assert time.monotonic() - began < 60
        rows = json.loads(ok(node, "msg", "half", "halves", "--json"))["messages"]
    first, second = (str(row["place"]) for row in rows)
    assert first in ok(node, "msg", "half", "halves")
    refused(cli(node, "msg", "decide", "payers", first, "--yes"), "--rollback")
    done = cli(node, "msg", "decide", "others", first, "--commit", "--yes")
    assert (done.returncode, "another producer group" in done.stderr) == (1, True)
    ok(node, "msg", "decide", "payers", first, "--commit", "--yes")
    ok(node, "msg", "decide", "payers", second, "--rollback", "--yes")
    assert json.loads(ok(node, "msg", "half", "halves", "--json"))["messages"] == []
    assert ok(node, "msg", "get", "halves", "--group", "r", "--max", "2", "--wait", "1") == "x\n"
