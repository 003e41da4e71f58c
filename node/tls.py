"""TLS between servers: the files of one end, as credentials of gRPC."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc


@dataclass(frozen=True, slots=True)
class Tls:
    """The authority that signed the other end's certificate, and our own, if it asks for one."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def of_channel(self) -> Any:
        """Credentials of who connects. Raises OSError if a file cannot be read."""
        key, cert = self._pair()
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), key, cert)

    def of_server(self) -> Any:
        """Credentials of a port for those whose certificate is of the same authority.

        Raises OSError if a file cannot be read.
        """
        return grpc.ssl_server_credentials(
            [self._pair()], self.ca.read_bytes(), require_client_auth=True
        )

    def _pair(self) -> tuple[bytes | None, bytes | None]:
        return (
            self.key.read_bytes() if self.key else None,
            self.cert.read_bytes() if self.cert else None,
        )
