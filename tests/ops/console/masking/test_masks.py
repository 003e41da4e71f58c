"""Rules of masks, and what they leave of values."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.filters.sqlfilter import SqlFilter
from duolog_server.node.runtime.config import MASK_RULE, Config
from duolog_server.ops.console.masking.masks import MASK, BadMask, Masks, Rule


@pytest.mark.parametrize(
    ("fields", "value", "masked"),
    [
        (
            "card",
            {"card": 1, "x": {"CARD": [1]}, "y": [{"card": {}}]},
            {"card": MASK, "x": {"CARD": MASK}, "y": [{"card": MASK}]},
        ),
        ("$.card", {"card": 1, "x": {"card": 2}}, {"card": MASK, "x": {"card": 2}}),
        (
            "a.card",
            {"card": 1, "a": [{"card": 2, "b": 3}], "x": {"a": {"card": 4}}},
            {"card": 1, "a": [{"card": MASK, "b": 3}], "x": {"a": {"card": 4}}},
        ),
        ("$.a.b , c", [{"a": {"b": 1}, "C": 2}], [{"a": {"b": MASK}, "C": MASK}]),
        (
            "card",
            {"[shop.Card]": 1, "x": {"[card]": 2}},
            {"[shop.Card]": MASK, "x": {"[card]": MASK}},
        ),
        ("x.card", {"[a.card]": 1, "x": {"[a.card]": 2}}, {"[a.card]": 1, "x": {"[a.card]": MASK}}),
        (
            "caf\u00e9,card",
            {"cafe\u0301": 1, "CAFE\u0301": 2, "\uff43ard": 3, "cafe": 4},
            {"cafe\u0301": MASK, "CAFE\u0301": MASK, "\uff43ard": MASK, "cafe": 4},
        ),
        (
            "card,order.iban",
            {"[shop.card]": 1, "[card]": 2, "order": {"[a.b.iban]": 3}, "[shop.cards]": 4},
            {"[shop.card]": MASK, "[card]": MASK, "order": {"[a.b.iban]": MASK}, "[shop.cards]": 4},
        ),
        ("none", {"a": [1, "b", None, True, 1.5]}, {"a": [1, "b", None, True, 1.5]}),
    ],
)
def test_fields_are_masked_by_name_and_by_path(fields: str, value: object, masked: object) -> None:
    assert Rule.of(f"T={fields}").mask.value(value) == masked


def test_rules_of_a_topic_count_together_also_in_expressions() -> None:
    masks = Masks.of(["pay*=card", "payments=$.iban", "secret=hidden", "*-x=name"])
    assert not masks.mask_of(["orders"])
    both = masks.mask_of(["payments"])
    assert both.value({"card": 1, "iban": 2, "a": 3}) == {"card": MASK, "iban": MASK, "a": 3}
    assert not both.hidden
    assert masks.mask_of(["orders", "secret"]).hidden
    mask = Rule.of("T=card").mask
    assert mask.names_in("age > 1 AND Card = 'x'") == ["Card"]
    assert mask.names_in("card_id = 1") == []
    dashed = Rule.of("T=credit-card").mask
    assert dashed.names_in("x = 5-credit-card") == ["credit-card"]
    assert dashed.names_in("Credit-Card STARTSWITH '4'") == ["Credit-Card"]


@pytest.mark.parametrize("name", ["card", "card-number", "$card", "a_1"])
@pytest.mark.parametrize("text", ["{} > '4'", "a = 1AND {} IS NULL", "NOT({}='x')", "5 <{}"])
def test_a_masked_name_is_found_in_sql_as_nodes_read_it(name: str, text: str) -> None:
    expression = text.format(name)
    SqlFilter.parse(expression)
    assert Rule.of(f"T=other,{name}").mask.names_in(expression.upper()) == [name.upper()]
    assert Rule.of("T=other").mask.names_in(expression) == []


@pytest.mark.parametrize(
    "text",
    ["", "T", "T=", "=a", "T=a,", "T=a,,b", "T=$.", "T=a..b", "T=.a", "T=a.", " =a", "T=a b"],
)
def test_a_rule_that_is_wrong_is_told(text: str) -> None:
    with pytest.raises(BadMask, match="TOPIC=hidden"):
        Rule.of(text)
    with pytest.raises(ValueError, match="not of the form"):
        Config.model_validate({"console": {"mask": [text]}})


@given(st.text("Ta=$., hidden"))
def test_what_the_configuration_takes_is_a_rule(text: str) -> None:
    if re.fullmatch(MASK_RULE, text):
        assert Rule.of(text).mask
    else:
        with pytest.raises(BadMask):
            Rule.of(text)
