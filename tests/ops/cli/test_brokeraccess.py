"""As whom commands call brokers of RocketMQ: flags, environment, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from duolog_server.compat.migration.program import Source
from duolog_server.compat.remoting.calling import Access, CallRefused
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.signatures import access_key_of, is_signed
from duolog_server.ops.cli import migrateafter  # noqa: F401 - it adds commands
from duolog_server.ops.cli.migrate import app
from tests.certificates import certificates

SECRET = "a secret of the test"
WORDS = ("ACCESS_KEY", "SECRET_KEY", "SECRET_KEY_FILE", "TLS", "TLS_CA", "TLS_CERT", "TLS_KEY")
Follow = Callable[..., Access]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Result, list[Source]]]:
    """Runs `duolog migrate follow`, which only notes what it would call."""
    for name in (*WORDS, "TLS_NAME", "TLS_UNVERIFIED"):
        monkeypatch.delenv(f"DUOLOG_BROKER_{name}", raising=False)
    noted: list[Source] = []

    async def follow(config: object, source: Source) -> None:
        noted.append(source)

    monkeypatch.setattr("duolog_server.compat.migration.program.follow", follow)
    monkeypatch.setattr("duolog_server.node.runtime.logs.configure_logging", lambda *how: None)

    def run(*words: str) -> tuple[Result, list[Source]]:
        noted.clear()
        return CliRunner().invoke(app, ["follow", "--broker", "b:1", *words]), noted

    return run


@pytest.fixture
def given(runs: Callable[..., tuple[Result, list[Source]]]) -> Follow:
    """The access that words come to."""

    def access(*words: str) -> Access:
        done, noted = runs(*words)
        assert done.exit_code == 0, done.output
        return noted[0].access

    return access


@pytest.fixture
def refused(runs: Callable[..., tuple[Result, list[Source]]]) -> Callable[..., str]:
    """What is said of words that do not fit; nothing is called."""

    def told(*words: str) -> str:
        done, noted = runs(*words)
        assert (done.exit_code, noted) == (2, [])
        return done.output

    return told


def _signs(access: Access, key: str, secret: str) -> bool:
    assert access.sign is not None
    request = access.sign(Command(26, 1, body=b"x"))
    return access_key_of(request) == key and is_signed(request, secret.encode())


def test_nothing_is_signed_and_nothing_encrypted_without_a_word(given: Follow) -> None:
    assert given() == Access()


def test_the_secret_key_comes_from_a_file_or_the_environment(
    given: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    words = ("--broker-access-key", "mover")
    assert _signs(given(*words, "--broker-secret-key-file", str(file)), "mover", SECRET)
    monkeypatch.setenv("DUOLOG_BROKER_SECRET_KEY", "another")
    assert _signs(given(*words), "mover", "another")
    monkeypatch.delenv("DUOLOG_BROKER_SECRET_KEY")
    monkeypatch.setenv("DUOLOG_BROKER_SECRET_KEY_FILE", str(file))
    monkeypatch.setenv("DUOLOG_BROKER_ACCESS_KEY", "of the environment")
    assert _signs(given(), "of the environment", SECRET)
    access = given(*words)
    assert _signs(access, "mover", SECRET), "the flag is first"
    assert SECRET not in repr(access)


def test_half_of_a_pair_of_keys_is_refused(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n{SECRET}\n")
    both = ("--broker-access-key", "k", "--broker-secret-key-file", str(file))
    assert "needs its secret key" in refused("--broker-access-key", "k")
    assert "must have one line, with the secret key" in refused(*both)
    assert "cannot read the secret key file" in refused(*both[:3], str(tmp_path / "none"))
    monkeypatch.setenv("DUOLOG_BROKER_SECRET_KEY", SECRET)
    assert "needs its secret key" in refused()
    told = refused(*both)
    assert "not both" in told
    assert SECRET not in told


def test_tls_is_asked_for_by_its_switch_or_any_of_its_files(given: Follow, tmp_path: Path) -> None:
    one = certificates(tmp_path)
    for words in (
        ("--broker-tls",),
        ("--broker-tls-ca", str(one.ca)),
        ("--broker-tls-name", "a.example"),
        ("--broker-tls-unverified",),
    ):
        access = given(*words)
        assert access.tls is not None
        assert access.tls().check_hostname is (words[0] != "--broker-tls-unverified")
        assert given(*words, "--no-broker-tls").tls is None
    assert given("--broker-tls-name", "a.example").tls_name == "a.example"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--broker-tls-ca", "none.pem"), "cannot read none.pem"),
        (("--broker-tls-cert", "none.pem"), "--broker-tls-cert goes with --broker-tls-key"),
        (("--broker-tls-unverified", "--broker-tls-name", "a"), "takes any certificate"),
    ],
)
def test_tls_that_cannot_be_is_refused(
    refused: Callable[..., str], words: tuple[str, ...], why: str
) -> None:
    assert why in refused(*words)


def test_every_command_that_calls_brokers_has_the_options() -> None:
    command = typer.main.get_command(app)
    having = {
        name
        for name, one in command.commands.items()  # type: ignore[attr-defined]
        if any(param.name == "broker_access_key" for param in one.params)
    }
    assert having == {"plan", "follow", "cutover", "abort", "offsets", "rollback"}


def test_a_broker_that_denies_a_call_is_answered_with_what_to_give(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def follow(config: object, source: Source) -> None:
        raise CallRefused("b:1", 1, "org.apache.rocketmq.acl.common.AclException: No accessKey")

    monkeypatch.setattr("duolog_server.compat.migration.program.follow", follow)
    monkeypatch.setattr("duolog_server.node.runtime.logs.configure_logging", lambda *how: None)
    done = CliRunner().invoke(app, ["follow", "--broker", "b:1", "--data", str(tmp_path)])
    assert done.exit_code == 1
    assert "b:1: code 1" in done.output
    assert "--broker-access-key KEY" in done.output
