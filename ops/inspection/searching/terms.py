"""Terms of a search, and its progress."""

from dataclasses import dataclass
from enum import StrEnum

from duolog import BadRequest

TEXT_CHARACTERS_MAX = 1024
RESULTS, RESULTS_MAX = 200, 10_000
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a search. Either text or sql is given.

    text: part of a body, of a key or tag, or of a user property; any_case: in any case.
    sql: an SQL92 expression over properties, which nodes evaluate. begin_ms, end_ms: messages that
    were stored from then until then; 0: from the first, until now. newest_first: from the end
    towards the beginning. results_max: it ends when so many are found. seconds: that it may take.
    """

    topic: str
    text: str = ""
    sql: str = ""
    any_case: bool = False
    begin_ms: int = 0
    end_ms: int = 0
    newest_first: bool = True
    results_max: int = RESULTS
    seconds: float = SECONDS

    def check(self) -> None:
        """Raise BadRequest for terms that nothing can be searched by."""
        if not self.topic:
            raise BadRequest("name the topic to search")
        if bool(self.text) == bool(self.sql):
            raise BadRequest("search by a text or by SQL, not by both")
        if len(self.text) > TEXT_CHARACTERS_MAX:
            raise BadRequest(
                f"the text has {len(self.text)} characters; the limit is {TEXT_CHARACTERS_MAX}"
            )
        if self.end_ms and self.end_ms < self.begin_ms:
            raise BadRequest("the search would end before it begins: exchange the two times")
        if not 1 <= self.results_max <= RESULTS_MAX:
            raise BadRequest(
                f"a search finds 1 to {RESULTS_MAX} messages at most, not {self.results_max}"
            )


class End(StrEnum):
    """Why a search is over."""

    WHOLE = "whole"  # all of the range was read
    ENOUGH = "enough"  # as many were found as were asked for
    LATE = "late"  # its time was up
    STOPPED = "stopped"  # its caller ended it


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is.

    scanned, total: messages that were looked at, and that the range has. at_ms: all up to this
    time were looked at, in the search's direction; 0: not known yet. end: None while it runs.
    """

    scanned: int = 0
    total: int = 0
    at_ms: int = 0
    end: End | None = None
