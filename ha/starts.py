"""Which start of a directory this is: what tells a directory from an older copy of it.

Every start counts up, in the directory first and then in the registry, in a row of its replica. A
copy that was made in an earlier run counts to a number that the registry has seen: what was
acknowledged since the copy was made is not in it.

| the registry's row of this replica | this start |
|------------------------------------|------------|
| none, or a lower number | claims its number: the row is replaced if it is as it was read |
| this number, of this process | is claimed |
| this number of another process, or a higher one | is an older copy, or a second process |

A crash between directory and registry leaves a gap in the numbers, and no harm. A claim without an
answer may be made later: it fails then, because the row has changed, or is this very claim.
"""

import enum
import json
from dataclasses import dataclass


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

    def against(self, row: "Start | None") -> Claim:
        """How this start stands to the row that the registry holds."""
        if row is None or row.number < self.number:
            return Claim.UNCLAIMED
        return Claim.CLAIMED if row == self else Claim.OLDER
