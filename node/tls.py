"""TLS between servers: the files of one end, as credentials of gRPC."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, slots=True)
class Tls:
    """The authority that signed the other end's certificate, and our own, if it asks for one."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def of_channel(self) -> grpc.ChannelCredentials:
        """Credentials of who connects. Raises OSError where a file cannot be read."""
        key = self.key.read_bytes() if self.key else None
        cert = self.cert.read_bytes() if self.cert else None
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), key, cert)

    def of_server(self) -> grpc.ServerCredentials:
        """Credentials of a port for those whose certificate is of the same authority.

        Raises OSError if a file cannot be read.
        """
        assert self.key is not None, "a port has a certificate of its own: checked"
        assert self.cert is not None, "a port has a certificate of its own: checked"
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], self.ca.read_bytes(), require_client_auth=True)
