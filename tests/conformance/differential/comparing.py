"""Notes of two sides beside each other, and the differences that are known."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

CODE = ": code"
ABSENT = "-"  # where a side has no such note


@dataclass(frozen=True, slots=True)
class Difference:
    """One note that is not the same."""

    name: str
    theirs: str
    ours: str

    def __str__(self) -> str:
        return f"{self.name}: RocketMQ {self.theirs!r}, here {self.ours!r}"


@dataclass(frozen=True, slots=True)
class Known:
    """A difference that docs/remoting.md explains. names, theirs, ours: with `*` for any text.

    Attributes:
        row: the beginning of the row of its table that explains it.
        version: of RocketMQ by its first digit; empty: of all.
    """

    row: str
    names: str
    theirs: str
    ours: str
    version: str = ""

    def is_of(self, found: Difference) -> bool:
        """Whether it is this difference."""
        texts = ((found.name, self.names), (found.theirs, self.theirs), (found.ours, self.ours))
        return all(fnmatchcase(text, _literal(pattern)) for text, pattern in texts)


def _literal(pattern: str) -> str:
    """Only `*` is special."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[Difference]:
    """What is not the same. Of a request whose codes are different only these are told."""
    names = sorted(theirs.keys() | ours.keys())
    found = [
        Difference(name, theirs.get(name, ABSENT), ours.get(name, ABSENT))
        for name in names
        if theirs.get(name) != ours.get(name)
    ]
    ended = [one.name.removesuffix(CODE) for one in found if one.name.endswith(CODE)]
    skipped = tuple(name + end for name in ended for end in (": ", ", "))
    return [one for one in found if one.name.endswith(CODE) or not one.name.startswith(skipped)]


def unknown(found: Iterable[Difference], known: Sequence[Known]) -> list[str]:
    """Differences that are not known, and known ones that were not found."""
    rest, used = [], set()
    for one in found:
        row = next((row for row in known if row.is_of(one)), None)
        if row is None:
            rest.append(str(one))
        else:
            used.add(row)
    return rest + [f"no difference any more: {row}" for row in known if row not in used]


__all__ = ["Difference", "Known", "differences", "unknown"]
