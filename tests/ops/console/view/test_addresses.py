"""Addresses of pages: links lead where routes match, whatever names hold."""

import pytest
from starlette.routing import Match, Route

from duolog_server.ops.console.app import ACTIONS, DOWNLOADS, PAGES
from duolog_server.ops.console.view import addresses
from duolog_server.ops.console.view.addresses import MESSAGE, MESSAGES, TOPIC, address, own_path
from duolog_server.ops.console.view.render import environment


def test_each_pattern_has_a_page_or_an_action_and_no_other_is_taken_for_it() -> None:
    made = environment()
    assert made.loader is not None
    for name in made.list_templates():
        text = made.loader.get_source(made, name)[0]
        assert 'href="/' not in text, name
        assert 'action="/' not in text, name
    patterns = {value for name, value in vars(addresses).items() if name.isupper()}
    elsewhere = {addresses.UNDO, addresses.LOGIN, addresses.LOGOUT, addresses.STATIC}
    assert patterns - elsewhere == {*PAGES, *DOWNLOADS, *ACTIONS}
    path = address(addresses.TAIL, topic="T")
    scope = {"type": "http", "path": path, "method": "GET"}
    found = [pattern for pattern in PAGES if Route(pattern, str).matches(scope)[0] is Match.FULL]
    assert found == [addresses.TAIL]


@pytest.mark.parametrize("name", ["orders", "%RETRY%g", "a/b", "a?b#c", "..", "\u00fc", '"><b>'])
def test_a_name_in_an_address_is_read_back(name: str) -> None:
    path = address(TOPIC, topic=name)
    assert path.startswith("/topics/")
    assert not set(path) & set('?#"<>')
    assert path.count("/") == 2


def test_a_query_leaves_out_what_is_empty_and_a_form_leads_back_to_its_page() -> None:
    names = {"topic": "T", "queue": 3, "offset": 7}
    assert address(MESSAGE, {"group": ""}, **names) == "/topics/T/3/7"
    assert address(MESSAGE, {"group": "a b"}, **names) == "/topics/T/3/7?group=a+b"
    assert address(MESSAGES, {"topic": "T&x", "value": 0}) == "/messages?topic=T%26x&value=0"
    assert own_path("/groups/%25RETRY%25g?q=a") == "/groups/%25RETRY%25g?q=a"


@pytest.mark.parametrize("path", ["", "a", "//evil", "/\\evil", "/a\nb", "/login", "https://evil"])
def test_a_form_leads_to_the_console_alone(path: str) -> None:
    assert own_path(path) == "/"
