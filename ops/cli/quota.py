"""`duolog quota`: list, set, delete the quotas of users, client addresses, topics, namespaces."""

from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls

if TYPE_CHECKING:
    from duolog import Quota

app = typer.Typer(no_args_is_help=True)

Subject = typer.Argument(
    metavar="SUBJECT",
    help="User:NAME, Client:ADDRESS, Topic:NAME or Namespace:NAME; with the name * every one "
    "without a quota of its own.",
)
LIMITS = ("bytes_in", "messages_in", "bytes_out", "messages_out", "connections", "topics")
DIGITS_MAX = 30  # the node says which numbers a limit may have
UNITS = {"k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def amount(text: str) -> int:
    """The number that a text stands for: 5000, 5k, 10Mi; `none` is 0. Raises BadParameter."""
    word = text.strip().lower()
    if word == "none":
        return 0
    digits = word.rstrip("kmgi")
    unit = word[len(digits) :]
    if not digits.isdecimal() or len(digits) > DIGITS_MAX or (unit and unit not in UNITS):
        raise typer.BadParameter(
            f"{output.shortened(text)!r} is not a number such as 5000, 5k or 10Mi, nor `none`"
        )
    return int(digits) * UNITS.get(unit, 1)


def _limit(help_: str) -> object:
    return typer.Option(parser=amount, metavar="NUMBER", help=help_)


def _row(quota: "Quota") -> dict[str, object]:
    limits = {name: getattr(quota, name) or "none" for name in LIMITS}
    return {"subject": quota.subject, **limits, "burst_ms": quota.burst_ms}


@calls(app, "list")
def list_() -> None:
    """List all quotas."""
    output.print_rows(
        map(_row, asked(lambda client: client.admin.quotas())),
        ["subject", *LIMITS, "burst_ms"],
    )


@calls(app, "set")
def set_(
    subject: Annotated[str, Subject],
    bytes_in: Annotated[int | None, _limit("Bytes that may be sent in a second.")] = None,
    messages_in: Annotated[int | None, _limit("Messages that may be sent in a second.")] = None,
    bytes_out: Annotated[int | None, _limit("Bytes that may be read in a second.")] = None,
    messages_out: Annotated[int | None, _limit("Messages that may be read in a second.")] = None,
    connections: Annotated[
        int | None, _limit("Connections of a user or an address with one node.")
    ] = None,
    topics: Annotated[int | None, _limit("Topics that a user created, or of a namespace.")] = None,
    burst_ms: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How much of a rate passes at once after a pause [1000].",
        ),
    ] = None,
) -> None:
    """Set limits: 5000, 5k, 10Mi, or `none` for no limit. Those that are not named stay."""
    named = {
        "bytes_in": bytes_in,
        "messages_in": messages_in,
        "bytes_out": bytes_out,
        "messages_out": messages_out,
        "connections": connections,
        "topics": topics,
        "burst_ms": burst_ms,
    }
    limits = {name: value for name, value in named.items() if value is not None}
    if not limits:
        output.fail("no limit is named", output.help_of())

    output.print_facts(_row(asked(lambda client: client.admin.put_quota(subject, **limits))))


@calls(app)
def delete(
    subject: Annotated[str, Subject],
    yes: Annotated[bool, output.Yes] = False,
) -> None:
    """Take all limits from a subject."""
    output.confirm(f"Delete the quota of {subject}?", yes)

    asked(lambda client: client.admin.delete_quota(subject))
    output.told({"deleted": subject}, f"deleted the quota of {subject}")
