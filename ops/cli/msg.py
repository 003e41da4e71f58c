"""`duolog msg`: send, get, find, track, tail. One message per line, JSON lines with --json."""

import base64
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from duolog._columns import split_keys

from duolog_server.ops.cli import output, waiting
from duolog_server.ops.cli.access import asked, call_seconds, calls
from duolog_server.ops.cli.arguments import PLACE, read_place
from duolog_server.ops.cli.msgprinter import Format, Printer, Proto
from duolog_server.ops.inspection.messages import trace as way
from duolog_server.ops.inspection.messages.trace import TraceRecord

if TYPE_CHECKING:
    from duolog import Client, FoundMessage, Message, Receipt, TrackedMessage

    Shown = Message | FoundMessage

app = typer.Typer(no_args_is_help=True)
T = TypeVar("T")

SEND_BATCH = 2000
LOOK_SECONDS = 5.0  # until `tail` looks for queues that are new
NOTHING = "nothing found"


class _BadTemplate(Exception):
    """A template is not valid."""


def _filled(template: str, n: int, line: str) -> str:
    """A template with its fields filled in. Raises _BadTemplate or KeyError."""
    try:
        return template.format(n=n, time=int(time.time() * 1000), line=line)
    except IndexError:
        raise _BadTemplate("{} names no field: use {line}, {n} or {time}") from None
    except (ValueError, AttributeError, TypeError) as error:
        raise _BadTemplate(str(error)) from None


def _lines(template: str | None, count: int | None) -> Iterator[str]:
    """Lines of stdin, or a template applied to them or to a counter."""
    if count is not None:
        for n in range(count):
            yield _filled(template or "{n}", n, "")
        return
    for n, line in enumerate(sys.stdin):
        text = line.rstrip("\n")
        yield text if template is None else _filled(template, n, text)


@calls(app)
def send(
    topic: str,
    body: Annotated[
        str | None, typer.Argument(help="One message; default: read from stdin.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Partition key; also indexed.")] = None,
    keys: Annotated[list[str] | None, typer.Option(help="Further keys (repeatable).")] = None,
    tags: Annotated[str | None, typer.Option(help="Tag to filter by.")] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", help="Property NAME=VALUE (repeatable).")
    ] = None,
    queue: Annotated[int | None, typer.Option(max=output.INT_MAX, help="Queue to send to.")] = None,
    delay: Annotated[
        float | None,
        typer.Option(min=0, max=output.INT_MAX, help="Deliver after this many seconds."),
    ] = None,
    template: Annotated[str | None, typer.Option(help="Body template: {line} {n} {time}.")] = None,
    count: Annotated[
        int | None, typer.Option(min=0, help="Number of messages made from the template.")
    ] = None,
    lines_json: Annotated[
        bool,
        typer.Option(
            "--lines-json",
            help="Input lines are JSON, with body, key, keys, tags, queue_id, properties, delay.",
        ),
    ] = False,
) -> None:
    """Send messages: an argument, or every line of stdin."""
    common: dict[str, Any] = {"key": key, "keys": keys or [], "tags": tags, "queue_id": queue}
    common["properties"] = _properties(property_ or [])
    common["delay"] = delay
    if queue is not None and queue < 0:
        output.fail(f"--queue is {queue}; it must not be negative", f"duolog topic stats {topic}")
    source: Iterator[str] = iter([body]) if body is not None else _lines(template, count)

    try:
        hints = {"ResultUnknown": "duolog msg find TOPIC --unique-key KEY"}
        sent = asked(lambda client: _sent(client, topic, source, common, lines_json), hints)
    except KeyError as error:
        output.fail(f"template {template!r}: unknown field {error}", "fields: line, n, time")
    except _BadTemplate as error:
        output.fail(
            f"template {template!r}: {error}", "for example 'order {n} at {time}'; write { as {{"
        )
    if not output.wants_json():
        output.say(f"sent {sent} messages to {topic}")


async def _sent(
    client: "Client",
    topic: str,
    source: Iterator[str],
    common: dict[str, Any],
    lines_json: bool,
) -> int:
    """Send the lines of a source; how many these were."""
    import asyncio

    sent = 0
    async with client.producer() as producer:
        await producer.slot_of(topic, "", call_seconds())  # before a line is read
        while chunk := list(itertools.islice(source, SEND_BATCH)):
            messages = [_message(text, common, lines_json) for text in chunk]
            sends = [producer.send(topic, data, **how) for data, how in messages]
            receipts = await asyncio.gather(*sends)
            sent += len(receipts)
            if output.wants_json():
                for receipt in receipts:
                    output.print_json(receipt_facts(receipt))
    return sent


def receipt_facts(receipt: "Receipt") -> dict[str, object]:
    """A receipt as JSON has it."""
    return {
        "topic": receipt.topic,
        "queue_id": receipt.queue_id,
        "queue_offset": receipt.queue_offset,
        "unique_key": receipt.unique_key,
        "store_time": receipt.store_time_ms,
        "status": receipt.status,
    }


def _properties(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            output.fail(f"--property {text!r} is not NAME=VALUE", "duolog msg send --help")
        found[name] = value
    return found


def _message(text: str, common: dict[str, Any], lines_json: bool) -> tuple[bytes, dict[str, Any]]:
    if not lines_json:
        return text.encode(errors="surrogateescape"), common
    try:
        return _from_json(json.loads(text), common)
    except (ValueError, TypeError) as error:
        output.fail(
            f"line {text[:80]!r} is not a message: {error}", 'a line such as {"body": "hello"}'
        )


def _from_json(fields: object, common: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Body and options of a message. Raises ValueError or TypeError."""
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    unknown = fields.keys() - _FIELDS.keys() - _WHERE
    if unknown:
        raise ValueError(f'unknown field "{min(unknown)}"; known are {", ".join(_FIELDS)}')
    how = {**common}
    for name, (kinds, wanted) in _FIELDS.items():
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f'"{name}" must be {wanted}')
        if value or value == 0 or name in _BODIES:  # an empty body is one
            how[name] = split_keys(value) if name == "keys" and isinstance(value, str) else value
    if how["queue_id"] is not None and not 0 <= how["queue_id"] <= output.INT_MAX:
        raise ValueError(f'"queue_id" must be 0 to {output.INT_MAX}')
    texts = [*how["properties"], *how["properties"].values(), *how["keys"]]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("keys and properties must be strings")
    body, encoded = how.pop("body", None), how.pop("body_base64", None)
    if (body is None) == (encoded is None):
        raise ValueError('it must have one of "body" and "body_base64"')
    return base64.b64decode(encoded, validate=True) if body is None else body.encode(), how


_FIELDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "body": (str, "a string; an object is sent as the text of its JSON"),
    "body_base64": (str, "a string"),
    "key": (str, "a string"),
    "keys": ((str, list), "a string or a list of strings"),
    "tags": (str, "a string"),
    "queue_id": (int, "an integer"),
    "properties": (dict, "an object"),
    "delay": ((int, float), "a number of seconds"),
}
_BODIES = ("body", "body_base64")
# Fields of a printed message that name its place: they are ignored, so that it can be sent again.
_WHERE = {
    "topic", "queue_offset", "physical_offset", "message_id", "unique_key", "store_time",
    "born_time",
}  # fmt: skip


@calls(app)
def get(
    topic: str,
    group: Annotated[str, typer.Option(help="Group to read as; its offsets are committed.")],
    max_: Annotated[int, typer.Option("--max", help="Maximum number of messages.")] = 10,
    tags: Annotated[
        list[str] | None, typer.Option(help="Only messages with this tag (repeatable).")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for more messages.")] = 2.0,
    template: Annotated[str | None, Format] = None,
    proto: Annotated[str, Proto] = "",
) -> None:
    """Consume up to --max messages as a group, and commit them."""
    if max_ < 1:
        output.fail(f"--max is {max_}; it must be at least 1", "duolog msg get --help")
    printer = Printer(output.wants_json(), template, proto)

    async def work(client: "Client") -> int:
        shown = 0
        async with client.consumer(group, topic, tags=tags or []) as consumer:
            while shown < max_ and (message := await consumer.get(wait)) is not None:
                printer.message(message)
                shown += 1
        return shown

    shown = asked(work)
    if shown < max_ and not output.wants_json():
        output.say(f"{shown} messages; no more arrived within {wait:g} s")


async def _unless_none(searched: Awaitable[list[T]]) -> list[T]:
    """What a search finds; that there is nothing is no error."""
    from duolog import NoSuchMessage

    try:
        return await searched
    except NoSuchMessage:
        return []


@calls(app)
def find(
    topic: Annotated[str, typer.Argument(help="Topic (not needed with --id).")] = "",
    key: Annotated[str, typer.Option(help="A key of the message.")] = "",
    unique_key: Annotated[str, typer.Option(help="The unique key its producer gave it.")] = "",
    id_: Annotated[str, typer.Option("--id", help="The message id (32 or 56 hex digits).")] = "",
    since: Annotated[str | None, typer.Option(help="Start time: 10m, 2h, ISO or ms.")] = None,
    until: Annotated[str | None, typer.Option(help="End time: as --since.")] = None,
    max_: Annotated[
        int,
        typer.Option(
            "--max", min=1, max=output.INT_MAX, help="Maximum number of messages (64 by key)."
        ),
    ] = 32,
    template: Annotated[str | None, Format] = None,
    proto: Annotated[str, Proto] = "",
) -> None:
    """Find messages by key, unique key, id, or time (--since alone)."""
    if not (key or unique_key or id_ or since):
        output.fail(
            "give one of --key, --unique-key, --id or --since",
            "duolog msg find TOPIC --key KEY | --unique-key K | --id ID | --since 10m",
        )
    printer = Printer(output.wants_json(), template, proto)
    begin = output.when(since) if since else 0
    end = output.when(until) if until else 0

    from duolog_server.ops.inspection.messages.finding import by_time

    async def work(client: "Client") -> "Sequence[Shown]":
        if not (key or unique_key or id_):
            return await by_time(client, topic, begin, end, max_)
        return await _unless_none(
            client.admin.find(
                topic,
                key=key,
                unique_key=unique_key,
                message_id=id_,
                count=max_,
                begin_ms=begin,
                end_ms=end,
            )
        )

    found = asked(work)
    for message in found:
        printer.message(message)
    if not found and not output.wants_json():
        output.say(NOTHING)


@calls(app)
def track(
    topic: str,
    key: Annotated[str, typer.Option(help="A key of the message.")] = "",
    unique_key: Annotated[str, typer.Option(help="The unique key its producer gave it.")] = "",
) -> None:
    """Trace messages: sent, delayed, stored, and what every consumer group did."""
    if not (key or unique_key):
        output.fail(
            "give --key or --unique-key", "duolog msg track TOPIC --key KEY | --unique-key K"
        )

    from duolog_server.ops.inspection.messages.finding import client_records

    async def work(client: "Client") -> "list[tuple[TrackedMessage, list[TraceRecord]]]":
        messages = await _unless_none(client.admin.track_key(topic, key or unique_key))
        return [(one, await client_records(client, one.unique_key)) for one in messages]

    found = asked(work)
    if output.wants_json():
        output.print_json([way.as_json(*one) for one in found])
        return
    output.print_rows([row for one in found for row in way.rows(*one)], way.COLUMNS, False)
    if not found:
        output.say(NOTHING)


waiting.add_to(app)


@calls(app)
def tail(
    topic: str,
    tags: Annotated[
        list[str] | None, typer.Option(help="Only messages with this tag (repeatable).")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Start time: 10m, 2h, ISO or ms.")] = None,
    from_: Annotated[
        str,
        typer.Option("--from", help=f"Start at {PLACE}, and show that queue alone."),
    ] = "",
    max_: Annotated[
        int | None, typer.Option("--max", min=1, help="Stop after this many messages.")
    ] = None,
    template: Annotated[str | None, Format] = None,
    proto: Annotated[str, Proto] = "",
) -> None:
    """Show messages of all queues as they arrive, without a group."""
    printer = Printer(output.wants_json(), template, proto)
    from duolog import Start

    if since and from_:
        output.fail("give --since or --from, not both", output.help_of())
    begin = output.when(since) if since else Start.LATEST
    place = read_place(from_, "duolog group show GROUP --json") if from_ else None

    shown: list[int] = []

    async def follow(client: "Client", queue: tuple[str, int], start: "Start | int") -> None:
        group, queue_id = queue
        if place is not None:
            offset = place.offset
        else:
            offset = await client.admin.offset_at_time(topic, queue_id, start, group=group)
        while max_ is None or len(shown) < max_:
            batch = await client.pull(
                topic, queue_id, offset, wait=20.0, tags=tags or [], group=group
            )
            for message in batch:
                if tags and message.tags not in tags:
                    continue
                if max_ is not None and len(shown) >= max_:
                    return
                shown.append(1)
                printer.message(message)
                sys.stdout.flush()
            offset = batch.next_offset

    async def work(client: "Client") -> None:
        import asyncio

        from duolog import Retryable
        from duolog._background import together

        from duolog_server.ops.inspection.topics import parts_of

        parts, start = await parts_of(client, topic), begin
        following: dict[tuple[str, int], asyncio.Task[None]] = {}
        async with together() as tasks:
            while True:
                found = [(part.group, queue.queue_id) for part in parts for queue in part.stats]
                for queue in found if place is None else [(place.replica_group, place.queue_id)]:
                    if queue not in following:
                        following[queue] = tasks.create_task(follow(client, queue, start))
                done, _ = await asyncio.wait(
                    following.values(),
                    timeout=LOOK_SECONDS if place is None else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if done:
                    break
                start = Start.EARLIEST  # a queue that is new, or moved, is shown from its first
                with suppress(Retryable):
                    parts = await parts_of(client, topic)
            for task in following.values():  # as many were shown as were asked for
                task.cancel()

    asked(work)
