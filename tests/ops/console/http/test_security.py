"""Requests that the console refuses, and what all its answers say to a browser."""

from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest

from duolog_server.ops.console.http.security import HEADERS, Protected
from duolog_server.ops.console.program import is_loopback


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


async def status(
    method: str, headers: dict[str, str], *, loopback_only: bool = True, scheme: str = "http"
) -> int:
    transport = httpx.ASGITransport(Protected(app, loopback_only=loopback_only))
    async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://h") as client:
        answer = await client.request(method, "/", headers=headers)
    assert {(name, value) for name, value in answer.headers.raw} >= set(HEADERS)
    return answer.status_code


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8082", "127.0.0.1:8082", "[::1]:8082", "LOCALHOST:1", "127.0.0.2"],
)
async def test_names_of_loopback(host: str) -> None:
    assert await status("GET", {"host": host}) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "127.evil.example",
        "0.0.0.0",
        "localhost.evil.example:8082",
        "localhost@evil.example",
        "localhost/x",
        "a b",
        "localhost:x",
        "",
    ],
)
async def test_names_that_are_none_of_loopback(host: str) -> None:
    assert await status("GET", {"host": host}) == 403


async def test_what_only_begins_as_loopback_or_listens_for_others_asks_for_a_login() -> None:
    assert is_loopback("[::1]")
    assert is_loopback("127.0.0.2")
    assert not is_loopback("127.evil.example")
    assert await status("GET", {"host": "console.example"}, loopback_only=False) == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"origin": "http://localhost:1"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://localhost:1", "sec-fetch-site": "cross-site"}, 200),
        ({"origin": "https://localhost:1"}, 403),
        ({"origin": "http://localhost:2"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({}, 403),
    ],
)
async def test_a_change_comes_from_a_page_of_the_console(
    headers: dict[str, str], expected: int
) -> None:
    assert await status("POST", {"host": "localhost:1", **headers}) == expected


@pytest.mark.parametrize(
    ("site", "mode", "dest", "expected"),
    [
        ("none", "navigate", "document", 200),
        ("same-origin", "cors", "empty", 200),
        ("same-origin", "navigate", "document", 200),
        ("cross-site", "navigate", "document", 200),
        ("same-site", "navigate", "document", 200),
        ("cross-site", "no-cors", "image", 403),
        ("cross-site", "cors", "empty", 403),
        ("same-site", "cors", "empty", 403),
        ("same-site", "no-cors", "script", 403),
        ("cross-site", "navigate", "iframe", 403),
        ("cross-site", "navigate", "object", 403),
    ],
)
async def test_other_sites_load_no_page_but_link_to_it(
    site: str, mode: str, dest: str, expected: int
) -> None:
    """Where there are no users, any page that its viewer opens could begin searches."""
    names = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
    for method in ("GET", "HEAD"):
        assert await status(method, {"host": "localhost:1", **names}) == expected
        assert await behind_proxy(method, {"host": "console.example.org", **names}) == expected


OWN = ("https://console.example.org", "https://other.example:8443")


async def behind_proxy(method: str, headers: dict[str, str]) -> int:
    """The proxy ends TLS: the console itself is asked in plain text."""
    protected = Protected(app, loopback_only=False, origins=OWN)
    transport = httpx.ASGITransport(protected)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8090") as client:
        return (await client.request(method, "/", headers=headers)).status_code


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("console.example.org", 200),
        ("CONSOLE.example.org:443", 200),
        ("other.example:8443", 200),
        ("other.example", 403),
        ("console.example.org:80", 403),
        ("console.example.org:8443", 403),
        ("127.0.0.1:8090", 403),
        ("localhost", 403),
        ("evil.example", 403),
        ("console.example.org,evil.example", 403),
        ("console.example.org/", 403),
        ("x@console.example.org", 403),
        ("", 403),
    ],
)
async def test_behind_a_proxy_only_its_names_are_answered(host: str, expected: int) -> None:
    for headers in (
        {},
        {"x-forwarded-host": OWN[0].partition("//")[2], "forwarded": f"host={host}"},
    ):
        assert await behind_proxy("GET", {"host": host, **headers}) == expected
        headers = {"host": host, "origin": OWN[0], **headers}
        assert await behind_proxy("POST", headers) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"origin": "https://console.example.org"}, 200),
        ({"origin": "https://other.example:8443"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://console.example.org"}, 403),
        ({"origin": "http://console.example.org", "x-forwarded-proto": "https"}, 403),
        ({"origin": "https://evil.example", "x-forwarded-host": "evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({}, 403),
    ],
)
async def test_a_change_behind_a_proxy_comes_from_its_pages(
    headers: dict[str, str], expected: int
) -> None:
    assert await behind_proxy("POST", {"host": "console.example.org", **headers}) == expected


async def test_what_is_no_request_is_passed_on() -> None:
    passed: list[str] = []

    async def note(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    await Protected(note, loopback_only=True)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert passed == ["lifespan"]
