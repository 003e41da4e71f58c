"""Which start of a directory this is: what tells a directory from an older copy of it.

Every start that the registry notes replaces the one before it, in a row of its replica. A start is
marked in the directory before it is claimed there, so a directory knows the row that it has left;
a copy that was made before that does not, however often it was started since. What was
acknowledged after the copy was made is not in it.

| the registry's row of this replica | this start |
|------------------------------------|------------|
| none | claims its number: the row is made if there is still none |
| this start | is claimed |
| a start that is marked here | follows it: the row is replaced if it is as it was read |
| a lower number than the first mark's | follows one that the registry has forgotten: as above |
| any other | is an older copy, or a second process |

A claim without an answer may be made later: it fails then, because the row has changed, or its mark
is here. A directory of an earlier version has no marks: all numbers that it has counted until then
are its own.
"""

import enum
import json
from dataclasses import dataclass

MARKS_MAX = 8  # one more is made by each process whose claim gets no answer
ANY_RUN = ""  # in a first mark: whoever has claimed that number, or a lower one


class Claim(enum.Enum):
    """What a row of the registry says of a start."""

    UNCLAIMED = "unclaimed"
    CLAIMED = "claimed"
    OLDER = "older"


@dataclass(frozen=True, slots=True)
class Start:
    """number: counts the starts of the directory. run: random, tells two processes apart."""

    number: int
    run: str

    def to_bytes(self) -> bytes:
        """As JSON."""
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
        """How this start stands to the row that the registry holds."""
        if row == self:
            return Claim.CLAIMED
        if row is None or row in marks or _is_forgotten(row, marks):
            return Claim.UNCLAIMED
        return Claim.OLDER

    def marked(self, row: "Start | None", marks: "Marks") -> "Marks":
        """The marks to have on the disk before this start is claimed in the place of a row.

        Claims that were sent before that row was made fail, and those after it may still be made.
        One that finds no room is forgotten: where it is made all the same, this directory passes
        for an older copy of itself, which costs time and no message.
        """
        if row is not None and row in marks:
            marks = marks[marks.index(row) :]
        first = marks[:1] or (Start(0, ANY_RUN),)
        return (*first, *marks[1:][-(MARKS_MAX - 2) :], self)


# Of one directory: first a start that the registry has had, then those that were claimed after it,
# whose answers are not known to have come.
Marks = tuple[Start, ...]


def _is_forgotten(row: Start, marks: Marks) -> bool:
    """The registry was restored from a backup, and has had a later start of this directory."""
    if not marks:
        return False
    first = marks[0]
    return row.number < first.number or (row.number == first.number and first.run == ANY_RUN)
