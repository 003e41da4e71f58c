"""Certificates for tests of TLS."""

import ssl
from pathlib import Path

from duolog_server.demo.certificates import Authority, Issued
from duolog_server.node.runtime.tls import Tls


def certificates(directory: Path) -> Tls:
    """An authority, and one certificate of it for both ends."""
    authority = Authority(directory)
    one = authority.issue("one")
    return Tls(authority.cert, one.cert, one.key)


def trusting(ca: Path, own: Issued | None = None) -> ssl.SSLContext:
    """Of a client that trusts an authority. own: its certificate, if it has one."""
    context = ssl.create_default_context(cafile=ca)
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return context
