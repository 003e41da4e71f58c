"""TLS of ports and between servers: certificate files as gRPC credentials and contexts of OpenSSL.

Every new connection gets the newest files; those that are open keep what they began with.
"""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from duolog_server.node.runtime.certificates import BadCertificate, CertificateFiles, Pem, Renewed

Options = Sequence[tuple[str, int | str]]


@dataclass(frozen=True, slots=True)
class Tls:
    """The CA of the other end's certificate, and our own certificate, if the other end requires
    one.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    @property
    def files(self) -> CertificateFiles:
        """The certificate files."""
        return CertificateFiles(self.ca, self.cert, self.key)

    def of_channel(self) -> Renewed[grpc.ChannelCredentials]:
        """Credentials of a client. Raises BadCertificate."""
        return Renewed(self.files, _of_channel)

    def context_of_channel(self) -> Renewed[ssl.SSLContext]:
        """OpenSSL's context of a client. Raises BadCertificate."""
        return Renewed(self.files, partial(client_context, verify=True))

    def context_of_server(self) -> ssl.SSLContext:
        """OpenSSL's context of a port that accepts only certificates of the same CA.

        Raises BadCertificate.
        """
        return renewing_context(Renewed(self.files, _of_members).now)

    def of_server(self) -> grpc.ServerCredentials:
        """Credentials of a port that accepts only certificates of the same CA.

        Raises BadCertificate.
        """
        return server_credentials(Renewed(self.files, _itself).now, require=True)


def _of_channel(pem: Pem) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)


def _of_members(pem: Pem) -> ssl.SSLContext:
    return server_context(pem, ssl.CERT_REQUIRED)


def _itself(pem: Pem) -> Pem:
    return pem


def server_credentials(now: Callable[[], Pem], *, require: bool) -> grpc.ServerCredentials:
    """Credentials of a port. now: called before every handshake.

    require: clients must have a certificate of the CA; otherwise they are not asked for one (gRPC
    for Python cannot ask without requiring).
    """
    used = now()

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        newest = now()
        if newest is used:
            return None
        used = newest
        return _configuration(newest, require)

    fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], newer)  # its type lacks None
    return grpc.dynamic_ssl_server_credentials(_configuration(used, require), fetch, require)


def _configuration(pem: Pem, require: bool) -> grpc.ServerCertificateConfiguration:
    assert pem.key is not None, "a port has a certificate of its own: checked"
    assert pem.cert is not None, "a port has a certificate of its own: checked"
    ca = pem.ca if require else None
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], ca)


class Peers:
    """The client ports of other nodes, as this node calls them."""

    def __init__(self, files: CertificateFiles | None = None) -> None:
        """files: None for plain ports. Raises BadCertificate."""
        self._newest = Renewed(files, _of_channel) if files is not None else None

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Another object after the files were replaced; None for plain ports."""
        return self._newest.now() if self._newest is not None else None

    def open(self, endpoint: str, options: Options = ()) -> grpc.aio.Channel:
        """A channel to a node."""
        credentials = self.credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(endpoint, options)
        return grpc.aio.secure_channel(endpoint, credentials, options)


def server_context(
    pem: Pem, mode: ssl.VerifyMode, oldest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    """OpenSSL's context of a port. mode: about the client's certificate. Raises BadCertificate.

    TLS 1.3 without tickets: a session that is resumed would skip the check of its certificate.
    oldest: version of TLS; an older one only where there is no certificate to check.
    """
    assert oldest is ssl.TLSVersion.TLSv1_3 or mode is ssl.CERT_NONE, "sessions are resumed"
    files = pem.files
    assert files.cert is not None, "a port has a certificate of its own: checked"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = oldest
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION  # of TLS 1.2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC does
    context.verify_mode = mode
    try:
        context.load_cert_chain(files.cert, files.key, password="")
        if files.ca is not None:
            context.load_verify_locations(files.ca)
    except (OSError, ValueError) as error:  # they may have changed since they were read
        raise BadCertificate(f"{files.cert} cannot be used: {error}") from None
    return context


def client_context(pem: Pem, *, verify: bool) -> ssl.SSLContext:
    """OpenSSL's context of a connection to a server, also of RocketMQ. Raises BadCertificate.

    Theirs may know nothing newer than TLS 1.2. verify: check its certificate, by the authorities in
    the files, else the system's; RocketMQ's own clients do not, unless they are configured to.
    """
    context, files = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), pem.files
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if files.ca is not None:
            context.load_verify_locations(files.ca)
        elif verify:
            context.load_default_certs()
        if files.cert is not None:
            context.load_cert_chain(files.cert, files.key, password="")
    except (OSError, ValueError) as error:  # they may have changed since they were read
        raise BadCertificate(f"{files.ca or files.cert} cannot be used: {error}") from None
    return context


def renewing_context(now: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """A context of a port that hands over to the newest one in every handshake."""
    context = now()

    def hand_over(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = now()

    context.sni_callback = hand_over
    return context


def common_name(certificate: dict[str, Any] | None) -> str:
    """The first one, as gRPC takes it; of a certificate as `ssl` gives it, empty without one."""
    for names in (certificate or {}).get("subject", ()):
        for kind, value in names:
            if kind == "commonName":
                return str(value)
    return ""
