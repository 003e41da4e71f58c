"""The audit log as its topic has it: the newest entries that match, and from there back in time.

Rules: a search looks at ENTRIES_SCANNED entries at most, and tells how far it came; entries are
shown in the order of their times, none of them twice and none left out, also where several replica
groups have some.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from duolog import BadRequest, Client, Message

from duolog_server.node.runtime.numerals import number_of
from duolog_server.ops.inspection.messages.places import OFFSET_MAX
from duolog_server.store.metadata import AUDIT_TOPIC

ENTRIES_SCANNED = 5_000  # of all replica groups together
ENTRIES_AT_ONCE = 500
DECISIONS = ("allowed", "denied", "failed", "lost")
_WORDS = ("node", "user", "source", "method", "resource", "decision", "reason")
_OWN = frozenset((*_WORDS, "time", "times"))


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An entry; times: how many equal calls it stands for. more: the request, as JSON. An entry
    that is no JSON object has its text there.
    """

    time_ms: int
    node: str = ""
    user: str = ""
    source: str = ""
    method: str = ""
    resource: str = ""
    decision: str = ""
    reason: str = ""
    times: int = 1
    more: str = ""


@dataclass(frozen=True, slots=True)
class AuditSearch:
    """Which entries. user, action, resource: parts of what they say, in any case. before_ms: ms
    since 1970; None: until now. place: where the page before ended, `AuditPage.next`.
    """

    user: str = ""
    action: str = ""
    resource: str = ""
    decision: str = ""
    before_ms: int | None = None
    place: str = ""

    @property
    def filters(self) -> bool:
        """Whether some entries are left out."""
        return bool(self.user or self.action or self.resource or self.decision)

    def matches(self, row: AuditRow) -> bool:
        """Whether an entry is sought."""
        return (
            self.user.casefold() in row.user.casefold()
            and self.action.casefold() in row.method.casefold()
            and self.resource.casefold() in row.resource.casefold()
            and self.decision in ("", row.decision)
        )


@dataclass(frozen=True, slots=True)
class AuditPage:
    """The newest entries first. kept: whether the nodes have that topic. scanned: entries looked
    at. next: `AuditSearch.place` of the page before in time; empty: there is none.
    """

    rows: Sequence[AuditRow]
    scanned: int
    next: str
    kept: bool = True


@dataclass(slots=True)
class _Part:
    """The entries of a replica group, as far as they were looked at. found: with their offsets, the
    newest first. at: offset from which on all were looked at. oldest_ms: of those.
    """

    group: str
    begin: int
    at: int
    oldest_ms: int = 0
    found: list[tuple[int, AuditRow]] = field(default_factory=list)


async def audit_page(client: Client, search: AuditSearch, count: int) -> AuditPage:
    """At most so many entries. Raises BadRequest for a place that is none, and NoPermission."""
    parts = await _parts(client, search)
    if not parts:
        return AuditPage((), 0, "", kept=False)
    each, scanned = ENTRIES_SCANNED // len(parts), 0
    for part in parts:
        scanned += await _scan(client, part, search, count, each)
    shown_from = max((part.oldest_ms for part in parts if part.at > part.begin), default=0)
    merged = sorted(
        ((row.time_ms, offset, part.group) for part in parts for offset, row in part.found),
        reverse=True,
    )
    taken = {(group, offset) for at_ms, offset, group in merged[:count] if at_ms >= shown_from}
    rows = [row for part in parts for offset, row in part.found if (part.group, offset) in taken]
    ends = {part.group: _end(part, taken) for part in parts}
    more = any(ends[part.group] > part.begin for part in parts)
    text = ",".join(f"{group}:{end}" for group, end in ends.items()) if more else ""
    return AuditPage(sorted(rows, key=lambda row: -row.time_ms), scanned, text)


def _end(part: _Part, taken: set[tuple[str, int]]) -> int:
    """The end of a part's next page: behind the newest entry that was found and not shown."""
    left = (offset + 1 for offset, _ in part.found if (part.group, offset) not in taken)
    return max(left, default=part.at)


async def _parts(client: Client, search: AuditSearch) -> list[_Part]:
    ends = _ends(search.place)
    parts = []
    for topic in await client.admin.topics([AUDIT_TOPIC], system=True):
        for queue in topic.stats[:1]:  # it has one
            end = queue.max_offset
            if search.before_ms is not None:
                end = await client.admin.offset_at_time(
                    AUDIT_TOPIC, queue.queue_id, search.before_ms, group=topic.group
                )
            end = max(queue.min_offset, min(end, ends.get(topic.group, end)))
            parts.append(_Part(topic.group, queue.min_offset, end))
    return parts


def _ends(place: str) -> Mapping[str, int]:
    """The end of each replica group's part. Raises BadRequest."""
    ends = {}
    for word in filter(None, place.split(",")):
        group, _, offset = word.rpartition(":")
        end = number_of(offset, OFFSET_MAX)
        if end is None:
            raise BadRequest(f"{place!r} is not a position in the audit log")
        ends[group] = end
    return ends


async def _scan(client: Client, part: _Part, search: AuditSearch, count: int, most: int) -> int:
    """Look at entries of a part, the newest first, until enough are found; how many these were."""
    scanned = 0
    while part.at > part.begin and len(part.found) < count and scanned < most:
        begin = max(part.begin, part.at - min(ENTRIES_AT_ONCE, most - scanned))
        batch = await _between(client, part.group, begin, part.at)
        scanned += part.at - begin
        part.at = begin
        for message in reversed(batch):
            row = row_of(message)
            part.oldest_ms = row.time_ms
            if search.matches(row):
                part.found.append((message.queue_offset, row))
                if len(part.found) == count:
                    part.at = message.queue_offset
                    break
    return scanned


async def _between(client: Client, group: str, begin: int, end: int) -> list[Message]:
    """The entries in [begin, end), in order."""
    found: list[Message] = []
    while begin < end:
        batch = await client.pull(AUDIT_TOPIC, 0, begin, max_messages=end - begin, group=group)
        own = [message for message in batch if message.queue_offset < end]
        if not own:
            break  # deleted meanwhile
        found += own
        begin = own[-1].queue_offset + 1
    return found


def row_of(message: Message) -> AuditRow:
    """An entry as its message has it."""
    at_ms = message.store_time_ms
    try:
        entry = json.loads(message.body)
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        return AuditRow(at_ms, more=message.body.decode(errors="replace"))
    words = {name: str(entry.get(name, "")) for name in _WORDS}
    times = entry.get("times", 1)
    rest = {name: value for name, value in entry.items() if name not in _OWN}
    more = rest["request"] if rest.keys() == {"request"} else rest
    return AuditRow(
        at_ms,
        **words,
        times=times if isinstance(times, int) else 1,
        more=json.dumps(more, ensure_ascii=False) if more else "",
    )
