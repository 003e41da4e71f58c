"""Which bodies are hidden, and which values in them are replaced.

Rules: all rules that match a topic count together, and hidden is the strongest. Names are compared
in any case, and as Unicode takes them for the same. What is not understood is hidden: values are
replaced only in a JSON object or array, or in a Protobuf message of a known type.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from duolog_server.node.runtime.config import MASK_RULE
from duolog_server.ops.inspection.messages.protobodies import UNNAMED as MASK

HIDDEN = "hidden"
ROOT = "$."
_WORDS = re.compile(r"[A-Za-z_$][\w$.\-]*")  # as nodes read names in SQL
_EXTENSION = re.compile(r"\[(?:[^][]*\.)?([^][.]+)\]")  # of Protobuf: [shop.card]


class BadMask(ValueError):
    """A text is not a masking rule; the error shows the format."""


def _folded(name: str) -> str:
    """A name as it is compared with others: an accent may be a character of its own."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask for a topic's messages. names: of fields, at any depth, and of properties.
    paths: of fields, from the outermost object on.
    """

    hidden: bool = False
    names: frozenset[str] = frozenset()
    paths: frozenset[tuple[str, ...]] = frozenset()

    def __bool__(self) -> bool:
        """Whether anything is not shown."""
        return self.hidden or bool(self.names or self.paths)

    def value(self, value: object) -> object:
        """A value of JSON with its masked ones replaced. Raises RecursionError."""
        return self._within(value, ())

    def properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Properties with the masked ones replaced."""
        return {
            name: MASK if _folded(name) in self.names else value
            for name, value in properties.items()
        }

    def names_in(self, expression: str) -> list[str]:
        """Words of an SQL expression that are masked: what matches would tell their values."""
        return [word for word in _WORDS.findall(expression) if _folded(word) in self.names]

    def _within(self, value: object, path: tuple[str, ...]) -> object:
        if isinstance(value, dict):
            return {name: self._field(str(name), one, path) for name, one in value.items()}
        if isinstance(value, list):
            return [self._within(one, path) for one in value]
        return value

    def _field(self, name: str, value: object, path: tuple[str, ...]) -> object:
        folded = _folded(_EXTENSION.sub(r"\1", name))
        here = (*path, folded)
        return MASK if folded in self.names or here in self.paths else self._within(value, here)


@dataclass(frozen=True, slots=True)
class Rule:
    """pattern: of topics, with * and ?."""

    pattern: str
    mask: Mask

    @staticmethod
    def of(text: str) -> "Rule":
        """TOPIC=hidden or TOPIC=FIELD[,FIELD...]. Raises BadMask.

        FIELD: a name at any depth, or a path: $.name, or name.name.
        """
        if not re.fullmatch(MASK_RULE, text):
            raise BadMask(f"{text!r} is not of the form TOPIC=hidden or TOPIC=FIELD[,FIELD...]")
        pattern, _, rest = text.partition("=")
        fields = [_folded(word.strip()) for word in rest.split(",")]
        paths = {tuple(field.removeprefix(ROOT).split(".")) for field in fields if "." in field}
        names = {field for field in fields if "." not in field} - {HIDDEN}
        mask = Mask(HIDDEN in fields, frozenset(names), frozenset(paths))
        return Rule(pattern.strip(), mask)


@dataclass(frozen=True, slots=True)
class Masks:
    """The rules of a console."""

    rules: Sequence[Rule] = ()

    @staticmethod
    def of(texts: Iterable[str]) -> "Masks":
        """Read the masks of the configuration. Raises BadMask."""
        return Masks([Rule.of(text) for text in texts])

    def mask_of(self, topics: Iterable[str]) -> Mask:
        """The mask for messages that belong to some topics."""
        names = list(topics)
        found = [
            rule.mask
            for rule in self.rules
            if any(fnmatchcase(name, rule.pattern) for name in names)
        ]
        return Mask(
            any(mask.hidden for mask in found),
            frozenset[str]().union(*(mask.names for mask in found)),
            frozenset[tuple[str, ...]]().union(*(mask.paths for mask in found)),
        )


__all__ = ["HIDDEN", "MASK", "BadMask", "Mask", "Masks"]
