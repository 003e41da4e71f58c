"""Origins, as a configuration has them."""

import pytest

from duolog_server.node.runtime.origins import BadOrigin, origins_of


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("", ()),
        ("https://console.example.org", ("https://console.example.org",)),
        ("https://Console.Example.org/", ("https://console.example.org",)),
        (
            "https://a.example:443,https://b.example:8443",
            ("https://a.example", "https://b.example:8443"),
        ),
        (" https://a , https://a ", ("https://a",)),
        ("http://[::1]:80", ("http://[::1]",)),
    ],
)
def test_urls(text: str, origins: tuple[str, ...]) -> None:
    assert origins_of(text) == origins


@pytest.mark.parametrize(
    "text",
    [
        "console.example.org",
        "//console.example.org",
        "ftp://a",
        "https://",
        "https://a/console",
        "https://a?x",
        "https://a#x",
        "https://user@a",
        "https://a:0",
        "https://a:99999",
        "https://a b",
        "https://\u0430",
        "https://[::1",
        "https://a,http://b",
        ",".join(f"https://a{number}" for number in range(17)),
    ],
)
def test_what_has_no_origin(text: str) -> None:
    with pytest.raises(BadOrigin):
        origins_of(text)
