"""The links of duolog_server/: what users get of this repository, under one name."""

from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "duolog_server"
LINKS = sorted(path for path in PACKAGE.iterdir() if path.is_symlink())
# By what names Python finds the linked modules from the root: each once more.
OWN_NAMES = tuple(
    ".".join(path.resolve().relative_to(ROOT).with_suffix("").parts) for path in LINKS
)


def second_copies(modules: Iterable[str]) -> list[str]:
    """Modules that were found by their folder's own name."""
    return sorted(
        name for name in modules if any(f"{name}.".startswith(f"{own}.") for own in OWN_NAMES)
    )
