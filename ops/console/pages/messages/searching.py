"""A search as its page shows it: how far it is, and what it has found so far.

Rules: a search belongs to the session that began it, and continues between requests for its page.
It ends when nobody looks any more. Its link holds the whole filter; another session that opens the
link searches by itself. What is kept of one that is over is shown while its viewer may read the
topic.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from duolog import DuologError, Message, NoPermission, Unauthenticated
from duolog.wire import duolog_pb2 as wire

from duolog_server.ops.console.pages.messages.lookups import Wanted
from duolog_server.ops.console.pages.messages.rows import message_row
from duolog_server.ops.console.searches.running import UNSEEN_SECONDS, Running
from duolog_server.ops.console.view.addresses import SEARCH_AGAIN, SEARCH_STOP, search_of
from duolog_server.ops.console.view.formatting import counted, duration, number, sentence
from duolog_server.ops.console.view.visits import Visit
from duolog_server.ops.inspection.searching.matching import Needle
from duolog_server.ops.inspection.searching.search import Search
from duolog_server.ops.inspection.searching.terms import SECONDS, End, Progress


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
