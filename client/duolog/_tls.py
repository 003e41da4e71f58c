"""TLS between a client and its nodes: which certificates are trusted, and the client's own.

Rules: a client with TLS dials with TLS only, over gRPC and over frames, whatever a node says. Both
trust the same authorities, and check the certificate against the same name.
"""

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import grpc.aio

from duolog._errors import BadRequest, DuologError, Unavailable
from duolog._forks import opening_grpc
from duolog._nodechannel import Channel
from duolog._runtime import CHANNEL_OPTIONS, Runtime

TLS_SETTINGS = ("tls", "tls_ca", "tls_cert", "tls_key", "tls_port")
SWITCH = {"true": True, "on": True, "false": False, "off": False}
_FILES = ("ca", "cert", "key")
AnyPath = str | os.PathLike[str]
_SYSTEMS = (  # files with the authorities of a system, where OpenSSL names none
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
_CLOSED = ("Socket closed", "Connection reset")  # by a node that refuses a handshake


@dataclass(frozen=True, slots=True)
class Tls:
    """How a client makes sure that it speaks to its nodes.

    Attributes:
        ca: file with the authorities of the nodes' certificates; None: the system's.
        cert, key: files with the client's own certificate chain and its key, where nodes ask for
            one.
        port: of every node's port with TLS, where that is not the one that nodes name in their
            routes; 0: it is.
    """

    ca: AnyPath | None = None
    cert: AnyPath | None = None
    key: AnyPath | None = None
    port: int = 0

    def over(self, runtime: Runtime) -> Runtime:
        """A runtime that dials with TLS. Raises BadRequest where a file cannot be used."""
        if not 0 <= self.port < 65536:
            raise BadRequest(f"the port for TLS is {self.port}; it must be 1 to 65535")
        if (self.cert is None) != (self.key is None):
            raise BadRequest("TLS needs both cert and key for a certificate of the client's own")
        authorities = _systems_authorities() if self.ca is None else _read(self.ca)
        cert, key = (None if file is None else _read(file) for file in (self.cert, self.key))
        credentials = grpc.ssl_channel_credentials(authorities, key, cert)
        dial = _dialling(credentials, self.port)
        return replace(runtime, dial=dial, tls=self._of_frames(authorities))

    def _of_frames(self, authorities: bytes | None) -> ssl.SSLContext:
        """OpenSSL's context. Raises BadRequest where a file does not hold what it should."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC does
        try:
            if authorities is not None:
                context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise BadRequest(f"TLS: {self.ca} does not hold PEM certificates: {error}") from None
        try:
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, password="")
        except (OSError, ValueError) as error:
            raise BadRequest(f"TLS: {self.cert} and {self.key} cannot be used: {error}") from None
        return context


def tls_of(tls: Tls | bool | None) -> Tls | None:
    """The TLS settings of a client: True stands for the system's authorities."""
    if isinstance(tls, Tls):
        return tls
    return Tls() if tls else None


def tls_in(settings: Mapping[str, str], spelled: Mapping[str, str]) -> Tls | None:
    """TLS as texts say it: options of Spark, flags, variables, contexts. None without it.

    A file or a port asks for TLS, unless the switch says no. settings: by the names of
    TLS_SETTINGS; what is not said is empty or not there. spelled: how its user writes each name.
    Raises BadRequest, in the user's words.
    """

    def said(name: str) -> str:
        return settings.get(name, "")

    switch, port = said("tls").lower(), said("tls_port") or "0"
    if switch and switch not in SWITCH:
        raise BadRequest(f"{spelled['tls']}: {said('tls')!r} is neither true nor false")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise BadRequest(f"{spelled['tls_port']}: {port!r} is not a port (1 to 65535)")
    files = {name: said(f"tls_{name}") for name in _FILES if said(f"tls_{name}")}
    if ("cert" in files) != ("key" in files):
        raise BadRequest(f"{spelled['tls_cert']} goes with {spelled['tls_key']}: give both")
    if not SWITCH.get(switch, bool(files) or int(port) > 0):
        return None
    return Tls(**files, port=int(port))


def tls_texts(tls: Tls | None) -> dict[str, str]:
    """The texts that `tls_in` reads as that."""
    if tls is None:
        return {}
    files = {name: getattr(tls, name) for name in _FILES}
    found = {f"tls_{name}": os.fspath(file) for name, file in files.items() if file is not None}
    port = {"tls_port": str(tls.port)} if tls.port else {}
    return {"tls": "true", **found, **port}


def explained(error: DuologError, *, secured: bool) -> DuologError:
    """An error of a call; one of a handshake that cannot succeed says what may be the reason.

    secured: whether the client uses TLS.
    """
    text = str(error)
    if not isinstance(error, Unavailable) or "failed to connect" not in text:
        return error
    if secured and "WRONG_VERSION_NUMBER" in text:
        return Unavailable(f"{text} (the port does not speak TLS)")
    if secured and "CERTIFICATE_VERIFY_FAILED" in text:
        return Unavailable(
            f"{text} (the node's certificate is not trusted: look at the CA that the client has, "
            "and at the dates of the certificate)"
        )
    if not any(word in text for word in _CLOSED):
        return error
    if secured:
        return Unavailable(
            f"{text} (the node may require a certificate of the client, or refuse the one it has)"
        )
    return Unavailable(f"{text} (the port may take TLS only)")


def _dialling(credentials: grpc.ChannelCredentials, port: int) -> Callable[[str], Channel]:
    def dial(endpoint: str) -> Channel:
        if port:
            endpoint = f"{endpoint.rpartition(':')[0]}:{port}"
        with opening_grpc():
            return grpc.aio.secure_channel(endpoint, credentials, options=CHANNEL_OPTIONS)

    return dial


def _read(file: AnyPath) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise BadRequest(f"TLS: cannot read {os.fspath(file)}: {error.strerror}") from None


def _systems_authorities() -> bytes | None:
    """None where no file has them: then gRPC uses those that it comes with."""
    for name in (ssl.get_default_verify_paths().cafile, *_SYSTEMS):
        if name and Path(name).is_file():
            return _read(name)
    return None
