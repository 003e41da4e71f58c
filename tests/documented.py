"""What pages show: blocks of code, and the commands in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "client/README.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Command:
    """One command of a console block, and what the page says that it prints."""

    line: str
    printed: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page at which it starts."""

    language: str
    text: str
    line: int

    def commands(self) -> list[Command]:
        """Commands of a console block, continuation lines joined; other lines are their output."""
        found: list[Command] = []
        for line in re.sub(r" *\\\n *", " ", self.text).splitlines():
            if line.startswith("$ "):
                found.append(Command(line.removeprefix("$ "), ()))
            elif found:
                found[-1] = Command(found[-1].line, (*found[-1].printed, line))
        return found


def blocks(page: Path, *languages: str) -> list[Block]:
    """Blocks of a page, in their order; all languages where none is given."""
    text = page.read_text()
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in _BLOCK.finditer(text)
        if not languages or found[1] in languages
    ]


def console_lines(page: Path) -> list[str]:
    """Commands of a page without the comments behind them."""
    commands = [one for block in blocks(page, "console") for one in block.commands()]
    return [command.line.partition(" #")[0].strip() for command in commands]
