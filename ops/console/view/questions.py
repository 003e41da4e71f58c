"""Forms of actions: what they ask, and how their answers are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duolog import BadRequest

from duolog_server.node.runtime.numerals import number_of
from duolog_server.ops.console.view.visits import Shown

INT_MAX = (1 << 31) - 1
PREVIEW_ROWS_MAX = 500


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form. choices: values and their labels, for a selection; empty for a text.
    hidden: its value is what the page is about. lines: of a text that may have several; 0: it has
    one.
    """

    name: str
    label: str
    value: str = ""
    hint: str = ""
    choices: Sequence[tuple[str, str]] = ()
    hidden: bool = False
    lines: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """The confirmation that an action asks for.

    sentence: what it would do. button: empty where only a preview is asked for. fields: of its
    form. previewed: they are chosen before, for a preview. type_to_confirm: a name that must be
    typed; empty: none. preview: rows that say what it would do in detail, below their heads.
    PREVIEW_ROWS_MAX of them are shown.
    """

    title: str
    sentence: str
    button: str
    fields: Sequence[Field] = ()
    previewed: bool = False
    type_to_confirm: str = ""
    danger: bool = False
    heads: Sequence[str] = ()
    preview: Sequence[Sequence[str]] = ()
    command: str = ""

    def shown(self) -> Shown:
        """The page of the form."""
        facts = {
            "sentence": self.sentence,
            "question": self,
            "preview": self.preview[:PREVIEW_ROWS_MAX],
            "hidden": max(0, len(self.preview) - PREVIEW_ROWS_MAX),
        }
        return Shown("action.html", self.title, facts, self.command)


def confirmed(form: Mapping[str, str], name: str) -> None:
    """Raises BadRequest where the name was not typed."""
    if form.get("confirm", "").strip() != name:
        raise BadRequest(f"type {name} to confirm")


def whole_number(form: Mapping[str, str], name: str, least: int, most: int = INT_MAX) -> int:
    """A number of a form. Raises BadRequest."""
    text = form.get(name, "").strip()
    number = number_of(text, most)
    if number is None or number < least:
        raise BadRequest(f"{name} is {text!r}; it must be a number from {least} to {most}")
    return number
