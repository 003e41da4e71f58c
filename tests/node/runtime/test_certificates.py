"""Certificate files: what can be used, and when they are read again."""

import base64
import errno
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from duolog_server.demo.certificates import Authority, Issued
from duolog_server.node.runtime.certificates import (
    BadCertificate,
    CertificateFiles,
    Expiries,
    Pem,
    Renewed,
    read,
)

Logs = list[Any]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> CertificateFiles:
    one = authority.issue("one")
    return CertificateFiles(authority.cert, one.cert, one.key)


@pytest.fixture
def logs() -> Iterator[Logs]:
    with structlog.testing.capture_logs() as found:
        yield found


class Clock:
    """Moves by a second with every look."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


def renewed(files: CertificateFiles) -> Renewed[Pem]:
    return Renewed(files, lambda pem: pem, Clock())


def read_until(one: Issued) -> datetime:
    found = read(CertificateFiles(None, one.cert, one.key)).until
    assert found is not None
    return found


def put(files: CertificateFiles, authority: Authority, name: str) -> None:
    """Replace certificate and key by those of another name."""
    other = authority.issue(name)
    assert files.cert is not None
    assert files.key is not None
    shutil.copy(other.cert, files.cert)
    shutil.copy(other.key, files.key)


def test_files_are_read_and_checked_together(files: CertificateFiles) -> None:
    pem = read(files)
    assert pem.ca is not None
    assert pem.cert is not None
    assert pem.key is not None
    assert pem.key.decode() not in repr(pem)
    assert pem.until is not None
    assert pem.since is not None
    assert pem.invalid(pem.until - timedelta(hours=1)) == ""
    assert "expired" in pem.invalid(pem.until)
    assert "not valid before" in pem.invalid(pem.since - timedelta(hours=1))
    assert read(CertificateFiles(files.ca)).cert is None


def _encrypt(path: Path) -> None:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda files, other: files.cert.unlink(), r"cannot read .*one.pem: No such file"),
        (lambda files, other: files.ca.write_text("x"), r"ca.pem does not hold PEM certificates"),
        (lambda files, other: files.cert.write_text(""), r"one.pem does not hold PEM cert"),
        (lambda files, other: files.key.write_text("nothing"), r"one.key does not hold a PEM key"),
        (lambda files, other: _encrypt(files.key), r"one.key is encrypted"),
        (lambda files, other: shutil.copy(other.key, files.key), r"one.key is not the key of "),
    ],
)
def test_files_that_cannot_be_used_are_named(
    files: CertificateFiles, authority: Authority, spoil: Callable[..., Any], why: str
) -> None:
    spoil(files, authority.issue("two"))
    with pytest.raises(BadCertificate, match=why) as told:
        read(files)
    assert "BEGIN" not in str(told.value)
    with pytest.raises(BadCertificate, match="no file with its key"):
        read(replace(files, ca=None, cert=authority.cert, key=None))


def test_replaced_files_are_used_and_the_same_ones_are_not_made_again(
    files: CertificateFiles, authority: Authority, logs: Logs
) -> None:
    shown = renewed(files)
    first = shown.now()
    assert files.key is not None
    files.key.touch()
    assert shown.now() is first
    put(files, authority, "two")
    second = shown.now()
    assert second is not first
    assert second == read(files)
    assert shown.now() is second
    assert [line["event"] for line in logs] == ["certificates were replaced"]


def test_files_that_do_not_fit_change_nothing_and_are_told_of_once(
    files: CertificateFiles, authority: Authority, logs: Logs
) -> None:
    shown = renewed(files)
    first = shown.now()
    assert files.cert is not None
    assert files.key is not None
    other = authority.issue("two")
    whole = other.cert.read_bytes()
    files.cert.write_bytes(whole[: len(whole) // 2])  # half written
    for _ in range(3):
        assert shown.now() is first
    files.cert.write_bytes(whole)  # the key is still the old one's
    for _ in range(3):
        assert shown.now() is first
    files.key.unlink()
    assert shown.now() is first
    assert [line["event"] for line in logs] == ["new certificates cannot be used"] * 3
    files.key.write_bytes(other.key.read_bytes())
    assert shown.now() == read(files)
    assert logs[-1]["event"] == "certificates were replaced"


def test_what_cannot_be_made_of_them_leaves_the_ones_before(
    files: CertificateFiles, authority: Authority, logs: Logs
) -> None:
    made: list[Pem] = []

    def make(pem: Pem) -> Pem:
        if made:
            raise BadCertificate("no")
        made.append(pem)
        return pem

    shown = Renewed(files, make, Clock())
    put(files, authority, "two")
    assert shown.now() is made[0]
    assert shown.now() is made[0]
    assert [line["reason"] for line in logs] == ["no"]


def test_files_are_looked_at_twice_a_second_at_most(
    files: CertificateFiles, authority: Authority
) -> None:
    seconds = 0.0
    shown = Renewed(files, lambda pem: pem, lambda: seconds)
    first = shown.now()
    put(files, authority, "two")
    seconds = 0.49
    assert shown.now() is first
    seconds = 0.5
    assert shown.now() is not first


def test_an_expired_certificate_is_used_and_warned_of(authority: Authority, logs: Logs) -> None:
    old = authority.issue("old", days=0)
    shown = renewed(CertificateFiles(None, old.cert, old.key))
    assert shown.now().cert == old.cert.read_bytes()
    assert [line["event"] for line in logs] == ["a certificate is not valid now"]
    assert "expired" in logs[0]["reason"]


def test_the_certificate_that_expires_first_is_known(authority: Authority) -> None:
    long, short = authority.issue("long", days=90), authority.issue("short", days=9)
    found = Expiries(
        [
            CertificateFiles(authority.cert, long.cert, long.key),
            CertificateFiles(authority.cert),
            CertificateFiles(None, short.cert, short.key),
        ]
    )
    first = found.first()
    assert first is not None
    assert (first.file, first.until) == (short.cert, read_until(short))
    put(CertificateFiles(None, short.cert, short.key), authority, "another")  # valid for longer
    first = found.first()
    assert first is not None
    assert first.file == long.cert
    long.cert.write_bytes(b"half")  # those before stay in use
    assert found.first() == first
    assert Expiries([]).first() is None


def test_an_authority_that_expires_first_is_known_until_another_one_is_beside_it(
    authority: Authority, tmp_path: Path
) -> None:
    own, old = authority.issue("own", days=9), Authority(tmp_path / "old", days=5)
    found = Expiries([CertificateFiles(old.cert, own.cert, own.key)])
    first = found.first()
    assert first is not None
    assert first.file == old.cert
    old.cert.write_bytes(b"")  # those before stay in use
    assert found.first() == first
    old.cert.write_bytes(
        Authority(tmp_path / "old").cert.read_bytes() + authority.cert.read_bytes()
    )
    first = found.first()
    assert first is not None
    assert first.file == own.cert


def test_files_that_could_not_be_read_are_read_as_soon_as_they_can_be(
    files: CertificateFiles, authority: Authority, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that its owner is given later, or no free descriptor: it does not change by that."""
    shown = renewed(files)
    first = shown.now()
    put(files, authority, "two")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", _no_file_left)
        for _ in range(3):
            assert shown.now() is first
    assert shown.now() == read(files)
    assert [line["event"] for line in logs] == [
        "new certificates cannot be used",
        "certificates were replaced",
    ]


def _no_file_left(path: Path) -> bytes:
    raise OSError(errno.EMFILE, "Too many open files", str(path))


def test_a_certificate_of_an_unknown_version_cannot_be_used(files: CertificateFiles) -> None:
    assert files.cert is not None
    (found,) = x509.load_pem_x509_certificates(files.cert.read_bytes())
    der = found.public_bytes(serialization.Encoding.DER)
    version = b"\xa0\x03\x02\x01"
    assert version + b"\x02" in der
    odd = base64.encodebytes(der.replace(version + b"\x02", version + b"\x14", 1)).decode()
    files.cert.write_text(f"-----BEGIN CERTIFICATE-----\n{odd}-----END CERTIFICATE-----\n")
    with pytest.raises(BadCertificate, match=r"one.pem does not hold PEM certificates: .*version"):
        read(files)


def test_a_valid_certificate_is_not_given_up_for_one_that_is_not(
    files: CertificateFiles, authority: Authority, logs: Logs
) -> None:
    shown = renewed(files)
    first = shown.now()
    expired = authority.issue("expired", days=0)
    assert files.cert is not None
    assert files.key is not None
    shutil.copy(expired.cert, files.cert)
    shutil.copy(expired.key, files.key)
    for _ in range(3):
        assert shown.now() is first
    assert [line["event"] for line in logs] == ["new certificates cannot be used"]
    assert "expired at" in logs[0]["reason"]
    put(files, authority, "two")
    assert shown.now() == read(files)
