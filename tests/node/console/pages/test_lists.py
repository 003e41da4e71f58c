"""Lists, a page at a time: where their links lead."""

from duolog import Page

from node.console.pages.lists import ListPlace, Pages, listing


def test_links_to_other_pages_keep_the_search() -> None:
    at, page = ListPlace("a b", "m"), Page[str]((), 7, "x")
    facts = listing("/topics", at, page, "topic")
    assert facts["pages"] == Pages("/topics?q=a+b", "/topics?q=a+b&after=x")
    assert facts["sentence"] == "7 topics whose names contain “a b”."
    assert listing("/topics", ListPlace(), Page[str]((), 0, ""), "topic")["pages"] == Pages()
