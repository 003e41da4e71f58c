"""The address of a browser, also behind a proxy.

Rules: what a proxy adds is believed only where one is configured (`url`), and only where
it comes from this machine; of X-Forwarded-For, the last address is the one that the proxy has seen.
Otherwise anybody could name any address.
"""

from ipaddress import ip_address

from starlette.requests import Request

from duolog_server.node.net.networks import plain_address
from duolog_server.ops.console.http.security import is_loopback

FORWARDED = "x-forwarded-for"


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
