"""The filter that a client of the native API requests: by tags or by SQL."""

from collections.abc import Sequence

from duolog import _errors as sdk

from duolog_server.node.filters.sqlfilter import SqlFilter
from duolog_server.node.filters.tagfilter import EVERYTHING, BadFilter, MessageFilter, TagFilter


def wanted(tags: Sequence[str], sql: str) -> MessageFilter:
    """The filter; without tags and SQL it matches everything. Raises BadRequest."""
    try:
        if tags and sql:
            raise sdk.BadRequest("filter messages by tags or by SQL, not by both")
        if sql:
            return SqlFilter.parse(sql)
        return TagFilter.of(tags) if tags else EVERYTHING
    except BadFilter as error:
        raise sdk.BadRequest(str(error)) from None
