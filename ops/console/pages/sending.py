"""A message is sent, or sent again.

Rules: what a form cannot carry unchanged, and what the viewer does not see whole, is sent again by
its place, to the topic it lies in, and by no form.
"""

import json
from collections.abc import Mapping
from dataclasses import replace

from duolog import BadRequest, Message, Receipt
from duolog._columns import split_keys

from duolog_server.ops.console.view.addresses import MESSAGE, TOPIC, address
from duolog_server.ops.console.view.formatting import command, counted, duration, size
from duolog_server.ops.console.view.inputs import queue_offset
from duolog_server.ops.console.view.questions import Field, Question, confirmed, whole_number
from duolog_server.ops.console.view.visits import Action, Done, Shown, Visit
from duolog_server.ops.inspection.messages.sending import (
    NOT_SENT_AGAIN,
    Draft,
    copy_of,
    is_users,
    message_at,
    send,
)
from duolog_server.ops.inspection.messages.trace import place_text
from duolog_server.ops.inspection.topics import parts_of

BODY_BYTES = 64 << 10  # that a form carries
FORM_BYTES = 4 * BODY_BYTES  # each of them may be escaped
LINES, PROPERTY_LINES = 8, 3
DELAY_SECONDS_MAX = 3 * 86_400
TEXT, JSON = "text", "json"
FORMATS = ((TEXT, "text"), (JSON, "JSON, checked before it is sent"))
KEPT_CONTROLS = "\n\t"  # a form changes all other ones


async def _ask_send(visit: Visit) -> Shown:
    topic = visit.path["topic"]
    await parts_of(visit.client, topic)  # raises UnknownTopic
    return _question(Draft(topic, b""), f"Send a message to {topic}", _effect(topic)).shown()


def _effect(topic: str) -> str:
    return f"A new message is stored in {topic}, and its consumers get it."


def _question(draft: Draft, title: str, sentence: str, *, whole: bool = False) -> Question:
    """whole: the message is sent as it is, so only where to and when is asked."""
    queue = "" if draft.queue_id is None else str(draft.queue_id)
    where = (
        Field("queue", "Queue", queue, "as the key says, or any"),
        Field("delay", "Delay in seconds", "", "none"),
    )
    text = draft.body.decode(errors="replace")
    properties = "\n".join(f"{name}={value}" for name, value in draft.properties.items())
    content = (
        Field("body", "Body", text, lines=LINES),
        Field("format", "Format", choices=FORMATS),
        Field("key", "Key", draft.key, "messages of one key go to one queue"),
        Field("keys", "Further keys", " ".join(draft.keys), "separated by spaces"),
        Field("tags", "Tag", draft.tags),
        Field(
            "properties", "Properties", properties, "NAME=VALUE, one a line", lines=PROPERTY_LINES
        ),
    )
    return Question(
        title,
        sentence,
        "Send",
        where if whole else (*content, *where),
        type_to_confirm=draft.topic,
        command=_command(draft),
    )


def _command(draft: Draft) -> str:
    content = [draft.topic, draft.body.decode(errors="replace") or "BODY"]
    words = ["--key", draft.key] if draft.key else []
    words += [word for key in draft.keys for word in ("--keys", key)]
    words += ["--tags", draft.tags] if draft.tags else []
    words += [w for name, one in draft.properties.items() for w in ("--property", f"{name}={one}")]
    words += ["--queue", str(draft.queue_id)] if draft.queue_id is not None else []
    words += _delay_words(draft)
    return command("msg", "send", names=content, flags=words)


def _delay_words(draft: Draft) -> list[str]:
    return [] if draft.delay_seconds is None else ["--delay", f"{draft.delay_seconds:g}"]


async def _send(visit: Visit, form: Mapping[str, str]) -> Done:
    topic = visit.path["topic"]
    confirmed(form, topic)
    draft = _draft(topic, form)
    return await _done(visit, draft, await send(visit.client, draft), _command(draft))


def _draft(topic: str, form: Mapping[str, str], group: str = "") -> Draft:
    """Parse the form. Raises BadRequest."""
    text = _lines(form, "body")
    if form.get("format", TEXT) == JSON:
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from None
    try:
        body = text.encode()
    except UnicodeEncodeError:
        raise BadRequest("the body has characters that cannot be sent") from None
    if len(body) > BODY_BYTES:
        raise BadRequest(
            f"the body has {size(len(body))}; a form sends {BODY_BYTES >> 10} KiB at most: use "
            f"duolog msg send {topic}"
        )
    return _placed(
        Draft(
            topic,
            body,
            form.get("key", "").strip(),
            split_keys(form.get("keys", "")),
            form.get("tags", "").strip(),
            _properties(_lines(form, "properties")),
        ),
        form,
        group,
    )


def _lines(form: Mapping[str, str], name: str) -> str:
    """A text of several lines; a browser ends them as the Web does."""
    return form.get(name, "").replace("\r\n", "\n")


def _properties(text: str) -> dict[str, str]:
    found = {}
    for line in filter(str.strip, text.split("\n")):
        name, separator, value = line.partition("=")
        if not (name.strip() and separator and value):
            raise BadRequest(f"the property {line!r} is not of the form NAME=VALUE")
        found[name.strip()] = value
    return found


def _placed(draft: Draft, form: Mapping[str, str], group: str) -> Draft:
    """A draft with the queue and the delay of a form. Raises BadRequest."""
    queue_id = whole_number(form, "queue", 0) if form.get("queue", "").strip() else None
    return replace(draft, queue_id=queue_id, group=group, delay_seconds=_delay(form))


def _delay(form: Mapping[str, str]) -> float | None:
    text = form.get("delay", "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= DELAY_SECONDS_MAX:
        raise BadRequest(f"delay is {text!r}; it must be a number of seconds, at most 3 days")
    return seconds


async def _done(visit: Visit, draft: Draft, receipt: Receipt, equivalent: str) -> Done:
    """The receipt, and the page of the stored message, or of its topic for who may not read it."""
    location = address(TOPIC, topic=draft.topic)
    if draft.delay_seconds:
        told = f"Stored; consumers get it in {duration(draft.delay_seconds * 1000)}."
    else:
        place = place_text(receipt.topic, receipt.queue_id, receipt.queue_offset)
        told = f"Stored as {place}."
        names = {"topic": receipt.topic, "queue": receipt.queue_id, "offset": receipt.queue_offset}
        stored = address(MESSAGE, {"group": receipt.group}, **names)
        location = stored if await visit.rights.may(stored) else location
    return Done(f"{told} Its unique key is {receipt.unique_key}.", location, command=equivalent)


async def _message(visit: Visit) -> Message:
    topic, group = visit.path["topic"], visit.query.get("group") or None
    queue_id, offset = queue_offset(f"{visit.path['queue']}/{visit.path['offset']}")
    if not is_users(topic):
        raise BadRequest(NOT_SENT_AGAIN.format(topic=topic))
    return await message_at(visit.client, topic, queue_id, offset, group)


async def _ask_again(visit: Visit) -> Shown:
    message = await _message(visit)
    draft, whole = copy_of(message), _whole(visit, message)
    place = place_text(draft.topic, message.queue_id, message.queue_offset)
    sentence = f"{_effect(draft.topic)} The old one stays."
    if whole:
        own = counted(len(draft.properties), "property")
        sentence += (
            f" Its body of {size(len(draft.body))}, its keys, its tag and {own} of users are those "
            "of the old one."
        )
    shown = _question(draft, f"Send {place} again", sentence, whole=whole)
    return replace(shown, command=_resend(message, draft)).shown() if whole else shown.shown()


def _resend(message: Message, draft: Draft) -> str:
    """How the command line sends a message again. draft: where to, and when."""
    place = message.stored_topic, str(message.queue_id), str(message.queue_offset)
    words = ["--replica-group", message.group] if message.group else []
    if draft.queue_id not in (None, message.queue_id):
        words += ["--to-queue", str(draft.queue_id)]
    return command("msg", "resend", names=place, flags=[*words, *_delay_words(draft)])


def _whole(visit: Visit, message: Message) -> bool:
    """Whether a message is sent as it is, by its place."""
    if not visit.seeing.see(message).whole or len(message.body) > BODY_BYTES:
        return True
    draft = copy_of(message)
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        return True
    names = "".join(draft.properties)
    return "=" in names or any(_changes(one) for one in text)


def _changes(character: str) -> bool:
    """Whether a form would change a character."""
    return (character < " " and character not in KEPT_CONTROLS) or character == "\x7f"


async def _again(visit: Visit, form: Mapping[str, str]) -> Done:
    message = await _message(visit)
    topic = message.stored_topic
    confirmed(form, topic)
    if _whole(visit, message):
        draft = _placed(copy_of(message), form, message.group)
        equivalent = _resend(message, draft)
    else:
        draft = _draft(topic, form, message.group)
        equivalent = _command(draft)
    return await _done(visit, draft, await send(visit.client, draft), equivalent)


SEND = Action(_ask_send, _send, FORM_BYTES)
AGAIN = Action(_ask_again, _again, FORM_BYTES)
