"""Consumer groups, and why one is behind."""

from dataclasses import dataclass
from heapq import nsmallest

from duolog import GroupDescription, GroupQueue

from duolog_server.ops.console.pages.lags import lag_flows, queue_rows, stuck
from duolog_server.ops.console.pages.lists import LIST_SECONDS, LIVE_ROWS_MAX, list_place, listing
from duolog_server.ops.console.view.addresses import GROUPS
from duolog_server.ops.console.view.formatting import command, counted, duration, number
from duolog_server.ops.console.view.visits import Shown, Visit
from duolog_server.ops.inspection.doctor.consumers import diagnose_groups
from duolog_server.ops.inspection.doctor.findings import ERROR
from duolog_server.ops.inspection.topics import messages_kept
from duolog_server.store.grouptopics import dead_letter_topic


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the list. lag_ms: of the oldest message that it has not consumed."""

    group: str
    consumers: int
    topics: int
    queues: int
    lag_messages: int
    lag_ms: int


async def groups(visit: Visit) -> Shown:
    """Groups whose names have what is searched for."""
    at = list_place(visit)
    page = await visit.client.admin.groups_page(at.contains, after=at.after, limit=at.limit)
    facts = dict(listing(GROUPS, at, page, "group"))
    facts["rows"] = [row_of(group) for group in page.rows]
    same = command("group", "list", *at.flags())
    return Shown("groups.html", "Groups", facts, same, pause_seconds=LIST_SECONDS)


def row_of(group: GroupDescription) -> GroupRow:
    """A group, in one line."""
    return GroupRow(
        group.group,
        group.consumers,
        len({queue.topic for queue in group.queues}),
        len(group.queues),
        sum(queue.lag_messages for queue in group.queues),
        max((queue.lag_ms for queue in group.queues), default=0),
    )


async def group(visit: Visit) -> Shown:
    """How far a group is in its queues, and what is wrong. Raises UnknownGroup."""
    name = visit.path["group"]
    found = await visit.client.admin.group(name)
    dead = await visit.client.admin.topics([dead_letter_topic(name)], system=True)
    findings = diagnose_groups([found], dead)
    furthest = nsmallest(LIVE_ROWS_MAX, found.queues, key=_furthest_behind)
    rows = queue_rows(visit, name, furthest)
    facts = {
        "sentence": sentence(found) + stuck(rows),
        "alarm": any(one.severity == ERROR for one in findings),
        "group": found,
        "dead": messages_kept(dead),
        "findings": findings,
        "flows": lag_flows(visit, found),
        "rows": rows,
        "hidden": max(0, len(found.queues) - LIVE_ROWS_MAX),
    }
    return Shown("group.html", f"Group {name}", facts, command("group", "explain", names=[name]))


def _furthest_behind(queue: GroupQueue) -> tuple[int, str, str, int]:
    return -queue.lag_messages, queue.topic, queue.replica_group, queue.queue_id


def sentence(group: GroupDescription) -> str:
    """How far a group is, in words."""
    row = row_of(group)
    are = "is" if row.consumers == 1 else "are"
    readers = f" {counted(row.consumers, 'consumer')} {are} connected."
    if not row.consumers:
        readers = " No consumer is connected."
    if not row.queues:
        return f"It has read nothing yet.{readers}"
    behind = sum(queue.lag_messages > 0 for queue in group.queues)
    if not behind:
        return f"It has consumed all of {counted(row.queues, 'queue')}.{readers}"
    oldest = f", the oldest of {duration(row.lag_ms)} ago" if row.lag_ms else ""
    return (
        f"{counted(row.lag_messages, 'message')} behind on {number(behind)} of "
        f"{counted(row.queues, 'queue')}{oldest}.{readers}"
    )
