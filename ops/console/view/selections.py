"""Rows of a list that somebody selects: check boxes.

Rules: each box has what it stands for in its name, not in its value: a form's words are read into a
mapping, which has one value of each name. A form that has boxes says so: with none of them checked
it would look like a page that was opened without a form.
"""

from collections.abc import Mapping

from duolog import BadRequest

from duolog_server.ops.inspection.messages.places import Place, place_of

CHOSEN = "letter:"  # before the place in the name of a check box
SELECTED = "selected"  # the form has check boxes


def box_of(place: Place) -> str:
    """The name of a check box."""
    return f"{CHOSEN}{place}"


def chosen(query: Mapping[str, str]) -> list[Place]:
    """The places that somebody selected; none where there was nothing to select from.

    Raises BadRequest.
    """
    names = [name.removeprefix(CHOSEN) for name in query if name.startswith(CHOSEN)]
    if SELECTED in query and not names:
        raise BadRequest("no dead letter is selected")
    return sorted({place_of(name) for name in names})
