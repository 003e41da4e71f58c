"""Credentials of jobs: the user, the password or the file with it, and TLS; for many processes.

Rules: no text of it shows the password. A file is read wherever, and whenever, a client is made.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from duolog import sync
from duolog._errors import BadRequest
from duolog._login import login_of, password_in
from duolog._tls import TLS_SETTINGS, Tls, tls_in, tls_texts

_TLS_OPTIONS = dict(
    zip(TLS_SETTINGS, ("tls", "tlsCa", "tlsCert", "tlsKey", "tlsPort"), strict=True)
)
_SPELLED = {name: f"option '{option}'" for name, option in _TLS_OPTIONS.items()}
OPTIONS = ("user", "password", "passwordFile", *_TLS_OPTIONS.values())  # of Spark


@dataclass(frozen=True, slots=True)
class Caller:
    """Credentials of a caller; by default, anonymous. password_file: in place of `password`."""

    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    tls: Tls | None = None

    @staticmethod
    def of(option: Callable[[str], str]) -> "Caller":
        """Read Spark's options; one that is not given is empty. Raises BadRequest, naming one."""
        user, password, file = (option(name) for name in ("user", "password", "passwordFile"))
        if password and file:
            raise BadRequest("give one of the options 'password' and 'passwordFile'")
        if bool(user) != bool(password or file):
            raise BadRequest("option 'user' needs 'password' or 'passwordFile': give both")
        login_of(user, password or file)
        tls = tls_in({name: option(one) for name, one in _TLS_OPTIONS.items()}, _SPELLED)
        return Caller(user, password, file, tls)

    def options(self) -> dict[str, str]:
        """The same as options of Spark."""
        found = {"user": self.user, "password": self.password, "passwordFile": self.password_file}
        found |= {_TLS_OPTIONS[name]: text for name, text in tls_texts(self.tls).items()}
        return {name: value for name, value in found.items() if value}

    def with_password(self) -> "Caller":
        """Read the password from its file. Raises BadRequest."""
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
