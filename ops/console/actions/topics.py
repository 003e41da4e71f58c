"""Topics are created, altered and deleted."""

from collections.abc import Mapping

from duolog import BadRequest

from duolog_server.ops.console.actions.asking import Field, Question, confirmed, whole_number
from duolog_server.ops.console.view.addresses import TOPIC, TOPICS, address
from duolog_server.ops.console.view.formatting import command, counted
from duolog_server.ops.console.view.visits import Action, Done, Shown, Visit
from duolog_server.ops.inspection.topics import PERMISSIONS, messages_kept, parts_of, permissions

TYPES = ("", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")
LITE = "LITE"
CHOICES = [(str(perm), may) for perm, may in PERMISSIONS.items()]
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


async def _ask_alter(visit: Visit) -> Shown:
    topic = visit.path["topic"]
    known = (await parts_of(visit.client, topic))[0]
    fields = [
        Field("queues", "Queues", str(known.queues)),
        Field("perm", "Clients may", str(known.perm), choices=CHOICES),
    ]
    flags = ["--queues", str(known.queues), "--perm", str(known.perm)]
    if known.message_type == LITE:
        minutes = str(known.lite_ttl_minutes)
        fields.append(Field("lite_ttl", "Lite topics expire after (minutes, 0: never)", minutes))
        flags += ["--lite-ttl", minutes]
    return Question(
        f"Alter topic {topic}",
        f"It has {counted(known.queues, 'queue')}, and can get more, never fewer. Messages of a "
        "key may then go to another queue than before.",
        "Alter",
        fields,
        command=command("topic", "alter", names=[topic], flags=flags),
    ).shown()


async def _alter(visit: Visit, form: Mapping[str, str]) -> Done:
    topic, perm = visit.path["topic"], form.get("perm", "")
    if perm not in dict(CHOICES):
        raise BadRequest(f"{perm!r} is not what clients may do with a topic")
    made = await visit.client.admin.alter_topic(
        topic,
        whole_number(form, "queues", 1),
        int(perm),
        lite_ttl_minutes=whole_number(form, "lite_ttl", 0) if "lite_ttl" in form else None,
    )
    may = permissions(made.perm)
    return Done(
        f"Topic {topic} has {counted(made.queues, 'queue')} now. Clients may {may}.",
        address(TOPIC, topic=topic),
    )


async def _ask_delete(visit: Visit) -> Shown:
    topic = visit.path["topic"]
    kept = messages_kept(await parts_of(visit.client, topic))
    return Question(
        f"Delete topic {topic}",
        f"{counted(kept, 'message')} and the offsets of its consumer groups are deleted.",
        "Delete",
        type_to_confirm=topic,
        danger=True,
        command=command("topic", "delete", names=[topic]),
    ).shown()


async def _delete(visit: Visit, form: Mapping[str, str]) -> Done:
    topic = visit.path["topic"]
    confirmed(form, topic)
    await visit.client.admin.delete_topic(topic)
    return Done(f"Topic {topic} was deleted.", TOPICS)


CREATE, ALTER, DELETE = (
    Action(_ask_create, _create),
    Action(_ask_alter, _alter),
    Action(_ask_delete, _delete),
)
