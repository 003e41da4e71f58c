"""Which nodes commands call, and as whom: flags, environment, contexts, defaults."""

import json
import os
import stat
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duolog
import pytest
import typer
from duolog._caller import Caller
from typer.testing import CliRunner

from duolog_server.ops.cli import access, main, output
from duolog_server.ops.cli.access import ConnectionSettings
from duolog_server.ops.cli.contexts import (
    Context,
    Contexts,
    contexts_file,
    load_contexts,
    save_contexts,
)

VARIABLES = (
    *("ENDPOINTS", "CONTEXT", "USER", "PASSWORD", "PASSWORD_FILE"),
    *("TLS", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_PORT"),
)
Set = Callable[[str, str], None]


@dataclass(frozen=True)
class Ran:
    """What a command printed, its exit status, and how it would have called nodes."""

    code: int
    out: str
    err: str
    access: ConnectionSettings | None


class Commands:
    """Runs `duolog`; what would call nodes is written down instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.called: list[tuple[ConnectionSettings, str]] = []
        self.failing: Exception | None = None

        def work(endpoints: str, timeout: float) -> Any:
            self.called.append((access.connection_settings(), endpoints))
            raise self.failing or typer.Exit(0)

        monkeypatch.setattr("duolog_server.ops.cli.access.client_of", work)

    def run(self, *words: str, stdin: str = "") -> Ran:
        self._patch.setattr(sys, "argv", ["duolog", *words])
        self.called.clear()
        done = CliRunner().invoke(main.app, list(words), input=stdin)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        taken = self.called[0] if self.called else (None, "")
        assert taken[0] is None or taken[0].endpoints == taken[1]
        return Ran(done.exit_code, done.stdout, done.stderr, taken[0])

    def access(self, *words: str) -> ConnectionSettings:
        """Of a command that calls nodes."""
        done = self.run("topic", "list", *words)
        assert done.access is not None, done.err
        return done.access

    def refusal(self, *words: str) -> str:
        """Of a command that is used in a wrong way."""
        done = self.run(*words)
        assert (done.code, done.out, done.access) == (2, "", None)
        return done.err


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    """Commands of a user without a configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in VARIABLES:
        monkeypatch.delenv(f"DUOLOG_{name}", raising=False)
    # Tests that only parse commands leave theirs behind.
    monkeypatch.setattr(access, "_current", ContextVar("access"))
    return Commands(monkeypatch)


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Set a variable of the environment."""
    return lambda name, value: monkeypatch.setenv(f"DUOLOG_{name}", value)


def secret(path: Path, password: str = "s3cret", end: str = "\n") -> str:
    path.write_text(password + end)
    return str(path)


def leaves(command: Any, path: str = "") -> list[tuple[str, Any]]:
    """All commands of a tree."""
    below = getattr(command, "commands", {})
    if not below:
        return [(path, command)]
    return [leaf for name, one in below.items() for leaf in leaves(one, f"{path} {name}")]


# -- the order of settings -------------------------------------------------------------------------


PROGRAMS = {"console", "group export"}  # and lines of JSON


def test_every_command_that_calls_nodes_has_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["duolog", *main.NOUNS])
    root: Any = typer.main.get_command(main.app)
    dialling = []
    for noun in main.NOUNS:
        for path, command in leaves(root.get_command(None, noun), noun):
            names = {name for param in command.params for name in param.opts}
            if "--endpoints" in names and noun != "context":
                dialling.append(path)
                assert names >= {"--context", "--user", "--password-file", "--tls-ca"}, path
                assert "--json" in names or path in PROGRAMS, path
            elif noun != "context":
                assert "--context" not in names, path
    assert {"topic list", "node check", "doctor", "pipeline replay"} <= set(dialling)
    assert {"topic create", "bench produce", "cluster elect", "msg send"} <= set(dialling)
    root = Path(main.__file__).parents[2]
    for folder in ("ops/cli", "demo/commands"):
        for file in (root / folder).glob("*.py"):
            assert ("Client(" in file.read_text()) == (file.name == "access.py"), file


def test_nothing_given_is_as_before(commands: Commands, variable: Set) -> None:
    assert commands.access() == ConnectionSettings("127.0.0.1:8081")
    variable("ENDPOINTS", "a:1")
    assert commands.access() == ConnectionSettings("a:1")
    assert commands.access("-e", "b:1") == ConnectionSettings("b:1")
    assert access.connection_settings() == ConnectionSettings()  # it ended with the command
    assert not contexts_file().exists()


def test_flag_environment_context_default(
    commands: Commands, variable: Set, tmp_path: Path
) -> None:
    file = secret(tmp_path / "one")
    add = ("context", "add", "prod", "--endpoints", "p:1", "--user", "alice")
    assert commands.run(*add, "--password-file", file).code == 0
    assert commands.access() == ConnectionSettings("127.0.0.1:8081")  # it is not in use
    assert commands.run("context", "use", "prod").code == 0
    assert commands.access() == ConnectionSettings("p:1", "alice", "s3cret", context="prod")
    assert commands.access("-e", "f:1").endpoints == "f:1"
    variable("ENDPOINTS", "e:1")
    assert commands.access() == ConnectionSettings("e:1", context="prod")
    asked = commands.access("--user", "alice")
    assert asked == ConnectionSettings("e:1", "alice", "s3cret", context="prod")
    named = commands.access("--context", "prod")  # before the environment
    assert named == ConnectionSettings("p:1", "alice", "s3cret", context="prod")
    variable("PASSWORD", "other")
    assert commands.access("--user", "alice").password == "other"
    assert commands.access("--user", "alice", "--password-file", file).password == "s3cret"
    assert "without a user" in commands.refusal("topic", "list", "--context", "")
    variable("PASSWORD", "")
    assert commands.access("--context", "") == ConnectionSettings("e:1")
    secret(tmp_path / "one", "changed", "")
    assert commands.access("--context", "prod").password == "changed"  # read each time


def test_a_password_is_for_its_own_user(commands: Commands, variable: Set, tmp_path: Path) -> None:
    file = secret(tmp_path / "one")
    commands.run("context", "add", "prod", "--user", "alice", "--password-file", file)
    commands.run("context", "use", "prod")
    assert commands.access("--user", "alice").password == "s3cret"
    assert "user 'bob' has no password" in commands.refusal("topic", "list", "--user", "bob")
    variable("USER", "bob")
    assert "user 'bob' has no password" in commands.refusal("topic", "list")
    variable("PASSWORD_FILE", secret(tmp_path / "two", "bobs"))
    assert commands.access() == ConnectionSettings("127.0.0.1:8081", "bob", "bobs", context="prod")
    variable("PASSWORD", "bobs")
    assert "not both" in commands.refusal("topic", "list")


def test_other_nodes_do_not_see_the_password_of_a_context(
    commands: Commands, variable: Set, tmp_path: Path
) -> None:
    file = tmp_path / "alice"
    file.write_text("s3cret\n")
    add = ("context", "add", "prod", "--endpoints", "p:1,p:2", "--user", "alice")
    commands.run(*add, "--password-file", str(file))
    commands.run("context", "use", "prod")
    for own in ((), ("-e", "p:2"), ("-e", "p:2, p:1")):
        assert commands.access(*own).password == "s3cret"
    assert commands.access("-e", "q:1") == ConnectionSettings("q:1", context="prod")
    assert commands.access("-e", "p:1,q:1").user == ""
    for asked in (("--user", "alice"), ("--context", "prod")):
        assert commands.access("-e", "q:1", *asked).password == "s3cret"
    variable("ENDPOINTS", "q:1")
    assert commands.access().password == ""


def test_a_context_by_variable_and_by_flag_before_the_noun(
    commands: Commands, variable: Set
) -> None:
    for name in ("one", "two", "three"):
        assert commands.run("context", "add", name, "-e", f"{name}:1").code == 0
    commands.run("context", "use", "one")
    variable("CONTEXT", "two")
    assert commands.access().endpoints == "two:1"
    done = commands.run("--context", "three", "topic", "list")
    assert done.access == ConnectionSettings("three:1", context="three")
    done = commands.run("--context", "three", "topic", "list", "--context", "one")
    assert done.access == ConnectionSettings("one:1", context="one")


def test_tls(commands: Commands, variable: Set) -> None:
    assert commands.access("--tls").tls == duolog.Tls()
    files = ("--tls-ca", "ca", "--tls-cert", "c", "--tls-key", "k", "--tls-port", "8443")
    assert commands.access(*files).tls == duolog.Tls("ca", "c", "k", 8443)
    commands.run("context", "add", "prod", "--tls")
    commands.run("context", "use", "prod")
    assert commands.access().tls == duolog.Tls()
    assert commands.access("--no-tls").tls is None
    variable("TLS", "0")
    assert commands.access().tls is None
    assert commands.access("--tls-ca", "ca").tls == duolog.Tls("ca")  # never plain by surprise
    assert "--tls-port: 'x'" in commands.refusal("topic", "list", "--tls-port", "x")
    assert "--tls-key: give both" in commands.refusal("topic", "list", "--tls-cert", "c")


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "one line"), ("\n", "one line"), ("a\nb\n", "one line"), ("\udcff", "not UTF-8")],
)
def test_a_password_file_that_has_none(
    commands: Commands, tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "one"
    file.write_bytes(text.encode(errors="surrogateescape"))
    told = commands.refusal("topic", "list", "--user", "a", "--password-file", str(file))
    assert why in told
    missing = str(tmp_path / "missing")
    told = commands.refusal("topic", "list", "--user", "a", "--password-file", missing)
    assert f"cannot read the password file {missing}" in told
    assert "without a user" in commands.refusal("topic", "list", "--password-file", secret(file))


# -- contexts --------------------------------------------------------------------------------------


def test_contexts_are_listed_shown_and_removed(commands: Commands, tmp_path: Path) -> None:
    words = ("--user", "alice", "--store-password", "--tls-ca", "ca.pem")
    done = commands.run("context", "add", "prod", "-e", "p:1,q:1", *words, stdin="s3cret\n")
    assert (done.code, done.out) == (0, "")
    commands.run("context", "add", "local")
    commands.run("context", "use", "prod")
    listed = commands.run("context", "list")
    assert listed.out.splitlines() == [
        "current\tname\tendpoints\tuser\ttls",
        "\tlocal\t127.0.0.1:8081\t\tno",
        "*\tprod\tp:1,q:1\talice\tyes",
    ]
    assert [
        row["current"] for row in json.loads(commands.run("context", "list", "--json").out)
    ] == [
        False,
        True,
    ]
    shown = json.loads(commands.run("context", "show", "--json").out)
    assert shown["password"] == "stored"
    assert shown["tls_ca"] == os.path.abspath("ca.pem")
    for line in ("list", "list --json", "show", "show prod --json"):
        assert "s3cret" not in commands.run("context", *line.split()).out
    assert commands.access().password == "s3cret"
    assert "no context is in use now" in commands.run("context", "remove", "prod").err
    assert commands.access() == ConnectionSettings("127.0.0.1:8081")
    assert "s3cret" not in contexts_file().read_text()
    assert "no context is in use" in commands.refusal("context", "show")


def test_the_file_of_contexts_is_the_users_alone_and_read_as_written(commands: Commands) -> None:
    commands.run("context", "add", "a", "--user", "u", "--store-password", stdin="s3cret\n")
    file = contexts_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.parent.iterdir()] == ["contexts.json"]
    for mode in (0o644, 0o640, 0o602):
        file.chmod(mode)
        told = commands.refusal("topic", "list", "--context", "a")
        assert f"open to other users (mode {mode:04o}): run chmod 600 {file}" in told
        assert "s3cret" not in told
    assert "open to other users" in commands.refusal("context", "list")
    file.chmod(0o600)
    commands.run("context", "remove", "a")
    commands.run("context", "add", "b")
    file.chmod(0o644)  # without a password it is no secret
    assert commands.access("--context", "b").context == "b"
    contexts = Contexts({"a": Context("a:1", "ärger", 'pä"ß', tls="on")}, "a")
    save_contexts(contexts)
    assert load_contexts() == contexts


def test_a_write_that_fails_leaves_the_file_as_it_was(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.run("context", "add", "a")
    before = contexts_file().read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    done = commands.run("context", "add", "b")
    assert (done.code, "No space left" in done.err) == (1, True)
    assert contexts_file().read_bytes() == before
    assert [path.name for path in contexts_file().parent.iterdir()] == ["contexts.json"]


def test_contexts_that_do_not_exist_or_cannot_be(commands: Commands) -> None:
    for words in (("use", "x"), ("show", "x"), ("remove", "x")):
        assert "context 'x' does not exist; no context exists" in commands.refusal(
            "context", *words
        )
    commands.run("context", "add", "a")
    told = commands.refusal("topic", "list", "--context", "b")
    assert "context 'b' does not exist; known: a" in told
    assert "context 'a' exists" in commands.refusal("context", "add", "a")
    assert commands.run("context", "add", "a", "--replace", "-e", "n:1").code == 0
    assert commands.access("--context", "a").endpoints == "n:1"
    wrong: tuple[tuple[tuple[str, ...], str], ...] = (
        (("add", "../x"), "context name"),
        (("add", "x", "-e", "nonsense"), "HOST:PORT"),
        (("add", "x", "--user", "a:b"), "no colon"),
        (("add", "x", "--password-file", "f"), "without a user"),
        (("add", "x", "--store-password"), "without a user"),
        (("add", "x", "--tls-cert", "f"), "give both"),
        (("add", "x", "--tls-port", "66000"), "--tls-port: '66000'"),
        (("add", "x", "--user", "u", "--store-password"), "stdin has no password"),
        (("add", "x", "--user", "u", "--store-password", "--password-file", "f"), "not both"),
    )
    for given, why in wrong:
        assert why in commands.refusal("context", *given)
    assert load_contexts().known.keys() == {"a"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON (line 1)"),
        ("[]", "no table of contexts"),
        ('{"contexts": []}', "no table of contexts"),
        ('{"contexts": {"a": 1}}', "context 'a' is not a table"),
        ('{"contexts": {"a": {"pasword": "s3cret"}}}', "unknown key 'pasword'"),
        ('{"contexts": {"a": {"password": ["s3cret"]}}}', "must be a string"),
    ],
)
def test_a_file_that_cannot_be_read(commands: Commands, text: str, why: str) -> None:
    contexts_file().parent.mkdir(parents=True)
    contexts_file().write_text(text)
    for told in (commands.refusal("context", "list"), commands.refusal("topic", "list")):
        assert why in told
        assert str(contexts_file()) in told
        assert "s3cret" not in told
    assert commands.access("--context", "").endpoints == "127.0.0.1:8081"


def test_a_user_without_a_home_of_its_own_has_no_contexts(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in containers."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert commands.access() == ConnectionSettings("127.0.0.1:8081")
    assert "cannot write" in commands.run("context", "add", "a").err
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert commands.access() == ConnectionSettings("127.0.0.1:8081")
    assert "set XDG_CONFIG_HOME" in commands.run("context", "add", "a").err


def test_errors_name_the_context_and_words_that_cannot_be_sent(commands: Commands) -> None:
    commands.run("context", "add", "prod", "-e", "p:1")
    commands.failing = duolog.Unavailable("p:1 does not answer")
    done = commands.run("topic", "list", "--context", "prod")
    assert done.code == 1
    assert "error: Unavailable: p:1 does not answer (context 'prod')\n" in done.err
    commands.failing = duolog.UnknownTopic("x")
    assert "prod" not in commands.run("topic", "list", "--context", "prod").err
    assert output.context_in_use.get() == ""
    commands.failing = UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")
    done = commands.run("topic", "list")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: an argument is not valid UTF-8\n")


def test_no_value_shows_a_password() -> None:
    context = Context("a:1", "alice", password="s3cret")
    for shown in (context, Contexts({"a": context}), ConnectionSettings("a:1", "alice", "s3cret")):
        assert "s3cret" not in repr(shown)
        assert "alice" in repr(shown)


def test_jobs_run_as_the_user(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[Any] = []

    def note(what: Any, *_: object) -> None:
        given.append((what.endpoints, what.caller))

    def stop(_: object, what: Any, *__: object) -> None:
        note(what)
        raise typer.Exit(0)

    def run(_: str, __: str, work: Callable[[None], None], check: Callable[[], None]) -> None:
        check()
        work(None)

    monkeypatch.setattr("duolog_server.ops.cli.pipeline.run_job", run)
    for job in ("report", "replay"):
        monkeypatch.setattr(f"duolog_server.pipeline.{job}.check", note)
        monkeypatch.setattr(f"duolog_server.pipeline.{job}.{job}", stop)
    user = ("--user", "alice", "--password-file", secret(tmp_path / "one"), "--tls-ca", "ca")
    for words in (("report", "--out", "x"), ("replay", "f", "--to", "T")):
        assert commands.run("pipeline", *words, "-e", "p:1", *user).code == 0
    caller = Caller("alice", "s3cret", tls=duolog.Tls("ca"))
    assert given == 4 * [("p:1", caller)]
    assert "s3cret" not in repr(given)
