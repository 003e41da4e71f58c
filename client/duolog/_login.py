"""Credentials of a client: a user with a password, sent with every call over gRPC.

Rules: the password leaves this module only inside the metadata of calls; no text, `repr` or error
shows it. Calls over frames carry nothing: the key that a node gives for them stands for the user.
"""

import base64
import unicodedata
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio

from duolog._errors import BadRequest, DuologError, NoPermission, Unauthenticated
from duolog._nodechannel import Channel

AUTHORIZATION = "authorization"


class _Metadata(grpc.aio.Metadata):
    """Metadata whose values are not shown."""

    def __repr__(self) -> str:
        return f"Metadata({AUTHORIZATION}: not shown)"


Told = Callable[[], Iterable[tuple[str, str]]]


class Login:
    """A user and the password."""

    __slots__ = ("_metadata", "_told", "user")

    def __init__(self, user: str, password: str, told: Told | None = None) -> None:
        """told: what each call tells besides, asked for at each; None: nothing.

        Raises BadRequest for a name that no user can have, or without a password.
        """
        if not user:
            raise BadRequest("a password was given without a user")
        if not password:
            raise BadRequest(f"user {user!r} was given without a password")
        if ":" in user or any(unicodedata.category(character) == "Cc" for character in user):
            raise BadRequest(f"user {user!r}: a name must have no colon and no control character")
        try:
            pair = f"{user}:{password}".encode()
        except UnicodeEncodeError:  # its text has the password
            raise BadRequest(f"user {user!r}: name and password must be valid Unicode") from None
        self.user = user
        self._metadata = _Metadata((AUTHORIZATION, "Basic " + base64.b64encode(pair).decode()))
        self._told = told

    def __repr__(self) -> str:
        return f"Login({self.user!r})"

    def over(self, channel: Channel) -> Channel:
        """A channel whose calls tell who the user is."""
        if self._told is None:
            return _Telling(channel, lambda call: partial(call, metadata=self._metadata))
        return _Telling(channel, self._telling)

    def _telling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that asks what it tells when it is made."""
        told = self._told
        assert told is not None, "checked"
        return lambda *given, **how: call(
            *given, metadata=_Metadata(*self._metadata, *told()), **how
        )


def login_of(user: str, password: str) -> Login | None:
    """None where neither is given. Raises BadRequest."""
    for name, value in (("user", user), ("password", password)):
        if value and not isinstance(value, str):  # None, as of a variable that is not set
            raise BadRequest(f"{name} must be a str, not {type(value).__name__}")
    return Login(user, password) if user or password else None


def password_in(file: str, what: str = "password") -> str:
    """The password in a file: its only line. what: its name in errors. Raises BadRequest."""
    try:
        text = Path(file).read_bytes().decode()
    except UnicodeDecodeError:  # its text has the bytes
        raise BadRequest(f"the {what} file {file} is not UTF-8") from None
    except OSError as error:
        raise BadRequest(f"cannot read the {what} file {file}: {error.strerror}") from None
    password = text.removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password:
        raise BadRequest(f"the {what} file {file} must have one line, with the {what}")
    return password


class _Telling:
    """A channel that gives metadata to every call.

    In place of interceptors, with which grpc.aio runs each call in a task of its own.
    """

    def __init__(
        self, channel: Channel, telling: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        """telling: adds the metadata to a method."""
        self._channel = channel
        self._telling = telling

    def unary_unary(self, *method: Any, **how: Any) -> Callable[..., Any]:
        """See Channel."""
        return self._telling(self._channel.unary_unary(*method, **how))

    def unary_stream(self, *method: Any, **how: Any) -> Callable[..., Any]:
        """See Channel."""
        return self._telling(self._channel.unary_stream(*method, **how))

    def stream_stream(self, *method: Any, **how: Any) -> Callable[..., Any]:
        """See Channel."""
        return self._telling(self._channel.stream_stream(*method, **how))

    async def close(self, grace: float | None) -> None:
        """See Channel."""
        await self._channel.close(grace)


def named(error: DuologError, login: Login | None) -> DuologError:
    """A node's error; one about who is calling says who that was."""
    if not isinstance(error, Unauthenticated | NoPermission):
        return error
    if login is not None:
        text = f"called as user {login.user!r}"
    elif isinstance(error, Unauthenticated):
        text = "called without a user"
    else:
        return error
    return error if text in str(error) else type(error)(f"{error} ({text})")
