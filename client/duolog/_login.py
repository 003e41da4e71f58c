"""Credentials of a client: a user with a password, sent with every call over gRPC.

Rules: the password leaves this module only inside the metadata of calls; no text, `repr` or error
shows it. Calls over frames carry nothing: the key that a node gives for them stands for the user.
"""

import base64
import unicodedata
from collections.abc import Callable
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


class Login:
    """A user and the password."""

    __slots__ = ("_metadata", "user")

    def __init__(self, user: str, password: str) -> None:
        """Raises BadRequest for a name that no user can have, or without a password."""
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

    def __repr__(self) -> str:
        return f"Login({self.user!r})"

    def over(self, channel: Channel) -> Channel:
        """A channel whose calls tell who the user is."""
        return _Telling(channel, self._metadata)


def login_of(user: str, password: str) -> Login | None:
    """None where neither is given. Raises BadRequest."""
    for name, value in (("user", user), ("password", password)):
        if not isinstance(value, str):
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
    """A channel that gives the same metadata to every call.

    In place of interceptors, with which grpc.aio runs each call in a task of its own.
    """

    def __init__(self, channel: Channel, metadata: grpc.aio.Metadata) -> None:
        self._channel = channel
        self._metadata = metadata

    def unary_unary(self, *method: Any, **how: Any) -> Callable[..., Any]:
        """See Channel."""
        return partial(self._channel.unary_unary(*method, **how), metadata=self._metadata)

    def unary_stream(self, *method: Any, **how: Any) -> Callable[..., Any]:
        """See Channel."""
        return partial(self._channel.unary_stream(*method, **how), metadata=self._metadata)

    def stream_stream(self, *method: Any, **how: Any) -> Callable[..., Any]:
        """See Channel."""
        return partial(self._channel.stream_stream(*method, **how), metadata=self._metadata)

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
