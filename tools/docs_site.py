"""Builds the documentation site: `python -m tools.docs_site`; `make docs-serve` shows it instead.

Strict: a dead link or anchor, a page that the navigation does not name, or anything that a page
would load from elsewhere is an error. No network is used.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

ROOT = Path(__file__).parent.parent
CONFIGURATION = ROOT / "mkdocs.yml"
ELSEWHERE = re.compile(
    r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)"""
)  # of a style sheet
LOADED = {("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src"), ("link", "href")}


class Page(HTMLParser):
    """The ids of a built page, what it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note the ids, links and loaded files of a tag."""
        for name, value in attributes:
            if name == "id" and value:
                self.ids.add(value)
            elif (tag, name) in LOADED and value:
                self.loads.append(value)
            elif (tag, name) == ("a", "href") and value:
                self.links.append(value)


def named_pages(entries: object) -> Iterator[str]:
    """Pages that the navigation names."""
    match entries:
        case str():
            yield entries
        case list():
            for entry in entries:
                yield from named_pages(entry)
        case dict():
            yield from named_pages(list(entries.values()))


def navigation_errors(documents: Path, configuration: Path) -> list[str]:
    """Pages missing from the navigation, its entries without a page, and pages that it repeats."""
    named = list(named_pages(yaml.safe_load(configuration.read_text())["nav"]))
    there = {str(page.relative_to(documents)) for page in documents.rglob("*.md")}
    return [
        *(f"{page}: not in the navigation of {configuration.name}" for page in there - {*named}),
        *(f"{page}: in the navigation, and not there" for page in {*named} - there),
        *(f"{page}: in the navigation twice" for page in {*named} if named.count(page) > 1),
    ]


def site_errors(site: Path) -> list[str]:
    """Dead links of the built pages, and files that they would load from elsewhere."""
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    found = [
        f"{sheet.relative_to(site)}: loads {address}"
        for sheet in site.rglob("*.css")
        for address in ELSEWHERE.findall(sheet.read_text())
    ]
    for path, page in pages.items():
        for address in (*page.links, *page.loads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loads:
                    found.append(f"{path.relative_to(site)}: loads {address}")
                continue
            beside = site if parts.path.startswith("/") else path.parent
            target = (beside / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            if target.is_dir() or not target.exists():
                found.append(f"{path.relative_to(site)}: {address} is not there")
            elif unquote(parts.fragment) not in {
                "",
                *(pages[target].ids if target in pages else ()),
            }:
                found.append(f"{path.relative_to(site)}: {address} has no such anchor")
    return found


def build() -> int:
    """Build the site and check it; returns the exit status."""
    words = ["build", "--clean", "--strict", "--config-file", str(CONFIGURATION)]
    built = subprocess.run([sys.executable, "-m", "zensical", *words], cwd=ROOT, check=False)
    if built.returncode:
        return built.returncode
    configured = yaml.safe_load(CONFIGURATION.read_text())
    found = navigation_errors(ROOT / configured["docs_dir"], CONFIGURATION)
    found += site_errors((ROOT / configured["site_dir"]).resolve())
    for error in sorted(found):
        print(error, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(build())
