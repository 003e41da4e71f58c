"""A half message is committed or rolled back by an operator, in the place of its producer."""

from collections.abc import Mapping

from duolog import BadRequest, HalfMessage

from duolog_server.node.runtime.numerals import number_of
from duolog_server.ops.console.actions.asking import Field, Question, confirmed
from duolog_server.ops.console.view.addresses import HALVES, address
from duolog_server.ops.console.view.formatting import command, number, size
from duolog_server.ops.console.view.visits import Action, Done, Shown, Visit
from duolog_server.ops.inspection.messages.places import OFFSET_MAX
from duolog_server.ops.inspection.times import iso

COMMIT, ROLLBACK = "commit", "rollback"
_WHAT = {
    COMMIT: "It is stored in its topic, and every group there gets it.",
    ROLLBACK: "No consumer ever gets it.",
}
_DONE = {COMMIT: "committed", ROLLBACK: "rolled back"}


def _decision_of(words: Mapping[str, str]) -> str:
    """Raises BadRequest."""
    decision = words.get("decision", "")
    if decision not in _WHAT:
        raise BadRequest(f"{decision[:80]!r} is not a decision: give {COMMIT} or {ROLLBACK}")
    return decision


async def _message(visit: Visit) -> HalfMessage:
    """The half message that is asked about. Raises BadRequest, NoSuchMessage."""
    text = visit.path["half"]
    half = number_of(text, OFFSET_MAX)
    if half is None:
        raise BadRequest(f"{text[:80]!r} is not the offset of a half message")
    return await visit.client.admin.half(half, group=visit.path["group"])


async def _ask(visit: Visit) -> Shown:
    decision, found = _decision_of(visit.query), await _message(visit)
    return Question(
        f"{'Commit' if decision == COMMIT else 'Roll back'} a half message of {found.topic}",
        f"{_WHAT[decision]} The decision is final: the producer group {found.producer_group} "
        "can no longer decide otherwise. Find out first what the producer did.",
        "Commit" if decision == COMMIT else "Roll back",
        (Field("decision", "", decision, hidden=True),),
        type_to_confirm=found.topic,
        danger=True,
        heads=("Unique key", "Producer group", "Stored", "Checks", "Size"),
        preview=[
            (
                found.unique_key or "unknown",
                found.producer_group,
                iso(found.stored_ms) or "",
                number(found.checks),
                size(found.size),
            )
        ],
        command=command(
            "msg",
            "decide",
            names=[found.producer_group, f"{found.group}/0/{found.half}"],
            flags=[f"--{decision}"],
        ),
    ).shown()


async def _do(visit: Visit, form: Mapping[str, str]) -> Done:
    decision, found = _decision_of(form), await _message(visit)
    confirmed(form, found.topic)
    await visit.client.admin.decide_half(
        found.producer_group, found.half, commit=decision == COMMIT, group=found.group
    )
    return Done(
        f"Half message {found.group}/0/{found.half} of {found.topic} was {_DONE[decision]}.",
        address(HALVES),
    )


DECIDE = Action(_ask, _do)
