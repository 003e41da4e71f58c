"""A test authority and its certificates: `make certs`, and the tests of TLS.

Not for production: the authority's key lies beside what it signs.
"""

import ipaddress
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 365
HERE = ("127.0.0.1", "::1", "localhost")
USAGE = "usage: python -m duolog_server.demo.certificates DIRECTORY [HOST...]"


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, in files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates into a directory.

    Attributes:
        cert: the file with its own certificate.
    """

    def __init__(self, directory: Path, name: str = "ca", days: float = DAYS) -> None:
        """Makes a new one: NAME.pem and NAME.key. days: how long it is valid, from yesterday on."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(f"duolog test authority {name}")
        self._own_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = _of(self._name, self._name, self._key.public_key(), days)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        builder = builder.add_extension(self._own_id, False)
        builder = builder.add_extension(_signs_certificates(), True)
        self.cert = directory / f"{name}.pem"
        made = builder.sign(self._key, hashes.SHA256())
        self.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        _write_key(directory / f"{name}.key", self._key)

    def issue(
        self, name: str, hosts: Sequence[str] = HERE, days: float = DAYS, file: str = ""
    ) -> Issued:
        """A certificate for both ends of a connection: FILE.pem and FILE.key.

        name: its common name. hosts: names and addresses that it stands for. days: how long it is
        valid, from yesterday on; it has expired with 0. file: the name, if empty.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _of(_named(name), self._name, key.public_key(), days)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), False)
        own = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._own_id)
        builder = builder.add_extension(own, False)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, False)
        made = builder.sign(self._key, hashes.SHA256())
        issued = Issued(*(self.directory / f"{file or name}.{end}" for end in ("pem", "key")))
        issued.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        _write_key(issued.key, key)
        return issued


def _of(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days) - timedelta(minutes=1))
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _signs_certificates() -> x509.KeyUsage:
    unused = dict.fromkeys(
        (
            *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
            *("encipher_only", "decipher_only"),
        ),
        False,
    )
    return x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **unused)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Readable by its owner only."""
    data = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def main(words: Sequence[str]) -> int:
    """Make an authority, a certificate for nodes, and one for a client that is user `alice`."""
    if not words or words[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    authority = Authority(Path(words[0]))
    node = authority.issue("node", (*HERE, *words[1:]))
    alice = authority.issue("alice", ())
    for file in (authority.cert, node.cert, node.key, alice.cert, alice.key):
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
