"""Certificates for tests of TLS, made with openssl."""

import subprocess
from pathlib import Path

from node.tls import Tls


def certificates(directory: Path) -> Tls:
    """An authority, and one certificate of it for both ends."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    new = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl("req", "-x509", *new, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *new[:3], "-subj", "/CN=etcd", "-keyout", "one.key", "-out", "one.csr")
    (directory / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext")
    openssl("x509", "-req", "-in", "one.csr", *signing, "-days", "2", "-out", "one.pem")
    return Tls(directory / "ca.pem", directory / "one.pem", directory / "one.key")
