"""A page of docs/ that is made from the code."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def write_or_compare(target: Path, text: str) -> None:
    """Write the page; with --check, exit with 1 where it is another."""
    if "--check" not in sys.argv:
        target.write_text(text, encoding="utf-8")
    elif not target.exists() or target.read_text(encoding="utf-8") != text:
        print(f"{target} is out of date: run make docs", file=sys.stderr)
        sys.exit(1)
