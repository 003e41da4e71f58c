"""How a consumer takes part in its group: what it wants of its topics, and its pace."""

from collections.abc import Sequence
from dataclasses import dataclass

from duolog._errors import BadRequest
from duolog._start import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """Settings shared by all replica groups: see `Client.consumer`.

    commit_interval: seconds between commits. session: seconds of silence after which the group goes
    on without the consumer. timeout: seconds of one call. begun: topics that the group reads in
    another replica group already: it begins at their first messages.
    """

    group: str
    tags: Sequence[str] = ()
    sql: str = ""
    start: Start = Start.EARLIEST
    commit_interval: float = 5.0
    session: float = 10.0
    timeout: float = 10.0
    begun: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Raise BadRequest for a start that is none, no group, or two filters."""
        if self.tags and self.sql:
            raise BadRequest("filter messages by tags or by SQL, not by both")
        if not isinstance(self.start, Start):
            raise BadRequest(f"start must be Start.EARLIEST or Start.LATEST, not {self.start!r}")
        if not self.group:
            raise BadRequest("a consumer needs a group")


__all__ = ["Consumption"]
