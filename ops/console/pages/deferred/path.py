"""The path of a message that may not be in its topic yet, by its key."""

from duolog_server.ops.console.view.formatting import command, counted
from duolog_server.ops.console.view.visits import Shown, Visit
from duolog_server.ops.inspection.messages.finding import client_records
from duolog_server.ops.inspection.messages.trace import Row, rows

BY_KEY_MAX = 32  # messages that a node tells of


async def way(visit: Visit) -> Shown:
    """The trace of the messages with a key so far. Raises NoSuchMessage, UnknownTopic."""
    topic, key = visit.path["topic"], visit.query.get("key", "")
    tracked = await visit.client.admin.track_key(topic, key)
    steps: list[Row] = []
    for one in tracked[:BY_KEY_MAX]:
        steps += rows(one, await client_records(visit.client, one.unique_key))
    facts = {
        "sentence": f"{counted(len(tracked), 'message')} with this key.",
        "topic": topic,
        "steps": steps,
    }
    same = command("msg", "track", names=[topic], flags=["--key", key])
    return Shown("way.html", f"Path of {key}", facts, same)
