"""Which start of a directory this is: it distinguishes a directory from an older copy of it.

Every start that the registry records replaces the previous one in the entry of its replica. A start
is marked in the directory before it is claimed in the registry, so a directory recognises the entry
that it wrote; a copy that was made earlier does not, however often it was started since. The copy
lacks the messages that were acknowledged after it was made.

| the registry's entry of this replica | this start |
|--------------------------------------|------------|
| does not exist | claims its number: the entry is created if it still does not exist |
| this start | is claimed |
| a start that is marked here | follows it: the entry is replaced if it is as it was read |
| a lower number than the first mark's | follows one that the registry has forgotten: as above |
| any other | is an older copy, or a second process |

A claim without an answer may be applied later: it then fails because the entry has changed, or its
mark is here. A directory of an earlier version has no marks: all numbers that it has counted until
then are its own.
"""

import enum
import json
from dataclasses import dataclass

MARKS_MAX = 8  # one more is made by each process whose claim gets no answer
ANY_RUN = ""  # in a first mark: any start with that number or a lower one


class Claim(enum.Enum):
    """A start, as the registry records it."""

    UNCLAIMED = "unclaimed"
    CLAIMED = "claimed"
    OLDER = "older"


@dataclass(frozen=True, slots=True)
class Start:
    """number: counts the starts of the directory. run: random, distinguishes two processes."""

    number: int
    run: str

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        return json.dumps({"number": self.number, "run": self.run}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Start":
        """Raises ValueError."""
        try:
            value = json.loads(data)
            return cls(int(value["number"]), str(value["run"]))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"cannot read a start: {error}") from error

    def against(self, row: "Start | None", marks: "Marks") -> Claim:
        """The relation of this start to the entry that the registry holds."""
        if row == self:
            return Claim.CLAIMED
        if row is None or row in marks or _is_forgotten(row, marks):
            return Claim.UNCLAIMED
        return Claim.OLDER

    def marked(self, row: "Start | None", marks: "Marks") -> "Marks":
        """The marks to save before this start is claimed in place of an entry.

        Claims that were sent before that entry was written fail; later ones may still be applied.
        A mark that finds no room is dropped: if its claim is applied nevertheless, this directory
        counts as an older copy of itself, which costs time but no message.
        """
        if row is not None and row in marks:
            marks = marks[marks.index(row) :]
        first = marks[:1] or (Start(0, ANY_RUN),)
        return (*first, *marks[1:][-(MARKS_MAX - 2) :], self)


# Of one directory: first a start that the registry has held, then the starts claimed after it whose
# answers have not arrived.
Marks = tuple[Start, ...]


def _is_forgotten(row: Start, marks: Marks) -> bool:
    """The registry was restored from a backup, and has had a later start of this directory."""
    if not marks:
        return False
    first = marks[0]
    return row.number < first.number or (row.number == first.number and first.run == ANY_RUN)
