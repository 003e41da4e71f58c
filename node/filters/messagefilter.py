"""The filter that a native client asks for: by tags or by SQL."""

from collections.abc import Sequence

from duolog import _errors as sdk

from node.filters.sqlfilter import SqlFilter
from node.filters.tagfilter import EVERYTHING, BadFilter, MessageFilter, TagFilter


def wanted(tags: Sequence[str], sql: str) -> MessageFilter:
    """Everything where both are empty. Raises BadRequest."""
    try:
        if tags and sql:
            raise sdk.BadRequest("filter messages by tags or by SQL, not by both")
        if sql:
            return SqlFilter.parse(sql)
        return TagFilter.of(tags) if tags else EVERYTHING
    except BadFilter as error:
        raise sdk.BadRequest(str(error)) from None
