"""How `duolog acl grant` changes entries."""

import pytest

from node.cli.acl import granted
from node.rights.policies import Entry


def entry(text: str) -> Entry:
    """`Allow Topic:T Pub,Sub [SOURCE]`."""
    decision, resource, actions, *sources = text.split(" ")
    row = {"decision": decision, "resource": resource, "actions": actions.split(",")}
    return Entry.from_json({**row, "sourceIps": sources} if sources else row)


@pytest.mark.parametrize(
    ("before", "more", "after"),
    [
        ([], "Allow Topic:T Pub", ["Allow Topic:T Pub"]),
        (["Allow Topic:T Pub"], "Allow Topic:T Sub", ["Allow Topic:T Pub,Sub"]),
        (["Allow Topic:T Pub,Sub"], "Deny Topic:T Sub", ["Allow Topic:T Pub", "Deny Topic:T Sub"]),
        (["Deny Topic:T All"], "Allow Topic:T All", ["Allow Topic:T All"]),
        (["Allow Topic:T Pub"], "Allow Topic:U Pub", ["Allow Topic:T Pub", "Allow Topic:U Pub"]),
        (["Allow Topic:T* Pub"], "Deny Topic:T Pub", ["Allow Topic:T* Pub", "Deny Topic:T Pub"]),
        (
            ["Allow Topic:T Pub 10.0.0.0/8"],
            "Deny Topic:T Pub",
            ["Allow Topic:T Pub 10.0.0.0/8", "Deny Topic:T Pub"],
        ),
    ],
)
def test_the_last_word_counts_for_its_resource(
    before: list[str], more: str, after: list[str]
) -> None:
    assert granted(map(entry, before), entry(more)) == tuple(map(entry, after))
