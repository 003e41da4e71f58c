"""The certificates of a node's client ports (gRPC, frames, remoting) and of its metrics."""

import ssl
from dataclasses import dataclass
from functools import partial

import grpc

from duolog_server.node.runtime.certificates import Pem, Renewed
from duolog_server.node.runtime.config import TlsSection
from duolog_server.node.runtime.tls import renewing_context, server_context, server_credentials

_MODES = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class _Served:
    """One state of the files: as gRPC, as frames and as remoting take them."""

    pem: Pem
    context: ssl.SSLContext
    remoting: ssl.SSLContext


def _served(mode: ssl.VerifyMode, pem: Pem) -> _Served:
    context = server_context(pem, mode)
    if mode is not ssl.CERT_NONE:
        return _Served(pem, context, context)
    return _Served(pem, context, server_context(pem, mode, ssl.TLSVersion.TLSv1_2))


class ClientTls:
    """What the ports of clients serve with: the same files on all of them."""

    def __init__(self, section: TlsSection) -> None:
        """Raises BadCertificate."""
        self._client_certs = section.client_certs
        make = partial(_served, _MODES[section.client_certs])
        self._served = Renewed(section.files, make)

    def first_port(self) -> grpc.ServerCredentials:
        """Of `node.listen`."""
        return self._credentials(require=self._client_certs == "required")

    def second_port(self) -> grpc.ServerCredentials:
        """Of `tls.listen`."""
        return self._credentials(require=self._client_certs != "none")

    def _credentials(self, *, require: bool) -> grpc.ServerCredentials:
        return server_credentials(lambda: self._served.now().pem, require=require)

    def context(self) -> ssl.SSLContext:
        """Of the ports for frames and for metrics."""
        return renewing_context(lambda: self._served.now().context)

    def remoting_context(self) -> ssl.SSLContext:
        """Of the remoting port: with TLS 1.2, too, if clients need no certificate.

        Older clients of RocketMQ 4 know nothing newer.
        """
        return renewing_context(lambda: self._served.now().remoting)
