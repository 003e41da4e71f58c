"""Certificates for tests of TLS."""

from pathlib import Path

from demo.certificates import Authority
from node.tls import Tls


def certificates(directory: Path) -> Tls:
    """An authority, and one certificate of it for both ends."""
    authority = Authority(directory)
    one = authority.issue("one")
    return Tls(authority.cert, one.cert, one.key)
