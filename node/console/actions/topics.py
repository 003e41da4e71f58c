"""Topics are created, altered and deleted."""

from collections.abc import Mapping
from urllib.parse import quote

from duolog import BadRequest, UnknownTopic

from node.console.actions.asking import Field, Question, confirmed, whole_number
from node.console.visits import Action, Done, Shown, Visit
from node.console.words import command, counted, number

TYPES = ("", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")
QUEUES = 4


def page_of(topic: str) -> str:
    """Address of a topic's page."""
    return f"/topics/{quote(topic, safe='')}"


async def _ask_create(visit: Visit) -> Shown:
    return Question(
        "Create a topic",
        "A topic can get more queues later, never fewer.",
        "Create",
        (
            Field("topic", "Name"),
            Field("queues", "Queues", str(QUEUES), "each is read by one consumer of a group"),
            Field(
                "type",
                "Type",
                choices=[(kind, kind.lower() or "any") for kind in TYPES],
            ),
        ),
        command=command("topic", "create", "TOPIC", "--queues", str(QUEUES)),
    ).shown()


async def _create(visit: Visit, form: Mapping[str, str]) -> Done:
    topic, kind = form.get("topic", "").strip(), form.get("type", "")
    if kind not in TYPES:
        raise BadRequest(f"{kind!r} is no type of a topic")
    queues = whole_number(form, "queues", 1)
    made = await visit.client.admin.create_topic(topic, queues, message_type=kind)
    return Done(
        f"Topic {made.topic} was created with {counted(made.queues, 'queue')}.",
        page_of(made.topic),
    )


async def _ask_grow(visit: Visit) -> Shown:
    topic = visit.path["topic"]
    queues = await _queues(visit, topic)
    return Question(
        f"More queues for {topic}",
        f"It has {counted(queues, 'queue')}. A key's messages may go to another one than before.",
        "Alter",
        (Field("queues", "Queues", str(queues)),),
        command=command("topic", "alter", topic, "--queues", "N"),
    ).shown()


async def _grow(visit: Visit, form: Mapping[str, str]) -> Done:
    topic = visit.path["topic"]
    made = await visit.client.admin.alter_topic(topic, queues=whole_number(form, "queues", 1))
    return Done(f"Topic {topic} has {counted(made.queues, 'queue')} now.", page_of(topic))


async def _queues(visit: Visit, topic: str) -> int:
    """Of each replica group. Raises UnknownTopic."""
    parts = await visit.client.admin.topics([topic])
    if not parts:
        raise UnknownTopic(f"topic {topic!r} does not exist")
    return parts[0].queues


async def _ask_delete(visit: Visit) -> Shown:
    topic = visit.path["topic"]
    parts = await visit.client.admin.topics([topic])
    if not parts:
        raise UnknownTopic(f"topic {topic!r} does not exist")
    kept = sum(queue.max_offset - queue.min_offset for part in parts for queue in part.stats)
    lost = f"{number(kept)} messages" if kept != 1 else "1 message"
    return Question(
        f"Delete topic {topic}",
        f"{lost} can be read no longer, and groups forget how far they were.",
        "Delete",
        type_to_confirm=topic,
        danger=True,
        command=command("topic", "delete", topic),
    ).shown()


async def _delete(visit: Visit, form: Mapping[str, str]) -> Done:
    topic = visit.path["topic"]
    confirmed(form, topic)
    await visit.client.admin.delete_topic(topic)
    return Done(f"Topic {topic} was deleted.", "/topics")


CREATE, GROW, DELETE = (
    Action(_ask_create, _create),
    Action(_ask_grow, _grow),
    Action(_ask_delete, _delete),
)

__all__ = ["CREATE", "DELETE", "GROW"]
