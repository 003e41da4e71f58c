"""Security checks of every request to the console, and headers of every answer.

Rules: a page runs only scripts of the console itself, and none that a message, a topic's name or a
tag could bring; no other site may show it in a frame, or load it in any way but by a link that is
followed; a request that changes something comes from a page of the console. On loopback the
console is asked for by a name of loopback: any other name is one that some site chose, to reach it
from its own pages (DNS rebinding). Behind a proxy `url` lists the origins under which browsers see
it: then it answers to these alone, and no header of a proxy says which they are.

What a proxy adds is believed only where one is configured (`url`), and only where it comes from
this machine; of X-Forwarded-For, the last address is the one that the proxy has seen. Otherwise
anybody could name any address. A form that is too long, broken off or not a form has no fields, and
the page that asked says what is missing.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.requests import ClientDisconnect, Request

from duolog_server.node.net.networks import plain_address
from duolog_server.node.runtime.origins import BadOrigin, origin_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
READING = ("GET", "HEAD")
CROSS_SITE = "cross-site"
OTHERS = (CROSS_SITE, "same-site")  # a site has all ports of its host
LINK = ("navigate", "document")
FORWARDED = "x-forwarded-for"
FIELDS_MAX = 32
# The address of the browser whose request runs in this task; empty: not known.
VIEWER: ContextVar[str] = ContextVar("duolog_console_viewer", default="")


class Protected:
    """An ASGI application whose requests are checked, and whose answers have the headers above."""

    def __init__(self, app: App, *, loopback_only: bool, origins: Sequence[str] = ()) -> None:
        """loopback_only: it listens on loopback, so only loopback's names are its own. origins:
        see Settings.
        """
        self._app = app
        self._origins = frozenset(origins)
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def secured(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        VIEWER.set(address_of(Request(scope), proxied=bool(self._origins)))
        wrong = self._wrong(scope)
        if wrong:
            await _refuse(wrong, secured)
        else:
            await self._app(scope, receive, secured)

    def _wrong(self, scope: Scope) -> str:
        """Why a request is refused; empty: it is not."""
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        host = headers.get("host", "")
        if {"content-length", "transfer-encoding"} <= headers.keys():
            # A proxy may have gone by the other one.
            return "The request has both Content-Length and Transfer-Encoding."
        if self._origins:
            return self._wrong_behind_proxy(scope["method"], headers)
        name = _host_of(host)
        if not name:
            return "The request names no valid host."
        if self._loopback_only and not is_loopback(name):
            return f"This console answers only to names of loopback, not to {name}."
        return _not_own(scope["method"], headers, {f"{scope['scheme']}://{host}"})

    def _wrong_behind_proxy(self, method: str, headers: Mapping[str, str]) -> str:
        host = headers.get("host", "")
        if not any(_origin(origin, host) in self._origins for origin in self._origins):
            return "This console answers only to the names in its `url`: see the proxy's Host."
        return _not_own(method, headers, self._origins)


def _origin(like: str, host: str) -> str:
    """The origin of a Host header, with the scheme of another one; empty where it is not valid."""
    try:
        return "" if set(host) & set("/,?#@") else origin_of(f"{like.partition(':')[0]}://{host}")
    except BadOrigin:
        return ""


def _not_own(method: str, headers: Mapping[str, str], own: Collection[str]) -> str:
    """Why what another site asks for is refused; empty: a page of these origins asks, or a viewer
    who follows a link.
    """
    site = headers.get("sec-fetch-site", "")  # old browsers, and those over plain HTTP, say nothing
    if method not in READING:
        origin = headers.get("origin", "")
        found = origin in own if origin else site == "same-origin"
        return "" if found else "The request does not come from a page of this console."
    followed = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == LINK
    return "" if site not in OTHERS or followed else "Other sites can link to this console only."


def is_loopback(host: str) -> bool:
    """Whether a name or address reaches its own machine only."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(host: str) -> str:
    """The name in a Host header; empty where it is not valid."""
    try:
        found = urlsplit(f"//{host}")
        plain = found.path == found.query == found.fragment == "" and found.username is None
        _ = found.port  # raises ValueError
        return found.hostname or "" if plain else ""
    except ValueError:
        return ""


async def _refuse(why: str, send: Send) -> None:
    body = f"{why}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def address_of(request: Request, *, proxied: bool) -> str:
    """The address that a request comes from; empty where it is not known."""
    peer = plain_address(request.client.host) if request.client is not None else ""
    if not proxied or not is_loopback(peer):
        return peer
    named = ",".join(request.headers.getlist(FORWARDED)).rpartition(",")[2].strip()
    try:
        return str(ip_address(named))
    except ValueError:
        return peer


async def fields_of(request: Request, most: int) -> dict[str, str]:
    """The fields of a request's form. most: bytes that it may have."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                return {}
    except ClientDisconnect:
        return {}
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in fields.items()}
