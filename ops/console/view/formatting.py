"""Numbers and texts as people read them: grouped, with units. Pure."""

import re
import shlex
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

THIN = "\u202f"  # a narrow space that does not break
_SIZES = ("B", "KB", "MB", "GB", "TB", "PB")
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_LATIN = "LATIN"
_ALIKE = {_LATIN, "ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "GREEK", "LISU"}
_TOLD = 8  # letters of one text
KEPT = "\n\t"  # of the characters that are not seen, those that people type
# Controls, and what is not seen or turns the direction of text. Joiners are letters of scripts.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def number(value: int) -> str:
    """12 345."""
    return f"{value:,}".replace(",", THIN)


def size(value: float) -> str:
    """Bytes: 999 B, 1.2 GB; powers of 1,000, as disks and networks count."""
    unit = 0
    while abs(value) >= 999.5 and unit < len(_SIZES) - 1:
        value /= 1000
        unit += 1
    digits = 1 if unit and abs(value) < 99.95 else 0
    return f"{value:.{digits}f}{THIN}{_SIZES[unit]}"


def si(value: float) -> str:
    """84.1 k."""
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * factor:
            shown = value / factor
            return f"{shown:.{1 if shown < 99.95 else 0}f}{THIN}{unit}"
    return f"{value:.{1 if 0 < value < 9.95 else 0}f}"


def rate(per_second: float) -> str:
    """84.1 k/s."""
    return f"{si(per_second)}/s"


def duration(ms: float) -> str:
    """How long: 0.4 s, 14 s, 5 min, 61 h, 12 d."""
    if ms < 10 * _SECOND:
        return f"{ms / _SECOND:.1f}{THIN}s"
    if ms < 2 * _MINUTE:
        return f"{ms / _SECOND:.0f}{THIN}s"
    if ms < 2 * _HOUR:
        return f"{ms / _MINUTE:.0f}{THIN}min"
    if ms < 3 * _DAY:
        return f"{ms / _HOUR:.0f}{THIN}h"
    return f"{ms / _DAY:.0f}{THIN}d"


def pause(ms: int) -> str:
    """How long something stalled: 60 ms, 0.9 s, then as `duration`."""
    return f"{ms}{THIN}ms" if ms < _SECOND / 10 else duration(ms)


def latency(seconds: float) -> str:
    """0.31 ms, 3.1 ms, 31 ms, then as `duration`."""
    ms = 1000 * seconds
    if ms >= _SECOND:
        return duration(ms)
    return f"{ms:.{2 if 0 < ms < 0.995 else 1 if 0 < ms < 9.95 else 0}f}{THIN}ms"


def percent(share: float) -> str:
    """41 %."""
    return f"{100 * share:.0f}{THIN}%"


def counted(count: int, noun: str) -> str:
    """1 message, 2 messages, 2 entries."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number(count)} {noun if count == 1 else plural}"


def listed(names: list[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def sentence(text: str) -> str:
    """A text of an error, as a sentence. It may begin with a name, which stays as it is."""
    return f"{text.rstrip('.')}."


def spaced(name: str) -> str:
    """NoSuchMessage as No such message."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip().capitalize()


def moment(ms: int) -> str:
    """2026-11-28 20:19:04.118 UTC; the number, where no calendar has it."""
    try:
        found = datetime.fromtimestamp(ms // _SECOND, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms since 1970"
    return f"{found:%Y-%m-%d %H:%M:%S}.{ms % _SECOND:03d} UTC"


def visible(text: str) -> str:
    """A text with a sign in the place of each character that is not seen, as ⟨U+202E⟩."""
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def told_apart(text: str) -> str:
    """A text. Where it mixes scripts whose letters look alike: with the code points of those that
    are not Latin, as bоss (о U+043E).
    """
    if text.isascii():
        return text
    scripts = {letter: unicodedata.name(letter, "").partition(" ")[0] for letter in text}
    if len(_ALIKE.intersection(scripts.values())) < 2:
        return text
    others = [letter for letter, script in scripts.items() if script in _ALIKE - {_LATIN}]
    return f"{text} ({', '.join(f'{one} U+{ord(one):04X}' for one in others[:_TOLD])})"


def command(*words: str, names: Sequence[str] = (), flags: Sequence[str] = ()) -> str:
    """A duolog command quoted for a shell.

    names: its arguments, which nobody must read as options. What producers send may be a word of
    it: characters that a terminal or a shell would obey, or that are not seen, are escaped, as bash
    and zsh read them.
    """
    if any(name.startswith("-") for name in names):
        words = (*words, *flags, "--", *names)
    else:
        words = (*words, *names, *flags)
    return " ".join(("duolog", *map(_quoted, words)))


def _quoted(word: str) -> str:
    if all(one.isprintable() or one in KEPT for one in word):
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\U{code:08x}"
