"""A message as commands print it: a line, a template filled in, or JSON."""

import base64
import sys
from typing import TYPE_CHECKING, cast

import typer

from duolog_server.ops.cli.output import fail, plain, print_json
from duolog_server.ops.inspection.messages.protobodies import (
    BadBody,
    BadDescriptors,
    ProtoType,
    as_json,
)
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog import FoundMessage, Message

    Shown = Message | FoundMessage

Fields = dict[str, object]
Format = typer.Option(
    "--format", "-f", help=r"Template: {topic} {queue_id} {queue_offset} {tags} {keys} {body} ..."
)
Proto = typer.Option(
    "--proto",
    metavar="FILE:TYPE",
    help="Show bodies as Protobuf; FILE is made by protoc --include_imports --descriptor_set_out.",
)


class Printer:
    """Prints messages as the options of a command say."""

    def __init__(self, as_json: bool, template: str | None, proto: str = "") -> None:
        """proto: FILE:TYPE; empty: bodies are text. It fails the command where it is wrong."""
        self._as_json = as_json
        self._template = template
        try:
            self._type = ProtoType.of(proto) if proto else None
        except BadDescriptors as error:
            fail(f"--proto {proto}: {error}", "--proto FILE:TYPE")

    def message(self, message: "Shown") -> None:
        """Print a message."""
        self.show(self.fields(message))

    def fields(self, message: "Shown") -> Fields:
        """The printed fields of a message, without a reference to its batch."""
        properties = dict(message.properties)
        return {
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "physical_offset": message.physical_offset,
            "store_time": message.store_time_ms,
            "born_time": message.born_time_ms,
            "unique_key": properties.pop("UNIQ_KEY", ""),
            "tags": properties.pop("TAGS", ""),
            "keys": properties.pop("KEYS", ""),
            "properties": properties,
            **({"message_id": message.message_id} if hasattr(message, "message_id") else {}),
            **self._body(message.body),
        }

    def show(self, fields: Fields) -> None:
        """Print what `fields` gave."""
        if self._as_json:
            print_json(fields)
            return
        body = fields.setdefault("body", f"base64:{fields.get('body_base64')}")
        if isinstance(body, dict):
            fields["body"] = as_json(body)
        terminal = sys.stdout.isatty()
        line = str(fields["body"])
        if self._template is not None:
            line = _filled(self._template, fields)
        elif terminal:
            tags = f" [{fields['tags']}]" if fields["tags"] else ""
            place = f"{fields['topic']}/{fields['queue_id']}@{fields['queue_offset']}"
            line = f"{iso(cast(int, fields['store_time']))} {place}{tags} {line}"
        print(plain(line, kept="\n\t") if terminal else line)

    def _body(self, body: bytes) -> Fields:
        if self._type is not None:
            try:
                return {"body": self._type.value(body)}
            except BadBody as error:
                return {"body_base64": base64.b64encode(body).decode(), "body_error": str(error)}
        try:
            return {"body": body.decode()}
        except UnicodeDecodeError:
            return {"body_base64": base64.b64encode(body).decode()}


def _filled(template: str, fields: Fields) -> str:
    """A template with the fields of a message; it fails the command where it is wrong."""
    try:
        return template.format(**fields)
    except (KeyError, IndexError) as error:
        fail(f"template {template!r}: unknown field {error}", "fields: " + ", ".join(fields))
    except (ValueError, AttributeError, TypeError) as error:
        fail(f"template {template!r}: {error}", "fields: " + ", ".join(fields))
