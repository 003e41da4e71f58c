"""The first page of users who may not see the cluster: the topics and groups that they may see."""

import asyncio
from itertools import groupby

from duolog_server.ops.console.pages.groups import STATES, row_of
from duolog_server.ops.console.pages.lists import LIST_SECONDS, SYSTEM_END
from duolog_server.ops.console.view.formatting import command
from duolog_server.ops.console.view.visits import Shown, Visit
from duolog_server.ops.inspection.topics import messages_kept
from duolog_server.store.metadata import is_nodes_topic

ROWS = 10  # of topics, and of groups
SEES_NOTHING = (
    "There is no topic or group that you may see. A super user can grant you rights, for example "
    "with this command."
)


async def home(visit: Visit) -> Shown:
    """The first topics and groups that the viewer may see, the worst of these groups first."""
    admin = visit.client.admin
    topics, groups, route = await asyncio.gather(
        admin.topics_page(after=SYSTEM_END, limit=ROWS, times=False),
        admin.groups_page(limit=ROWS),
        admin.route(),
    )
    own = (one for one in topics.rows if not is_nodes_topic(one.topic))
    kept = {name: messages_kept(parts) for name, parts in groupby(own, lambda one: one.topic)}
    sees = bool(kept or groups.rows)
    grant = command("acl", "grant", visit.rights.user, "Topic:NAME", "Sub")
    facts = {
        "sentence": "The topics and groups that you may see." if sees else SEES_NOTHING,
        "topics": kept,
        "groups": sorted(map(row_of, groups.rows), key=lambda row: STATES.index(row.state)),
        "more_topics": bool(topics.next),
        "more_groups": bool(groups.next),
        "cluster": route.cluster,
    }
    words = "" if sees else grant
    return Shown("home.html", "Home", facts, words, pause_seconds=LIST_SECONDS)
