"""Errors as pages: which HTTP status one has, and what it shows.

Rules: a page shows an error of duolog with its own words. Any other exception is a defect, of which
only the log has the details: they may hold what the viewer must not see.
"""

from collections.abc import Mapping, Sequence

from duolog import (
    BadRequest,
    Busy,
    DuologError,
    NoPermission,
    NoSuchMessage,
    Timeout,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
)

from duolog_server.ops.console.view.formatting import sentence, spaced, told_apart
from duolog_server.ops.console.view.visits import Shown

UNAVAILABLE = 503
TEMPLATE = "error.html"


class Defect(DuologError):
    """A page failed because of a bug."""


class TookTooLong(Timeout):
    """The nodes did not answer all that a page asks in its time."""


_STATUS: Mapping[type[DuologError], int] = {
    BadRequest: 400,
    NoPermission: 403,
    NoSuchMessage: 404,
    UnknownGroup: 404,
    UnknownTopic: 404,
    TopicExists: 409,
    Busy: UNAVAILABLE,
    Defect: 500,
}


def status_of(error: DuologError) -> int:
    """The HTTP status of an error; what nothing else is known of comes from nodes out of reach."""
    found = (status for kind, status in _STATUS.items() if isinstance(error, kind))
    return next(found, UNAVAILABLE)


def page_of(error: DuologError, endpoints: Sequence[str], again: str = "") -> Shown:
    """The page of an error. endpoints: named where the nodes may be out of reach. again: the page
    to open again; empty: none.
    """
    unavailable = status_of(error) == UNAVAILABLE
    facts = {
        "sentence": sentence(told_apart(str(error))),
        "alarm": unavailable,
        "endpoints": endpoints if unavailable else (),
        "again": again,
    }
    return Shown(TEMPLATE, spaced(type(error).__name__), facts)


def refusal(title: str, told: str, again: str = "") -> Shown:
    """An error page. again: see `page_of`."""
    return Shown(TEMPLATE, title, {"sentence": told, "endpoints": (), "again": again})
