"""Topics are created, altered and deleted."""

from collections.abc import Mapping

from duolog import BadRequest

from node.console.actions.asking import Field, Question, confirmed, whole_number
from node.console.view.addresses import TOPIC, TOPICS, address
from node.console.view.visits import Action, Done, Shown, Visit
from node.console.view.words import command, counted
from node.inspection.topics import messages_kept, parts_of

TYPES = ("", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")
QUEUES = 4


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
        raise BadRequest(f"{kind!r} is not a type of topic")
    queues = whole_number(form, "queues", 1)
    made = await visit.client.admin.create_topic(topic, queues, message_type=kind)
    return Done(
        f"Topic {made.topic} was created with {counted(made.queues, 'queue')}.",
        address(TOPIC, topic=made.topic),
    )


async def _ask_grow(visit: Visit) -> Shown:
    topic = visit.path["topic"]
    queues = await _queues(visit, topic)
    return Question(
        f"More queues for {topic}",
        f"It has {counted(queues, 'queue')}. Messages of a key may go to another one than before.",
        "Alter",
        (Field("queues", "Queues", str(queues)),),
        command=command("topic", "alter", topic, "--queues", "N"),
    ).shown()


async def _grow(visit: Visit, form: Mapping[str, str]) -> Done:
    topic = visit.path["topic"]
    made = await visit.client.admin.alter_topic(topic, queues=whole_number(form, "queues", 1))
    return Done(
        f"Topic {topic} has {counted(made.queues, 'queue')} now.", address(TOPIC, topic=topic)
    )


async def _queues(visit: Visit, topic: str) -> int:
    """Of each replica group. Raises UnknownTopic."""
    return (await parts_of(visit.client, topic))[0].queues


async def _ask_delete(visit: Visit) -> Shown:
    topic = visit.path["topic"]
    kept = messages_kept(await parts_of(visit.client, topic))
    return Question(
        f"Delete topic {topic}",
        f"{counted(kept, 'message')} and the offsets of its consumer groups are deleted.",
        "Delete",
        type_to_confirm=topic,
        danger=True,
        command=command("topic", "delete", topic),
    ).shown()


async def _delete(visit: Visit, form: Mapping[str, str]) -> Done:
    topic = visit.path["topic"]
    confirmed(form, topic)
    await visit.client.admin.delete_topic(topic)
    return Done(f"Topic {topic} was deleted.", TOPICS)


CREATE, GROW, DELETE = (
    Action(_ask_create, _create),
    Action(_ask_grow, _grow),
    Action(_ask_delete, _delete),
)

__all__ = ["CREATE", "DELETE", "GROW"]
