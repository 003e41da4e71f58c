"""Times as people read them."""

from datetime import datetime


def iso(time_ms: int | None) -> str | None:
    """A time for people; the number, where a client told one that no calendar has."""
    if not time_ms:
        return None
    try:
        found = datetime.fromtimestamp(time_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since 1970"
    return found.isoformat(timespec="milliseconds")
