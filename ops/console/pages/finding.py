"""Messages are found by their key, their id, their place, their time, or what is in them.

Rules: a search belongs to the session that began it, and continues between requests for its page.
It ends when nobody looks any more. Its link holds the whole filter; another session that opens the
link searches by itself. What is kept of one that is over is shown while its viewer may read the
topic.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from duolog import (
    BadRequest,
    DuologError,
    Message,
    NoPermission,
    NoSuchMessage,
    Unauthenticated,
)
from duolog.wire import duolog_pb2 as wire

from duolog_server.ops.console.pages.lists import REFUSED, refused
from duolog_server.ops.console.pages.messages import Row, message_row
from duolog_server.ops.console.searches import UNSEEN_SECONDS, Running
from duolog_server.ops.console.view.addresses import MESSAGES, SEARCH_AGAIN, SEARCH_STOP, search_of
from duolog_server.ops.console.view.formatting import (
    command,
    counted,
    duration,
    number,
    sentence,
)
from duolog_server.ops.console.view.inputs import queue_place, time_ms
from duolog_server.ops.console.view.questions import Question
from duolog_server.ops.console.view.visits import Action, Done, Shown, Visit
from duolog_server.ops.inspection.messages.finding import by_time
from duolog_server.ops.inspection.searching.search import Search
from duolog_server.ops.inspection.searching.terms import SECONDS, End, Needle, Progress, Terms

KEY, UNIQUE_KEY, MESSAGE_ID, OFFSET, TIME = "key", "unique_key", "id", "offset", "time"
TEXT, SQL = "text", "sql"
NEWEST, OLDEST = "newest", "oldest"
EXACT, ANY = "exact", "any"
SINCE = "1h"
ROWS = 50


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


@dataclass(frozen=True, slots=True)
class Searched:
    """A search as a page shows it. over: it has ended."""

    facts: Mapping[str, object]
    over: bool


async def searched(visit: Visit, wanted: Wanted) -> Searched:
    """A search as it is now; it begins where it does not run yet. Raises BadRequest, Busy."""
    name = search_of(visit.query)
    found = await visit.searches.look(name, lambda: _search(visit, wanted))
    if isinstance(found.error, Unauthenticated):
        raise found.error
    if found.over and found.search.hits:
        await _check_rights(visit, found.search)
    progress = found.search.progress
    facts = {
        "sentence": " ".join(_sentences(found)),
        "alarm": found.error is not None,
        "rows": [hit.what for hit in found.search.hits],
        "running": found,
        "progress": progress,
        "at_ms": 0 if progress.end is End.WHOLE else progress.at_ms,
        "proof": visit.form,
        "act": f"{SEARCH_AGAIN if found.over else SEARCH_STOP}?{name}",
    }
    return Searched(facts, found.over)


async def _check_rights(visit: Visit, search: Search[object]) -> None:
    """Raise NoPermission where the viewer may not read the topic any more."""
    *_, group, queue_id = search.hits[0].order
    request = wire.PullRequest(
        topic=search.terms.topic, queue_id=queue_id, max_messages=1, columns=[wire.STORE_TIMES]
    )
    try:
        await visit.client.fetch(request, group)
    except (NoPermission, Unauthenticated):
        raise
    except DuologError:
        pass  # the topic is gone, or its nodes are away: what was found stays


def _search(visit: Visit, wanted: Wanted) -> Search[object]:
    """A search that finds what is shown of messages, and nothing by what is not shown."""
    seeing, terms = visit.seeing, wanted.terms
    needle = Needle(terms.text, terms.any_case)
    if terms.sql:
        seeing.check_sql(terms.topic, terms.sql)

    def keep(one: Message) -> object | None:
        seen = seeing.see(one)
        hides = seen.tells(terms.sql) if terms.sql else not (seen.whole or seen.has(needle))
        return None if hides else message_row(seeing, one, one.group)

    return Search(visit.client, terms, keep)


def _sentences(found: Running) -> Iterator[str]:
    """Sentences about its findings and its end."""
    progress = found.search.progress
    count = counted(len(found.search.hits), "message")
    took = duration(found.seconds() * 1000)
    of = _of(progress)
    if found.error is not None:
        yield f"{count} found among {of}; then the search failed."
        yield sentence(str(found.error))
    elif not found.over:
        yield f"{count} found so far among {of}, in {took}."
    elif progress.end is End.ENOUGH:
        first = "newest" if found.search.terms.newest_first else "oldest"
        yield f"The {first} {count} that match, found among {of}, in {took}. There may be more."
    else:
        yield f"{count} found among {of}, in {took}."
        if progress.end is End.LATE:
            yield f"A search ends after {duration(SECONDS * 1000)}: choose a shorter time."
        elif progress.end is End.STOPPED and found.unseen:
            yield f"It was stopped after no page had asked for it for {UNSEEN_SECONDS:.0f} s."
        elif progress.end is End.STOPPED:
            yield "It was stopped."


def _of(progress: Progress) -> str:
    if progress.scanned == progress.total:
        return counted(progress.total, "message")
    return f"{number(progress.scanned)} of {counted(progress.total, 'message')}"


async def messages(visit: Visit) -> Shown:
    """Messages of a topic by what is known of them. Raises BadRequest."""
    wanted = Wanted.of(visit.query)
    facts: dict[str, object] = {"search": wanted, "ways": WAYS, "rows": None, "running": None}
    facts["sentence"] = "Find a message by its key, its id, its place, its time, or what is in it."
    over = False
    try:
        if wanted.searches and wanted.value:
            found = await searched(visit, wanted)
            facts |= found.facts
            over = found.over
        elif wanted.value or (wanted.topic and wanted.by == TIME):
            facts |= await _answer(visit, wanted)
    except tuple(REFUSED) as error:
        return refused(Shown("messages.html", "Messages", facts, wanted.command), error)
    return Shown("messages.html", "Messages", facts, wanted.command, over=over)


async def _answer(visit: Visit, wanted: Wanted) -> Mapping[str, object]:
    rows = await _found(visit, wanted)
    told = f"{counted(len(rows), 'message')} found."
    if len(rows) == ROWS:
        told = f"The first {ROWS} messages that were found."
    return {"rows": rows, "sentence": told}


async def _found(visit: Visit, wanted: Wanted) -> list[Row]:
    client, topic, value = visit.client, wanted.topic, wanted.value
    if not topic and wanted.by != MESSAGE_ID:
        raise BadRequest("name the topic: only a search by message id needs none")
    if wanted.by == TIME:
        begin = time_ms(value)
        return [
            message_row(visit.seeing, one, one.group)
            for one in await by_time(client, topic, begin, 0, ROWS)
        ]
    if wanted.by == OFFSET:
        group, queue_id, offset = queue_place(value)
        batch = await client.pull(topic, queue_id, offset, max_messages=ROWS, group=group)
        return [message_row(visit.seeing, one, one.group) for one in batch]
    how = {KEY: "key", UNIQUE_KEY: "unique_key", MESSAGE_ID: "message_id"}[wanted.by]
    try:
        found = await client.admin.find(topic, count=ROWS, **{how: value})  # type: ignore[arg-type]
    except NoSuchMessage:
        return []
    return [message_row(visit.seeing, one, one.group) for one in found]


async def _ask_stop(visit: Visit) -> Shown:
    return Question("Stop the search", "What it has found is kept.", "Stop").shown()


async def _stop(visit: Visit, form: Mapping[str, str]) -> Done:
    await visit.searches.stop(search_of(visit.query))
    return Done("The search was stopped.", f"{MESSAGES}?{search_of(visit.query)}")


async def _ask_again(visit: Visit) -> Shown:
    return Question("Search again", "What it has found is forgotten.", "Search again").shown()


async def _again(visit: Visit, form: Mapping[str, str]) -> Done:
    await visit.searches.forget(search_of(visit.query))
    return Done("The search began again.", f"{MESSAGES}?{search_of(visit.query)}")


STOP = Action(_ask_stop, _stop, repeatable=True)
AGAIN = Action(_ask_again, _again, repeatable=True)
