"""SQL92 expressions over message properties, as RocketMQ's consumers write them.

age > 18 AND (region IN ('east', 'west') OR vip = TRUE) AND name IS NOT NULL

Operators: = <> > >= < <=, [NOT] BETWEEN, [NOT] IN, IS [NOT] NULL, [NOT] CONTAINS / STARTSWITH /
ENDSWITH, AND, OR, NOT. Values: numbers, 'text' ('' for a quote), TRUE, FALSE, NULL. Properties are
texts; compared with a number, a numeric text counts as that number. As in SQL, an absent property
is NULL, a comparison with it is unknown, and a message matches only if the expression is true.
Source: RocketMQ's SelectorParser and its expressions.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from duolog import _errors as sdk

from duolog_server.node.filters.tagfilter import EVERYTHING, BadFilter, MessageFilter, TagFilter
from duolog_server.store.kernels.jit import EMPTY_I64, I64
from duolog_server.store.reader import GetResult
from duolog_server.store.record import decode_properties

LENGTH_MAX = 8192
DEPTH_MAX = 100
DIGITS_MAX = 1000  # of a number; Python reads no more than 4,300
AT_ONCE = 2000  # messages
SHORT_CHARACTERS = 512
SHORT_KEPT, LONG_KEPT = 256, 16  # parsed expressions, of up to 60 KiB and 1 MiB each
Value = str | float | int | bool | None
Properties = dict[str, str]
Expression = Callable[[Properties], Value]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?[lLfFdD]?)
    | (?P<text>'(?:[^']|'')*')
    | (?P<name>[A-Za-z_$][A-Za-z0-9_$.\-]*)
    | (?P<sign><>|>=|<=|!=|[=<>(),+\-])
    )""",
    re.VERBOSE,
)
_WORDS = frozenset(
    (
        "AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE",
        "CONTAINS", "STARTSWITH", "ENDSWITH",
    )
)  # fmt: skip
_COMPARISONS = ("=", "<>", "!=", ">", ">=", "<", "<=")
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # number, text, name, word or sign
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """An expression that can be parsed.

    What it was parsed to takes a hundred times the memory of its text, and thousands of calls may
    wait with one each: it is kept for those that were used last.
    """

    expression: str

    @staticmethod
    def parse(expression: str) -> "SqlFilter":
        """Read an expression. Raises BadFilter, which names the place."""
        if len(expression) > LENGTH_MAX:
            raise BadFilter(
                f"the expression has {len(expression)} characters, the limit is {LENGTH_MAX}"
            )
        evaluated(expression)
        return SqlFilter(expression)

    @property
    def codes(self) -> I64:
        """None: tags are not used."""
        return EMPTY_I64

    @property
    def at_once(self) -> int:
        """An expression takes microseconds."""
        return AT_ONCE

    def matches(self, properties: Properties) -> bool:
        """Whether the expression is true (not false or unknown)."""
        return evaluated(self.expression)(properties) is True

    def chosen(self, result: GetResult) -> GetResult:
        """The matching messages of a read."""
        if not result.count:
            return result
        evaluate = evaluated(self.expression)
        texts = (text.decode(errors="replace") for _, _, text in result.rows())
        keep = np.fromiter(
            (evaluate(decode_properties(text)) is True for text in texts), np.uint8, result.count
        )
        return result.chosen(keep)


def evaluated(expression: str) -> Expression:
    """Evaluate an expression for the properties of a message. Raises BadFilter."""
    return (_short if len(expression) <= SHORT_CHARACTERS else _long)(expression)


def _parsed(expression: str) -> Expression:
    return _Parser(_tokens(expression)).whole()


_short, _long = lru_cache(SHORT_KEPT)(_parsed), lru_cache(LONG_KEPT)(_parsed)


def _tokens(text: str) -> list[_Token]:
    found = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            if not text[at:].strip():
                break
            raise BadFilter(f"{text[at : at + 20].strip()!r} at {at} is not valid SQL92")
        kind, word = match.lastgroup, match[match.lastgroup]
        if kind == "name" and word.upper() in _WORDS:
            kind, word = "word", word.upper()
        found.append(_Token(kind, word, match.start(match.lastgroup)))
        at = match.end()
    return found


class _Parser:
    """Recursive descent; each method reads one kind of expression."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> Expression:
        found = self._or()
        if self._at < len(self._tokens):
            raise self._wrong("the end")
        return found

    def _wrong(self, wanted: str) -> BadFilter:
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            return BadFilter(f"{token.text!r} at {token.at}: expected {wanted}")
        return BadFilter(f"the expression ends where {wanted} is expected")

    def _take(self, *texts: str) -> str:
        """The next token, if it is one of these words or signs; else nothing."""
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.kind in ("word", "sign") and token.text in texts:
                self._at += 1
                return token.text
        return ""

    def _must(self, text: str) -> None:
        if not self._take(text):
            raise self._wrong(repr(text))

    def _or(self) -> Expression:
        parts = [self._and()]
        while self._take("OR"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else _until(True, parts)

    def _and(self) -> Expression:
        parts = [self._not()]
        while self._take("AND"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else _until(False, parts)

    def _not(self) -> Expression:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise BadFilter(f"the expression is nested deeper than {DEPTH_MAX} levels")
        try:
            if self._take("NOT"):
                return _negated(self._not())
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Expression:
        left = self._operand()
        sign = self._take(*_COMPARISONS)
        if sign:
            return _compared(left, sign, self._operand())
        if self._take("IS"):
            negate = bool(self._take("NOT"))
            self._must("NULL")
            return _is_null(left, negate)
        negate = bool(self._take("NOT"))
        found = self._range_or_text(left)
        if found is None:
            if negate:
                raise self._wrong("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
            return left
        return _negated(found) if negate else found

    def _range_or_text(self, left: Expression) -> Expression | None:
        if self._take("BETWEEN"):
            low = self._operand()
            self._must("AND")
            high = self._operand()
            return _until(False, [_compared(left, ">=", low), _compared(left, "<=", high)])
        if self._take("IN"):
            self._must("(")
            values = [self._text("a string")]
            while self._take(","):
                values.append(self._text("a string"))
            self._must(")")
            return _in(left, frozenset(values))
        test = self._take(*_TEXT_TESTS)
        if test:
            return _text_test(left, _TEXT_TESTS[test], self._text("a string"))
        return None

    def _text(self, wanted: str) -> str:
        if self._at < len(self._tokens) and self._tokens[self._at].kind == "text":
            self._at += 1
            return self._tokens[self._at - 1].text[1:-1].replace("''", "'")
        raise self._wrong(wanted)

    def _operand(self) -> Expression:
        if self._take("("):
            inner = self._or()
            self._must(")")
            return inner
        sign = self._take("+", "-")
        if self._at >= len(self._tokens):
            raise self._wrong("a value")
        token = self._tokens[self._at]
        if token.kind == "number":
            self._at += 1
            if len(token.text) > DIGITS_MAX:
                raise BadFilter(
                    f"the number at {token.at} has {len(token.text)} digits, "
                    f"the limit is {DIGITS_MAX}"
                )
            number = _number(token.text)
            return _constant(-number if sign == "-" else number)
        if sign:
            raise self._wrong("a number")
        if token.kind == "text":
            return _constant(self._text("a string"))
        if token.kind == "name":
            self._at += 1
            return _property(token.text)
        for word, value in (("TRUE", True), ("FALSE", False), ("NULL", None)):
            if self._take(word):
                return _constant(value)
        raise self._wrong("a value")


def _number(text: str) -> float | int:
    plain = text.rstrip("lLfFdD")
    value: float | int = int(plain) if plain.isdecimal() else float(plain)
    return value


def _as_number(value: Value) -> float | int | None:
    """The value of a number or a numeric text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            return _number(value) if value.isdecimal() else float(value)
        except ValueError:
            return None
    return value


def _constant(value: Value) -> Expression:
    return lambda _: value


def _property(name: str) -> Expression:
    return lambda properties: properties.get(name)


def _until(decides: bool, parts: list[Expression]) -> Expression:
    """The first part with this value decides: OR for True, AND for False."""

    def evaluate(properties: Properties) -> Value:
        unknown = False
        for part in parts:
            value = part(properties)
            if value is decides:
                return decides
            unknown = unknown or not isinstance(value, bool)
        return None if unknown else not decides

    return evaluate


def _negated(part: Expression) -> Expression:
    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        return not value if isinstance(value, bool) else None

    return evaluate


def _is_null(part: Expression, negate: bool) -> Expression:
    return lambda properties: (part(properties) is None) != negate


def _in(part: Expression, values: frozenset[str]) -> Expression:
    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        return None if value is None else value in values

    return evaluate


def _text_test(part: Expression, test: Callable[[str, str], bool], wanted: str) -> Expression:
    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        return test(value, wanted) if isinstance(value, str) and wanted else None

    return evaluate


def _compared(left: Expression, sign: str, right: Expression) -> Expression:
    def evaluate(properties: Properties) -> Value:
        return _compare(left(properties), sign, right(properties))

    return evaluate


def _compare(a: Value, sign: str, b: Value) -> bool | None:
    """SQL's comparison: None for unknown."""
    if a is None or b is None:
        return None
    if isinstance(a, bool) or isinstance(b, bool):
        return _equality(_as_bool(a), sign, _as_bool(b))
    if isinstance(a, str) and isinstance(b, str):
        return _equality(a, sign, b)
    x, y = _as_number(a), _as_number(b)
    if x is None or y is None:
        return None
    match sign:
        case "=":
            return x == y
        case "<>" | "!=":
            return x != y
        case ">":
            return x > y
        case ">=":
            return x >= y
        case "<":
            return x < y
        case _:
            return x <= y


def _as_bool(value: Value) -> Value:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value


def _equality(a: Value, sign: str, b: Value) -> bool | None:
    """Texts and truth values can only be equal or not; they have no order."""
    if a is None or b is None or isinstance(a, bool) != isinstance(b, bool):
        return None
    if sign == "=":
        return a == b
    if sign in ("<>", "!="):
        return a != b
    return None


# The filter that a client of the native API requests: by tags or by SQL.
def wanted(tags: Sequence[str], sql: str) -> MessageFilter:
    """The filter; without tags and SQL it matches everything. Raises BadRequest."""
    try:
        if tags and sql:
            raise sdk.BadRequest("filter messages by tags or by SQL, not by both")
        if sql:
            return SqlFilter.parse(sql)
        return TagFilter.of(tags) if tags else EVERYTHING
    except BadFilter as error:
        raise sdk.BadRequest(str(error)) from None
