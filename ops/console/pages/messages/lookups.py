"""Lookups of messages, and a viewer's query for one of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from duolog import BadRequest

from duolog_server.ops.console.view.formatting import command
from duolog_server.ops.console.view.places import time_ms
from duolog_server.ops.inspection.searching.terms import Terms

KEY, UNIQUE_KEY, MESSAGE_ID, OFFSET, TIME = "key", "unique_key", "id", "offset", "time"
TEXT, SQL = "text", "sql"
NEWEST, OLDEST = "newest", "oldest"
EXACT, ANY = "exact", "any"
SINCE = "1h"


@dataclass(frozen=True, slots=True)
class Way:
    """A kind of lookup. example, hint: of the value that it takes. searches: it reads all
    messages of a range of time.
    """

    name: str
    example: str
    hint: str
    searches: bool = False


WAYS = {
    KEY: Way("key", "order-1007", "A key that the producer gave the message."),
    UNIQUE_KEY: Way(
        "unique key",
        "7F0000010007D4B5…",
        "The id that the producer's SDK gave the message: 32 characters, as a receipt shows it.",
    ),
    MESSAGE_ID: Way(
        "message id",
        "7F00000100001F910000…",
        "The id that the node gave the message: 32 characters. It needs no topic.",
    ),
    OFFSET: Way(
        "queue and offset",
        "3/8812",
        "QUEUE/OFFSET: messages of that queue from there on. REPLICA-GROUP/QUEUE/OFFSET where "
        "several replica groups have the topic.",
    ),
    TIME: Way(
        "time",
        "2h",
        "Messages stored since then: 10m, 2h or 3d ago, or 2026-01-31T12:00 in the console's time "
        "zone. Empty: the first messages.",
    ),
    TEXT: Way(
        "text",
        "duck",
        "A part of a body, a key, a tag or a user property. All messages from one time to another "
        "are read: 10m, 2h, 3d ago, or 2026-01-31T12:00; empty: from the first, until now.",
        searches=True,
    ),
    SQL: Way(
        "SQL",
        "age > 18 AND TAGS = 'new'",
        "An SQL92 expression over properties, as consumers filter by. All messages from one time "
        "to another are read: 10m, 2h, 3d ago, or 2026-01-31T12:00; empty: from the first, until "
        "now.",
        searches=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A query of a viewer. since, until, order, case: of the ways that search."""

    topic: str = ""
    by: str = KEY
    value: str = ""
    since: str = SINCE
    until: str = ""
    order: str = NEWEST
    case: str = EXACT

    @staticmethod
    def of(query: Mapping[str, str]) -> "Wanted":
        """Parse a form or a link. Raises BadRequest."""
        found = Wanted(
            query.get("topic", "").strip(),
            query.get("by", KEY),
            query.get("value", "").strip(),
            query.get("since", SINCE).strip(),
            query.get("until", "").strip(),
            query.get("order", NEWEST),
            query.get("case", EXACT),
        )
        if found.by not in WAYS:
            raise BadRequest(f"messages are not found by {found.by!r}")
        if found.order not in (NEWEST, OLDEST) or found.case not in (EXACT, ANY):
            raise BadRequest("messages are searched newest or oldest first, in exact or any case")
        return found

    @property
    def searches(self) -> bool:
        """Whether it reads all messages of a range of time."""
        return WAYS[self.by].searches

    @property
    def terms(self) -> Terms:
        """The terms of the search, from now on. Raises BadRequest."""
        return Terms(
            self.topic,
            text=self.value if self.by == TEXT else "",
            sql=self.value if self.by == SQL else "",
            any_case=self.case == ANY,
            begin_ms=time_ms(self.since),
            end_ms=time_ms(self.until),
            newest_first=self.order == NEWEST,
        )

    @property
    def command(self) -> str:
        """The same from the command line; empty where there is none."""
        if not self.value:
            return ""
        topic = [self.topic] if self.topic else []
        if self.searches:
            return command("msg", "search", names=topic, flags=self._flags())
        option = {KEY: "--key", UNIQUE_KEY: "--unique-key", MESSAGE_ID: "--id", TIME: "--since"}
        if self.by not in option:
            return ""
        return command("msg", "find", names=topic, flags=[option[self.by], self.value])

    def _flags(self) -> list[str]:
        flags = [f"--{self.by}", self.value, "--since", self.since or "0"]
        flags += ["--until", self.until] if self.until else []
        flags += ["--ignore-case"] if self.case == ANY and self.by == TEXT else []
        return [*flags, "--oldest-first"] if self.order == OLDEST else flags
