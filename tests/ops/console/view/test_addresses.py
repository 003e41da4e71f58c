"""Addresses of pages: links lead where routes match, whatever names hold."""

import pytest
from starlette.routing import Match, Route

from duolog_server.ops.console.app import ACTIONS, DOWNLOADS, PAGES
from duolog_server.ops.console.view import addresses
from duolog_server.ops.console.view.addresses import MESSAGE, MESSAGES, TOPIC, address, own_path
from duolog_server.ops.console.view.render import environment


def test_each_pattern_has_a_page_or_an_action_and_links_use_no_other() -> None:
    made = environment()
    assert made.loader is not None
    for name in made.list_templates():
        text = made.loader.get_source(made, name)[0]
        assert 'href="/' not in text, name
        assert 'action="/' not in text, name
    patterns = {value for name, value in vars(addresses).items() if name.isupper()}
    elsewhere = {addresses.UNDO, addresses.LOGIN, addresses.LOGOUT, addresses.STATIC}
    assert patterns - elsewhere == {*PAGES, *DOWNLOADS, *ACTIONS}


@pytest.mark.parametrize("name", ["orders", "%RETRY%g", "a/b", "a?b#c", "..", "\u00fc", '"><b>'])
def test_a_name_in_an_address_is_read_back(name: str) -> None:
    path = address(TOPIC, topic=name)
    assert path.startswith("/topics/")
    assert not set(path) & set('?#"<>')
    assert path.count("/") == 2


def test_a_query_leaves_out_what_is_empty() -> None:
    names = {"topic": "T", "queue": 3, "offset": 7}
    assert address(MESSAGE, {"group": ""}, **names) == "/topics/T/3/7"
    assert address(MESSAGE, {"group": "a b"}, **names) == "/topics/T/3/7?group=a+b"
    assert address(MESSAGES, {"topic": "T&x", "value": 0}) == "/messages?topic=T%26x&value=0"


@pytest.mark.parametrize("path", ["", "a", "//evil", "/\\evil", "/a\nb", "/login", "https://evil"])
def test_a_form_leads_to_the_console_alone(path: str) -> None:
    assert own_path(path) == "/"


def test_a_form_leads_back_to_its_page() -> None:
    assert own_path("/groups/%25RETRY%25g?q=a") == "/groups/%25RETRY%25g?q=a"


def test_a_topic_s_own_pages_are_not_taken_for_others() -> None:
    path = address(addresses.TAIL, topic="T")
    scope = {"type": "http", "path": path, "method": "GET"}
    found = [pattern for pattern in PAGES if Route(pattern, str).matches(scope)[0] is Match.FULL]
    assert found == [addresses.TAIL]
