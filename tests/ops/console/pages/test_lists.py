"""Lists, a page at a time: where their links lead."""

from duolog import Page

from duolog_server.ops.console.pages.lists import ListPlace, Pages, listing


def test_links_to_other_pages_keep_the_search() -> None:
    page: Page[str] = Page((), 7, "x")
    facts = listing("/topics", ListPlace("a b", "m"), page, "topic")
    assert facts["pages"] == Pages("/topics?q=a+b", "/topics?q=a+b&after=x")
    assert facts["sentence"] == "7 topics whose names contain “a b”."
    kept = listing("/topics", ListPlace(after="m"), page, "topic", system="1")
    assert kept["pages"] == Pages("/topics?system=1", "/topics?system=1&after=x")
    whole: Page[str] = Page((), 0, "")
    assert listing("/topics", ListPlace(), whole, "topic")["pages"] == Pages()
