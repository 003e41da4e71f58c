"""Users and rights by the command line, against a real node."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from duolog.testing._node import ChildNode

from tests.process.support import PATIENT, SMALL_FILES, refused, run_cli
from tests.until import wait_until

pytestmark = pytest.mark.process

PLAIN_ACL = """
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  topicPerms:
  - orders=PUB|SUB
- accessKey: rocketmq2
  secretKey: 87654321
  admin: true
  whiteRemoteAddress: 192.168.1.*
"""


class Place:
    """A node with users, and files with passwords."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        assert run_cli("user", "key", str(directory / "key")).returncode == 0
        (directory / "first").write_text("root:first\n")
        self.node = ChildNode(
            directory / "data",
            *SMALL_FILES,
            *("--set", f"access.key_file={directory / 'key'}"),
            *("--set", f"access.first_user_file={directory / 'first'}"),
            *("--set", "audit.topic=true"),
            log=directory / "log",
        )
        self.node.start()
        self.node.wait_port()

    def run(self, *arguments: str, user: str = "root", stdin: str = "") -> str:
        """Run a command as a user; what it prints."""
        done = self.try_(*arguments, user=user, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def try_(
        self, *arguments: str, user: str = "root", stdin: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        who = ("--user", user, "--password-file", str(self.password_file(user)))
        where = ("--endpoints", self.node.endpoint)
        return run_cli(*arguments, *who, *where, *PATIENT, stdin=stdin)

    def password_file(self, user: str) -> Path:
        return self.directory / f"{user}.password"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("users"))
    for user in ("root", "alice"):
        made.password_file(user).write_text(f"password of {user}\n")
    made.password_file("first").write_text("first\n")
    first = ("--user", "root", "--password-file", str(made.password_file("first")))
    new = ("--new-password-file", str(made.password_file("root")))
    where = ("--endpoints", made.node.endpoint, *PATIENT)
    refused = run_cli("user", "create", "alice", *new, *first, *where)
    assert refused.returncode == 1
    assert "no enabled super user" in refused.stderr
    done = run_cli("user", "create", "root", "--super", *new, *first, *where)
    assert done.returncode == 0, done.stderr
    made.run("user", "create", "alice", stdin="password of alice\n")
    yield made
    assert made.node.stop() == 0
    log = (made.directory / "log").read_text()
    assert "user created" in log
    assert not re.search("password of|12345678|87654321", log)


def test_without_a_user_nothing_is_said(place: Place) -> None:
    for command in (("topic", "list"), ("user", "list"), ("cluster", "status"), ("user", "whoami")):
        refused = run_cli(*command, "--endpoints", place.node.endpoint)
        assert refused.returncode == 1
        assert "Unauthenticated" in refused.stderr
        assert "--user NAME" in refused.stderr


def test_who_may_do_something_is_listed_and_what_was_denied_is_found(place: Place) -> None:
    place.run("acl", "grant", "alice", "Topic:parcels*", "Pub")
    who = json.loads(place.run("acl", "who", "pub", "Topic:parcels", "--json"))
    assert [(row["user"], row["entry"]) for row in who] == [
        ("alice", "Topic:parcels* Pub"),
        ("root", ""),
    ]
    assert "allowed by Custom entry" in place.run("acl", "who", "pub", "Topic:parcels")
    part = place.try_("acl", "who", "pub", "Topic:parcels", "--limit", "1")
    assert "there are more, 2 in all; the next ones: --after alice" in part.stderr
    listed = json.loads(place.run("user", "list", "--contains", "LIC", "--json"))
    assert [row["user"] for row in listed] == ["alice"]
    assert place.try_("acl", "who", "fly", "Topic:parcels").returncode == 1
    assert place.try_("acl", "who", "pub", "Topic:parcels", user="alice").returncode == 1
    words = ("audit", "--by", "alice", "--decision", "denied", "--json")
    wait_until(lambda: json.loads(place.run(*words)), "nothing waits for the audit log")
    found = json.loads(place.run(*words))
    assert {(row["user"], row["decision"]) for row in found} == {("alice", "denied")}
    page = place.try_("audit", "--limit", "1", "--action", "Access/")
    assert (page.returncode, "for older ones: --from broker-a:" in page.stderr) == (0, True)
    for wrong in (("--decision", "maybe"), ("--before", "soon"), ("--from", "x")):
        assert place.try_("audit", *wrong).returncode == 1
    assert place.try_("audit", user="alice").returncode == 1
    place.run("acl", "revoke", "alice", "Topic:parcels*", "--yes")


def test_rights_are_granted_shown_tested_and_revoked(place: Place) -> None:
    assert json.loads(place.run("user", "whoami", "--json", user="alice"))["user"] == "alice"
    place.run("topic", "create", "orders")
    denied = place.try_("msg", "send", "orders", "x", user="alice")
    assert (denied.returncode, "alice" in denied.stderr) == (1, True)
    place.run("acl", "grant", "alice", "Topic:ord*", "Pub,Sub")
    place.run("acl", "grant", "alice", "Topic:orders", "Sub", "--deny")
    place.run("msg", "send", "orders", "x", user="alice")
    tested = place.try_("acl", "test", "alice", "sub", "Topic:orders")
    assert (tested.returncode, "Topic:orders Sub" in tested.stdout) == (3, True)
    unknown = place.try_("acl", "test", "alicia", "sub", "Topic:orders")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "there is no user 'alicia'" in unknown.stderr
    unasked = place.try_("acl", "revoke", "alice", "Topic:orders")
    assert unasked.returncode == 1
    assert "try: --yes in scripts" in unasked.stderr
    tail = ("msg", "tail", "orders", "--since", "1h", "--max", "1")
    assert "denied" in place.try_(*tail, user="alice").stderr
    place.run("acl", "revoke", "alice", "Topic:orders", "--yes")
    allowed = json.loads(place.run("acl", "test", "alice", "sub", "Topic:orders", "--json"))
    assert allowed["entry"] == "Topic:ord* Pub,Sub"
    shown = place.run("acl", "show", "alice", "--json")
    place.run("acl", "set", "alice", "-", stdin=shown)
    assert place.run("acl", "show", "alice", "--json") == shown
    place.run("acl", "grant", "alice", "Topic:ord*", "Pub", "--source", "10.0.0.0/8")
    assert place.run("acl", "show", "alice").count("Topic:ord*") == 2, "for other sources as well"
    place.run("acl", "revoke", "alice", "Topic:ord*", "--yes")
    assert json.loads(place.run("acl", "show", "alice", "--json")) == {}


def test_a_user_that_is_disabled_may_do_nothing(place: Place) -> None:
    place.run("user", "alter", "alice", "--disable")
    assert "Unauthenticated" in place.try_("user", "whoami", user="alice").stderr
    place.run("user", "alter", "alice", "--enable")
    place.run("user", "whoami", user="alice")
    place.password_file("alice").write_text("password of alice, the second\n")
    assert "Unauthenticated" in place.try_("user", "whoami", user="alice").stderr
    new = place.password_file("alice")
    place.run("user", "alter", "alice", "--new-password-file", str(new), "--signs")
    assert json.loads(place.run("user", "whoami", "--json", user="alice"))["signs"]


def test_rights_of_a_user_that_does_not_exist_are_imported_not_even_in_part(place: Place) -> None:
    entry = {"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow"}
    policies = [{"policyType": "Custom", "entries": [entry]}]
    acls = [{"subject": f"User:{name}", "policies": policies} for name in ("alice", "nobody")]
    file = place.directory / "acls.json"
    file.write_text(json.dumps(acls))
    before = place.run("acl", "show", "alice", "--json")
    done = place.try_("acl", "import", str(file), "--from", "acls", "--yes")
    assert (done.returncode, done.stdout) == (1, "")
    assert "rights of users that do not exist: nobody; nothing changed" in done.stderr
    assert place.run("acl", "show", "alice", "--json") == before


def test_what_rocketmq_had_is_imported(place: Place) -> None:
    file = place.directory / "plain_acl.yml"
    file.write_text(PLAIN_ACL)
    for _ in range(2):
        done = place.try_("acl", "import", str(file), "--yes")
        assert done.returncode == 0, done.stderr
        assert "whiteRemoteAddress" in done.stderr
    users = {row["user"]: row for row in json.loads(place.run("user", "list", "--json"))}
    assert users["RocketMQ"]["signs"]
    assert (users["RocketMQ"]["type"], users["rocketmq2"]["type"]) == ("normal", "super")
    place.run("acl", "test", "RocketMQ", "Pub", "Topic:orders")
    assert place.try_("acl", "test", "RocketMQ", "Pub", "Topic:other").returncode == 3
    for user in ("RocketMQ", "rocketmq2"):
        place.run("user", "delete", user, "--yes")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("user", "create", "a:b"), "colon"),
        (("user", "create", "x" * 256), "255"),
        (("user", "create", "alice"), "exists already"),
        (("user", "create", "nopassword", "--new-password-file", "/nowhere"), "cannot read"),
        (("user", "alter", "stranger", "--disable"), "does not exist"),
        (("user", "alter", "alice", "--signs"), "needs the password"),
        (("user", "alter", "root", "--normal"), "no enabled super user"),
        (("user", "alter", "root", "--disable"), "no enabled super user"),
        (("user", "delete", "root", "--yes"), "no enabled super user"),
        (("user", "delete", "stranger", "--yes"), "no user"),
        (("acl", "show", "stranger"), "no user"),
        (("acl", "grant", "alice", "Topik:x", "Pub"), "kind of resource"),
        (("acl", "grant", "alice", "Topic:x", "Publish"), "unknown action"),
        (("acl", "grant", "alice", "Topic:x", "Pub", "--source", "10.0.0"), "10.0.0"),
        (("acl", "revoke", "alice", "Topic:none", "--yes"), "no entry"),
        (("acl", "test", "alice", "Pubb", "Topic:x"), "not one of"),
        (("acl", "test", "alice", "Pub", "x"), "Topic:NAME"),
        (("acl", "set", "alice", "/nowhere"), "cannot read"),
        (("acl", "import", "/nowhere", "--yes"), "cannot read"),
        (("acl", "import", "/nowhere", "--from", "acl3", "--yes"), "not one of"),
    ],
)
def test_what_is_wrong_is_said(place: Place, words: tuple[str, ...], said: str) -> None:
    done = place.try_(*words, stdin="a new password\n")
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_rights_that_are_no_rights_are_refused(place: Place) -> None:
    for text in ("{", "[]", '{"policies": 3}', '{"policies": [{"policyType": "New"}]}', "x" * 10):
        done = place.try_("acl", "set", "alice", "-", stdin=text)
        assert (done.returncode, "BadRequest" in done.stderr) == (1, True), done.stderr


def test_a_key_file_is_never_replaced(place: Place) -> None:
    refused(run_cli("user", "key", str(place.directory / "key")), "exists")
    assert (place.directory / "key").stat().st_mode & 0o777 == 0o600


def commands_of(heading: str) -> str:
    """The commands that docs/access.md shows below a heading."""
    page = (Path(__file__).parents[2] / "docs/access.md").read_text()
    block = page.split(f"## {heading}\n")[1].split("```console\n")[1].split("```")[0]
    lines = block.splitlines()
    assert all(line.startswith("$ ") for line in lines)
    return "\n".join(line.removeprefix("$ ") for line in lines)


def test_the_commands_for_a_lost_password_work_as_documented(tmp_path: Path) -> None:
    place = Place(tmp_path)
    shutil.copy(tmp_path / "key", tmp_path / "duolog.key")
    for name in ("lost", "first"):
        (tmp_path / f"{name}.password").write_text(f"{name}\n")
    first = ("--user", "root", "--password-file", str(place.password_file("first")))
    new = ("--new-password-file", str(place.password_file("lost")))
    made = run_cli("user", "create", "root", "--super", *new, *first, "-e", place.node.endpoint)
    assert made.returncode == 0, made.stderr
    commands = commands_of("A lost password").replace("10.0.0.1:8081", place.node.endpoint)
    home = str(tmp_path / "home")  # no context
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "XDG_CONFIG_HOME": home}
    done = subprocess.run(
        ["bash", "-ec", commands],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    recovered, listed = done.stdout.splitlines()[1], done.stdout.splitlines()[3]
    assert recovered.split("\t")[0] == "root"
    assert recovered.split("\t")[3] == "has a new password"
    user = dict(zip(done.stdout.splitlines()[2].split("\t"), listed.split("\t"), strict=True))
    assert user["type"] == "super"
    assert user["recovered"].startswith("20")
    lost = run_cli(
        *("user", "list", "--user", "root"),
        *("--password-file", str(place.password_file("lost")), "-e", place.node.endpoint),
    )
    assert "Unauthenticated" in lost.stderr
    others = run_cli("user", "key", str(tmp_path / "others.key"))
    assert others.returncode == 0
    key = ("--key-file", str(tmp_path / "others.key"))
    refused = run_cli("user", "recover", "root", *key, *new, "-e", place.node.endpoint)
    assert refused.returncode == 1
    assert "another key" in refused.stderr
    assert "without a user" not in refused.stderr
    assert "--key-file FILE" in refused.stderr
    assert place.node.stop() == 0
    assert "a super user was recovered with the key file" in (tmp_path / "log").read_text()
