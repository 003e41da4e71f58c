"""Passwords and secrets."""

import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.node.identity.access.secrets import (
    BadKeyFile,
    Seal,
    hash_password,
    is_password,
    new_key,
    nobody,
    read_key,
)


def test_a_password_is_that_of_its_hash_alone() -> None:
    stored = hash_password("grün und blau")
    assert is_password("grün und blau", stored)
    assert not is_password("grün und Blau", stored)
    assert "grün" not in stored
    assert hash_password("grün und blau") != stored, "each has a salt of its own"
    assert not is_password("anything", nobody())


@pytest.mark.parametrize(
    "stored",
    ["", "x", "scrypt$1$2$3", "scrypt$a$8$1$AA==$AA==", "md5$16384$8$1$AA==$AA==", "$" * 5],
)
def test_what_is_no_hash_has_no_password(stored: str) -> None:
    assert not is_password("", stored)


@settings(deadline=None, max_examples=50)
@given(st.text(), st.text())
def test_a_sealed_secret_is_opened_for_its_user_alone(user: str, secret: str) -> None:
    seal = Seal(b"k" * 32)
    closed = seal.close(user, secret)
    assert seal.open(user, closed) == secret
    assert seal.open(user + "2", closed) is None
    assert Seal(b"l" * 32).open(user, closed) is None
    assert seal.close(user, secret) == closed, "whichever node makes it"
    assert seal.close(user, secret + "x")[:16] != closed[:16], "no nonce is used twice"
    assert secret == "" or len(secret) < 4 or secret not in closed


@given(st.text())
def test_what_was_not_sealed_is_not_opened(text: str) -> None:
    assert Seal(b"k" * 32).open("alice", text) is None


def test_a_key_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(new_key())
    file.chmod(0o600)
    key = read_key(file)
    assert len(key) == 32
    file.chmod(0o640)
    assert read_key(file) == key, "a group may read it, as secrets of containers are mounted"
    for mode in (0o644, 0o660, 0o604):
        file.chmod(mode)
        with pytest.raises(BadKeyFile, match="chmod 600"):
            read_key(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o604


@pytest.mark.parametrize("text", ["", "short", "QUJD", "ä" * 44, "A" * 43 + "=\nmore"])
def test_what_is_no_key_file_says_so(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(BadKeyFile, match="key"):
        read_key(file)
    with pytest.raises(BadKeyFile, match="missing"):
        read_key(tmp_path / "missing")


def test_a_password_gives_the_same_hash_in_every_replica_group() -> None:
    """So that giving it again, or in another group, ends neither connections nor tokens."""
    seal = Seal(b"k" * 32)
    stored = seal.hash_password("alice", "pw")
    assert Seal(b"k" * 32).hash_password("alice", "pw") == stored
    assert is_password("pw", stored)
    assert Seal(b"l" * 32).hash_password("alice", "pw") != stored
    assert seal.hash_password("bob", "pw") != stored
