"""As whom jobs call nodes: the user, the password or the file with it, and TLS; for many processes.

Rules: no text of it shows the password. A file is read wherever, and whenever, a client is made.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from duolog import sync
from duolog._errors import BadRequest
from duolog._login import login_of, password_in
from duolog._tls import Tls

_TLS_OPTIONS = {"tlsCa": "ca", "tlsCert": "cert", "tlsKey": "key"}
OPTIONS = ("user", "password", "passwordFile", "tls", *_TLS_OPTIONS, "tlsPort")  # of Spark


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls; nobody, if nothing is given. password_file: read in place of `password`."""

    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    tls: Tls | None = None

    @staticmethod
    def of(option: Callable[[str], str]) -> "Caller":
        """As Spark's options say; one that is not given is empty. Raises BadRequest, naming one."""
        user, password, file = (option(name) for name in ("user", "password", "passwordFile"))
        if password and file:
            raise BadRequest("give one of the options 'password' and 'passwordFile'")
        if bool(user) != bool(password or file):
            raise BadRequest("option 'user' goes with 'password' or 'passwordFile': give both")
        login_of(user, password or file)
        return Caller(user, password, file, _tls_of(option))

    def options(self) -> dict[str, str]:
        """The same as options of Spark."""
        tls = self.tls
        found = {"user": self.user, "password": self.password, "passwordFile": self.password_file}
        if tls is not None:
            files = {name: getattr(tls, field) for name, field in _TLS_OPTIONS.items()}
            found |= {name: os.fspath(file) for name, file in files.items() if file is not None}
            found |= {"tls": "true", "tlsPort": str(tls.port) if tls.port else ""}
        return {name: value for name, value in found.items() if value}

    def with_password(self) -> "Caller":
        """With what the file has now. Raises BadRequest."""
        if not self.password_file:
            return self
        return replace(self, password=password_in(self.password_file), password_file="")

    def client(self, endpoints: str, timeout: float) -> sync.Client:
        """A client that calls as this. Raises BadRequest."""
        known = self.with_password()
        return sync.Client(
            endpoints, user=known.user, password=known.password, tls=known.tls, timeout=timeout
        )


NOBODY = Caller()


def _tls_of(option: Callable[[str], str]) -> Tls | None:
    """None without TLS; a file or a port ask for it."""
    files = {field: option(name) for name, field in _TLS_OPTIONS.items() if option(name)}
    wanted, port = option("tls").lower(), option("tlsPort") or "0"
    if wanted not in ("", "true", "false"):
        raise BadRequest(f"option 'tls': {wanted!r} is neither true nor false")
    if not port.isdecimal() or int(port) > 65535:
        raise BadRequest(f"option 'tlsPort': {port!r} is not a port")
    if wanted == "false" or not (wanted or files or int(port)):
        return None
    if ("cert" in files) != ("key" in files):
        raise BadRequest("option 'tlsCert' goes with 'tlsKey': give both")
    return Tls(**files, port=int(port))


__all__ = ["NOBODY", "OPTIONS", "Caller"]
