"""Addresses of the console's pages: the only place where they are written.

Rules: a pattern here is both what routes match and what links are made of. A name in an address is
escaped whole, so that no name of a topic or group can lead to another page.
"""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

CLUSTER = "/"
DOCTOR = "/doctor"
TOPICS = "/topics"
TOPIC = "/topics/{topic}"
TAIL = "/topics/{topic}/tail"
MESSAGE = "/topics/{topic}/{queue}/{offset}"
GROUPS = "/groups"
GROUP = "/groups/{group}"
DEAD = "/groups/{group}/dead"
DEAD_EXPORT = "/groups/{group}/dead/export"
MESSAGES = "/messages"
SEARCH_STOP = "/messages/stop"
SEARCH_AGAIN = "/messages/again"
WAY = "/topics/{topic}/way"
DELAYED = "/waiting"
HALVES = "/waiting/half"
RIGHTS = "/rights"
AUDIT = "/audit"

TOPIC_CREATE = "/create/topic"
TOPIC_ALTER = "/topics/{topic}/alter"
TOPIC_DELETE = "/topics/{topic}/delete"
MESSAGE_SEND = "/topics/{topic}/send"
MESSAGE_AGAIN = "/topics/{topic}/{queue}/{offset}/again"
GROUP_RESET = "/groups/{group}/reset"
GROUP_DELETE = "/groups/{group}/delete"
GROUP_REDELIVER = "/groups/{group}/redeliver"
DELAYED_RECALL = "/topics/{topic}/recall"
HALF_DECIDE = "/waiting/half/{group}/{half}"
NODE_SWITCH = "/nodes/{group}/{node}/switch"
NODE_DRAIN = "/nodes/{group}/{node}/drain"
NODE_FORGET = "/nodes/{group}/{node}/forget"
NODE_UNDRAIN = "/nodes/{group}/{node}/undrain"

UNDO = "/undo"
LOGIN = "/login"
LOGOUT = "/logout"
STATIC = "/static"


class Address(str):
    """An address that remembers its pattern, and all names in it, which tell what it calls."""

    pattern: str
    names: Mapping[str, object]


def address(pattern: str, /, query: dict[str, object] | None = None, **names: object) -> Address:
    """The address of a page. names: those in its pattern. query: empty values are left out."""
    path = pattern.format(**{name: quote(str(value), safe="") for name, value in names.items()})
    asked = {name: value for name, value in (query or {}).items() if value != ""}
    made = Address(f"{path}?{urlencode(asked)}" if asked else path)
    made.pattern, made.names = pattern, {**asked, **names}
    return made


def search_of(query: Mapping[str, str]) -> str:
    """The query of a link to a search: its whole filter. It names the search, too."""
    asked = ("topic", "by", "value", "since", "until", "order", "case")
    return urlencode({name: query[name] for name in asked if name in query})


def own_path(path: str) -> str:
    """A path of the console to show after a form; the first page where it is none.

    It comes from the browser: it must not lead to another site, nor back to the login.
    """
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if plain and not path.startswith(LOGIN) else CLUSTER
