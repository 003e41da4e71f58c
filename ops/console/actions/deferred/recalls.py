"""A message that waits for its time is taken back."""

from collections.abc import Mapping

from duolog import DelayedMessage, NoSuchMessage

from duolog_server.ops.console.actions.asking import Field, Question, confirmed, whole_number
from duolog_server.ops.console.view.addresses import DELAYED, address
from duolog_server.ops.console.view.formatting import command, number, size
from duolog_server.ops.console.view.visits import Action, Done, Shown, Visit
from duolog_server.ops.inspection.messages.finding import delayed_at
from duolog_server.ops.inspection.messages.places import place_of
from duolog_server.ops.inspection.times import iso

TIME_MAX = (1 << 53) - 1  # ms since 1970


async def _message(visit: Visit, words: Mapping[str, str]) -> DelayedMessage:
    """The message that is asked about. Raises BadRequest, NoSuchMessage."""
    due_ms = whole_number(words, "due", 1, TIME_MAX)
    place, topic = place_of(words.get("place", "")), visit.path["topic"]
    found = await delayed_at(visit.client, topic, due_ms, place)
    if found.unique_key != words.get("key", ""):
        raise NoSuchMessage(f"another message waits at {place}")
    return found


async def _ask(visit: Visit) -> Shown:
    found, query = await _message(visit, visit.query), visit.query
    place = query["place"]
    return Question(
        f"Recall a delayed message of {found.topic}",
        "It is never delivered, and cannot be brought back.",
        "Recall",
        [Field(name, "", query[name], hidden=True) for name in ("due", "place", "key")],
        type_to_confirm=found.topic,
        danger=True,
        heads=("Unique key", "Due", "Place", "Size"),
        preview=[
            (
                found.unique_key,
                iso(found.due_ms) or "",
                f"{found.group}/{found.queue_id}/{number(found.queue_offset)}",
                size(found.size),
            )
        ],
        command=command("msg", "recall", names=[found.topic, place, found.unique_key]),
    ).shown()


async def _do(visit: Visit, form: Mapping[str, str]) -> Done:
    confirmed(form, visit.path["topic"])
    found = await _message(visit, form)
    await visit.client.admin.recall_delayed(
        found.topic, found.queue_offset, found.unique_key, group=found.group
    )
    return Done(f"Message {found.unique_key} was recalled.", address(DELAYED))


RECALL = Action(_ask, _do)
