"""SQL92 over properties: every operator, unknown values, and invalid text."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.filters import sqlfilter as module
from duolog_server.node.filters.sqlfilter import SqlFilter
from duolog_server.node.filters.tagfilter import BadFilter

P = {
    "age": "20",
    "price": "10.5",
    "name": "O'Neil",
    "region": "east",
    "vip": "true",
    "odd-name": "x",
    "TAGS": "A",
}


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("age = 20", True),
        ("age = 20.0", True),
        ("age <> 20", False),
        ("age != 21", True),
        ("age > 19 AND age >= 20 AND age < 21 AND age <= 20", True),
        ("age > 20 OR age < 20", False),
        ("price = 10.5", True),
        ("price > 1.05e1", False),
        ("price > -1", True),
        ("price = +10.5", True),
        ("20 = age", True),
        ("age BETWEEN 20 AND 30", True),
        ("age NOT BETWEEN 20 AND 30", False),
        ("age between 21 and 30", False),
        ("region IN ('east', 'west')", True),
        ("region NOT IN ('east', 'west')", False),
        ("region IN ('north')", False),
        ("name = 'O''Neil'", True),
        ("name <> 'x'", True),
        ("name CONTAINS 'Nei'", True),
        ("name NOT CONTAINS 'Nei'", False),
        ("name STARTSWITH 'O'", True),
        ("name NOT STARTSWITH 'O'", False),
        ("name ENDSWITH 'l'", True),
        ("name IS NULL", False),
        ("name IS NOT NULL", True),
        ("missing IS NULL", True),
        ("missing IS NOT NULL", False),
        ("vip = TRUE", True),
        ("vip = FALSE", False),
        ("vip <> FALSE", True),
        ("TRUE", True),
        ("FALSE OR NOT FALSE", True),
        ("NOT age > 30", True),
        ("NOT (age > 30 OR region = 'west')", True),
        ("TAGS = 'A'", True),
        ("odd-name = 'x'", True),
        # What is not known is not true, and its negation is not, either.
        ("missing > 1", False),
        ("NOT missing > 1", False),
        ("missing = NULL", False),
        ("missing IN ('a')", False),
        ("missing NOT IN ('a')", False),
        ("missing CONTAINS 'a' OR age = 20", True),
        ("missing > 1 AND age = 20", False),
        ("name > 1", False),
        ("name = 1 OR name <> 1", False),
        ("name > 'A'", False),  # texts have no order
        ("age", False),
    ],
)
def test_expressions(expression: str, wanted: bool) -> None:
    assert SqlFilter.parse(expression).matches(P) is wanted


@pytest.mark.parametrize(
    "expression",
    [
        "",
        " ",
        "age >",
        "> 1",
        "age = 1 AND",
        "age = 'x",
        "age ~ 1",
        "age = 1 2",
        "(age = 1",
        "age = 1)",
        "age IN ()",
        "age IN (1)",
        "age IN ('a' 'b')",
        "age BETWEEN 1",
        "age BETWEEN 1 OR 2",
        "age IS",
        "age IS 1",
        "age NOT 1",
        "name CONTAINS 1",
        "name LIKE 'x%'",
        "-'a' = 1",
        "NOT",
        "(" * 300 + "a" + ")" * 300,
        "a" * 9000,
        "age = " + "9" * 5000,
    ],
)
def test_invalid_expressions_are_refused(expression: str) -> None:
    with pytest.raises(BadFilter):
        SqlFilter.parse(expression)


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    try:
        SqlFilter.parse(text).matches(P)
    except BadFilter:
        pass


@given(st.lists(st.sampled_from(["age", "=", "20", "AND", "NOT", "(", ")", "'x'", "IN", ","])))
def test_any_sequence_of_words_is_an_expression_or_is_refused(words: list[str]) -> None:
    try:
        SqlFilter.parse(" ".join(words)).matches(P)
    except BadFilter:
        pass


def test_many_filters_keep_their_texts_and_few_parsed_expressions() -> None:
    long = " OR ".join(f"age = {number}" for number in range(500))
    kept = [SqlFilter.parse(f"{long} OR name = 'n{number}'") for number in range(100)]
    assert module._long.cache_info().currsize <= module.LONG_KEPT
    assert {one.name for one in fields(SqlFilter)} == {"expression"}
    assert kept[0].matches({"name": "n0"})
    assert not kept[0].matches({"name": "n1"})
