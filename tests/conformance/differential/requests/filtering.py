"""SQL92 expressions and tags: which messages of a list they select, and which cannot be parsed."""

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from tests.compat.remoting.client import records
from tests.conformance.differential.requests.pulling import check
from tests.conformance.differential.session import Session, properties, pull_fields

TOPIC = "F"
MESSAGES: dict[str, str] = {
    "A": properties(a=1, s="x"),
    "B": properties(a=2, s="y", TAGS="red"),
    "C": properties(a=3, s="x", TAGS="blue", KEYS="k"),
    "D": properties(a="1.5", s="X"),
    "E": properties(a=-1, s="it's"),
    "F": properties(a="abc", s=5),
    "G": properties(s="true", b="true"),
    "H": properties(b="false", a="9223372036854775807"),
    "I": properties(a="1e2", c="x y"),
    "J": properties(a="01", s=" x"),
    "K": properties(a="TRUE", s="xyz"),
    "L": "",
}
EXPRESSIONS = (
    "a > 1", "a >= 1", "a < 2", "a <= 1.5", "a = 1", "a <> 1", "a = 1.0", "a = 1.5", "a > -1",
    "a > 1.4", "a = 100", "a = 1e2", "a > 9223372036854775806", "a > 9223372036854775808",
    "a = '1'", "a = 'abc'", "a > '1'", "s = 'x'", "s <> 'x'", "s = 'it''s'", "s = \"x\"",
    "s = 5", "s > 4", "'x' = s", "1 < a", "a = a", "a = s", "s > 'x'",
    "a BETWEEN 1 AND 3", "a NOT BETWEEN 1 AND 3", "a between 1 and 3", "a BETWEEN 3 AND 1",
    "s BETWEEN 'x' AND 'y'",
    "s IN ('x', 'y')", "s NOT IN ('x', 'y')", "s in ('x')", "s IN ()", "a IN (1, 2)",
    "a IN ('1', '2')",
    "a IS NULL", "a IS NOT NULL", "b IS NULL", "nothing IS NULL", "a is null",
    "b = TRUE", "b = FALSE", "b = true", "b <> TRUE", "b = 'true'", "TRUE", "FALSE", "true", "b",
    "NOT a > 1", "NOT (a > 1)", "not (a IS NULL)", "NOT b",
    "a > 1 AND s = 'x'", "a > 2 OR s = 'y'", "a > 1 AND s = 'x' OR b IS NOT NULL",
    "a > 1 AND (s = 'x' OR b IS NOT NULL)", "a > 1 and s = 'x' or b is not null",
    "(a > 1)", "((a > 1) AND (s = 'x'))",
    "TAGS = 'red'", "TAGS IS NOT NULL AND TAGS IN ('red', 'blue')", "KEYS = 'k'", "c = 'x y'",
    "s LIKE 'x%'", "s CONTAINS 'y'", "s NOT CONTAINS 'y'", "s STARTSWITH 'x'", "s ENDSWITH 'z'",
    "a + 1 > 2", "a > > 1", "a >", "> 1", "(a > 1", "a > 1)", "a ! 1", "a == 1", "a != 1", "1",
    "'x'", "a", "a AND", "", " ", "a > 1;", "a = 'x", "a.b = 1", "a-b = 1", "$a = 1", "_a IS NULL",
    "a > 1 -- comment", "a > 1 /* comment */", "a IN (1, 'x')", "NULL", "a = NULL", "a IS TRUE",
    "a > 0x10", "a > 1L", "a > .5", "a > 1.", "a > TRUE", "a BETWEEN 'x' AND 'y'", "a BETWEEN 1",
)  # fmt: skip
TAGS = ("red", "red || blue", "red||blue", "red |blue", " red ", "*", "green", "red || *", "r*")


async def filters(session: Session) -> None:
    """The check of each expression that consumers begin with, and pulls with it."""
    await session.topic(TOPIC)
    for body, text in MESSAGES.items():
        await session.send(TOPIC, body.encode(), text)
    await session.delivered(TOPIC, len(MESSAGES))
    for kind, expressions in {"SQL92": EXPRESSIONS, "TAG": TAGS}.items():
        for expression in expressions:
            name = f"{kind} {expression!r}"
            checked = await check(session, name, expression, kind)
            if checked.code == ResponseCode.SUCCESS:
                await _selected(session, name, expression, kind)


async def _selected(session: Session, name: str, expression: str, kind: str) -> None:
    """What an expression selects that consumers can begin with."""
    fields = pull_fields(TOPIC, subscription=expression, expressionType=kind)
    answer = await session.ask(RequestCode.PULL_MESSAGE, fields)
    bodies = b"".join(one.body for one in records(answer.body))
    session.seen.note(f"{name}: next", answer.fields.get("nextBeginOffset"))
    session.seen.note(f"{name}: selects", bodies.decode() or answer.code)


__all__ = ["filters"]
