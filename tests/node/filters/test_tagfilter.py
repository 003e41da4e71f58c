"""Tag expressions, as RocketMQ reads them."""

import pytest

from duolog_server.node.filters.tagfilter import BadFilter, TagFilter


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("", ()), ("*", ()), (" * ", ()), ("a", ("a",)), ("a||b", ("a", "b")),
        (" b || a ", ("a", "b")), ("a||", ("a",)), ("||a", ("a",)), ("a || || b", ("a", "b")),
        ("a||a", ("a",)), ("a || *", ("*", "a")),
    ],
)  # fmt: skip
def test_an_expression_names_tags(expression: str, tags: tuple[str, ...]) -> None:
    assert TagFilter.parse(expression).tags == tags


@pytest.mark.parametrize("expression", ["||", " || ", "|| ||"])
def test_bars_alone_are_no_expression(expression: str) -> None:
    with pytest.raises(BadFilter, match="has no tag"):
        TagFilter.parse(expression)
