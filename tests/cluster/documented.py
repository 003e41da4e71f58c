"""The commands that a page shows: lines of its console blocks that begin with a prompt."""

import re
from pathlib import Path


def console_lines(page: Path) -> list[str]:
    """Without the prompt and the comment behind it."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.S)
    return [
        line[2:].split("  #")[0].split(" #")[0].strip()
        for block in blocks
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
