"""TLS between servers: certificate files as gRPC credentials."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, slots=True)
class Tls:
    """The CA of the other end's certificate, and our own certificate, if the other end requires
    one.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def of_channel(self) -> grpc.ChannelCredentials:
        """Credentials of a client. Raises OSError if a file cannot be read."""
        key = self.key.read_bytes() if self.key else None
        cert = self.cert.read_bytes() if self.cert else None
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), key, cert)

    def of_server(self) -> grpc.ServerCredentials:
        """Credentials of a port that accepts only certificates of the same CA.

        Raises OSError if a file cannot be read.
        """
        assert self.key is not None, "a port has a certificate of its own: checked"
        assert self.cert is not None, "a port has a certificate of its own: checked"
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], self.ca.read_bytes(), require_client_auth=True)
