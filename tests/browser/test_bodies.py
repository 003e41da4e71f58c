"""Bodies that are Protobuf, masked or hidden, in a browser."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import duolog.sync
import pytest

from tests.browser.conftest import Open, Profiles
from tests.browser.site import HOSTILE, Site
from tests.browser.test_pages import check_accessible
from tests.protobufs import ORDER, file_of, order

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.process, pytest.mark.browser]

SECRET = "4111-secret"


@pytest.fixture(scope="module")
def bodies(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node whose console has types and masks."""
    directory = tmp_path_factory.mktemp("bodies")
    types = f"shop*={file_of(directory)}:{ORDER};broken={directory}/none:T"
    masks = "hidden=hidden;masked=card;shop-masked=card"
    flags = ("--set", f"console.protobuf={types}", "--set", f"console.mask={masks}")
    node = Site(directory / "node-a", *flags)
    node.start()
    shop = order(id=7, card=HOSTILE).SerializeToString()
    with duolog.sync.Client(node.endpoint, timeout=30) as client, client.producer() as producer:
        for topic, body in (
            ("shop", shop),
            ("shop", b"\xffno message"),
            ("shop-masked", shop),
            ("broken", b"text"),
            ("hidden", SECRET.encode()),
            ("masked", b'{"id": 7, "card": "4111-secret"}'),
        ):
            client.admin.create_topic(topic, 1)
            producer.send(topic, body, properties={"note": SECRET} if topic == "hidden" else {})
    yield node
    node.stop()


@pytest.mark.parametrize(
    ("path", "shown", "missing"),
    [
        ("/topics/shop/0/0", f'"card": "{HOSTILE[:20]}', "not a valid"),
        ("/topics/shop/0/1", "the body is not a valid shop.Order", '"card"'),
        ("/topics/shop-masked/0/0", '"card": "•••"', "script"),
        ("/topics/broken/0/0", "cannot read", SECRET),
        ("/topics/hidden/0/0", "The console hides the bodies of this topic.", SECRET),
        ("/topics/masked/0/0", '"card": "•••"', SECRET),
        ("/messages?topic=masked&by=time", '"card": "•••"', SECRET),
        ("/messages?topic=hidden&by=time", "11 B", SECRET),
        ("/messages?topic=shop&by=time", '{"id": 7', SECRET),
    ],
)
def test_a_body_is_shown_as_the_console_is_told(
    bodies: Site, profiles: Profiles, path: str, shown: str, missing: str
) -> None:
    window = profiles.tab(bodies.url)
    window.open(path)
    text = window.page.locator("main").inner_text().replace("\u202f", " ")
    assert shown in text
    assert missing not in text
    check_accessible(window)
    text = window.page.locator("main").inner_text().replace("\u202f", " ")
    assert shown in text, "where it is narrow"
    assert missing not in text
    assert window.ask("window.hit") is None


def test_a_masked_value_is_not_found_by_its_text(bodies: Site, open_window: Open) -> None:
    window = open_window(bodies.url)
    window.open(f"/messages?topic=masked&by=text&value={SECRET}")
    window.shows("0 messages found among 1 message")
    window.open("/messages?topic=masked&by=text&value=id")
    window.shows("1 message found among 1 message")
